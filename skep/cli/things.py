"""`skep things`: what there is."""

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.output import print_json, print_table
from skep.cli.plain import plain
from skep.consumer import Consumer
from skep.thing import Thing


@click.group()
def things() -> None:
    """Things and what they offer."""


@things.command("ls", epilog="Example: skep things ls 'online and temperature > 30'")
@click.argument("filter", required=False)
@click.option("--services", is_flag=True, help="The runtime's own services too.")
@click.option("--agent", help="Only of this agent.")
@click.option("--text", help="Only with this text in the title.")
@access_options
def list_things(access: Access, filter: str | None, services: bool, agent: str | None, text: str | None) -> None:
    """List the Things this account may see.

    FILTER compares title, agent, id, @type, online, lastSeen and the latest values of properties: with = != < <= > >=
    and ~ (contains), joined by and, or, not and parentheses.
    """

    async def work(consumer: Consumer) -> list[Thing]:
        return await consumer.things(services=services, filter=filter, agent=agent, text=text)

    found = with_consumer(access, work)
    if access.json:
        print_json([thing.td for thing in found])
        return
    print_table(
        ("thing", "title", "properties", "events", "actions"),
        ((one.id, one.title, _names(one.properties), _names(one.events), _names(one.actions)) for one in found),
        empty="no Things yet; connect an agent, or try: skep simulate",
    )


@things.command()
@click.argument("thing")
@access_options
def show(access: Access, thing: str) -> None:
    """Show one Thing's latest values, or with --json its description."""

    async def work(consumer: Consumer) -> tuple[Thing, dict[str, object]]:
        one = consumer.thing(thing)
        await one.describe()
        return one, dict(await one.read_all())

    one, values = with_consumer(access, work)
    if access.json:
        print_json(one.td)
        return
    click.echo(plain(f"{one.title} · {one.id}"))
    rows = []
    for name, definition in one.properties.items():
        unit = definition.get("unit") if isinstance(definition, dict) else None
        rows.append((name, values.get(name), unit))
    print_table(("property", "value", "unit"), rows, empty="no properties")


def _names(found: object) -> str:
    return ", ".join(found) if isinstance(found, dict) else ""
