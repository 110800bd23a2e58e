"""`skep client`: accounts, through the built-in service `dtw:authn:admin`."""

import sys

import click
from pydantic import JsonValue

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.output import items_of, print_json, print_table, short_time
from skep.consumer import Consumer
from things.errors import Invalid
from things.service_ids import ACCOUNTS

_TYPES = ("agent", "consumer", "service")


def call(access: Access, method: str, data: JsonValue = None) -> JsonValue:
    """Call a method of the service and return its output."""

    async def work(consumer: Consumer) -> JsonValue:
        return await consumer.call(ACCOUNTS, method, data)

    return with_consumer(access, work)


@click.group()
def client() -> None:
    """Accounts of agents, consumers and services."""


@client.command(
    epilog="""\b
Examples:
  skep client add pumps --type agent --home ./site
  skep client add ann --type consumer --role operator --password-stdin --home ./site < password.txt
"""
)
@click.argument("name")
@click.option("--type", "type_", type=click.Choice(_TYPES), required=True, help="What it is.")
@click.option("--role", help="viewer, operator, manager, admin, or a custom role; agents and services have their own.")
@click.option("--password-stdin", is_flag=True, help="Read a password from the standard input.")
@access_options
def add(access: Access, name: str, type_: str, role: str | None, password_stdin: bool) -> None:
    """Make an account and print its token, once. The token serves as MQTT password and as bearer token."""
    given: dict[str, JsonValue] = {"clientID": name, "type": type_}
    if role is not None:
        given["role"] = role
    if password_stdin:
        given["password"] = _password()
    made = call(access, "addClient", given)
    if access.json:
        print_json(made)
    elif isinstance(made, dict):
        click.echo(f"account {made.get('clientID')} · {made.get('type')} · role {made.get('role')}")
        click.echo("its token, shown only now:")
        click.echo(str(made.get("token")))


@client.command("ls")
@access_options
def list_clients(access: Access) -> None:
    """List accounts."""
    found = call(access, "listClients")
    if access.json:
        print_json(items_of(found))
        return
    print_table(
        ("account", "type", "role", "state", "created"),
        (
            (
                item.get("clientID"),
                item.get("type"),
                item.get("role"),
                "disabled" if item.get("disabled") else "enabled",
                short_time(item.get("created")),
            )
            for item in items_of(found)
        ),
        empty="no accounts yet; make one with: skep client add NAME --type agent",
    )


@client.command()
@click.argument("name")
@access_options
def remove(access: Access, name: str) -> None:
    """Remove an account with all its credentials; its Things and history stay."""
    _done(access, call(access, "removeClient", {"clientID": name}), f"removed {name}")


@client.command()
@click.argument("name")
@click.argument("role")
@access_options
def role(access: Access, name: str, role: str) -> None:
    """Give an account another role; open connections follow within a second."""
    _done(access, call(access, "setClientRole", {"clientID": name, "role": role}), f"{name} is now {role}")


@client.command()
@click.argument("name")
@click.option("--password-stdin", is_flag=True, required=True, help="Read the password from the standard input.")
@access_options
def passwd(access: Access, name: str, password_stdin: bool) -> None:
    """Set a password; logins by the old one end."""
    password = _password()
    _done(
        access, call(access, "setClientPassword", {"clientID": name, "password": password}), f"password of {name} set"
    )


@client.command()
@click.argument("name")
@access_options
def disable(access: Access, name: str) -> None:
    """Refuse every credential of an account and close its connections."""
    _done(access, call(access, "disableClient", {"clientID": name}), f"{name} is disabled")


@client.command()
@click.argument("name")
@access_options
def enable(access: Access, name: str) -> None:
    """Let an account in again."""
    _done(access, call(access, "enableClient", {"clientID": name}), f"{name} is enabled")


@client.command()
@click.argument("name")
@click.option("--ended", is_flag=True, help="Also those that were revoked or replaced.")
@click.option("--id", "is_id", is_flag=True, help="NAME is the id of an account that may have been removed.")
@access_options
def credentials(access: Access, name: str, ended: bool, is_id: bool) -> None:
    """List what proves an account, and the sessions, registrations and tickets that live by it."""
    found = call(access, "listCredentials", {"accountID" if is_id else "clientID": name, "ended": ended or is_id})
    if access.json:
        print_json(items_of(found))
        return
    print_table(
        ("credential", "kind", "label", "from", "made", "last used", "expires", "ended"),
        (
            (
                item.get("credentialID"),
                item.get("kind"),
                item.get("label"),
                item.get("parent"),
                *(short_time(item.get(time)) for time in ("created", "lastUsed", "expires", "ended")),
            )
            for item in items_of(found)
        ),
        empty=f"{name} has no credential",
    )


@client.command()
@click.argument("credential")
@access_options
def revoke(access: Access, credential: str) -> None:
    """End one credential and all that came of it; connections by it are closed."""
    _done(access, call(access, "revokeCredential", {"credentialID": credential}), f"revoked {credential}")


@client.command("revoke-all")
@click.argument("name")
@access_options
def revoke_all(access: Access, name: str) -> None:
    """End everything that an account has, its password too; the account stays, and needs a new credential."""
    _done(access, call(access, "revokeCredentials", {"clientID": name}), f"revoked everything of {name}")


def _done(access: Access, answer: JsonValue, sentence: str) -> None:
    if access.json:
        print_json(answer)
    else:
        click.echo(sentence)


def _password() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise Invalid("no password on the standard input")
    return password
