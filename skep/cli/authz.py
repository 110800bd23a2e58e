"""`skep authz`: why somebody may or may not."""

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.failures import Unsuccessful
from skep.cli.output import print_json, print_table
from skep.consumer import Consumer
from things.decisions import CONFIRM
from things.messages import JSONValue, Operation
from things.service_ids import RIGHTS

SPOKEN = ("invoke", "write", "call", "publish", *(operation.value for operation in Operation))
"""The words people say first; the runtime knows them too."""


@click.group()
def authz() -> None:
    """Roles, policies, and why somebody may or may not."""


@authz.command(epilog="Example: skep authz explain ann invoke dtw:pumps:pump-1 setSpeed --home ./site")
@click.argument("account")
@click.argument("operation", type=click.Choice(SPOKEN), metavar="OPERATION")
@click.argument("thing")
@click.argument("name", required=False)
@access_options
def explain(access: Access, account: str, operation: str, thing: str, name: str | None) -> None:
    """Say whether ACCOUNT may do OPERATION on THING, and which rule decides. Exit code 1: it may not.

    OPERATION is read, observe, subscribe, history, invoke, write, call, publish or any other of the runtime's own.
    """
    given: dict[str, JSONValue] = {"sender": account, "operation": operation, "thing": thing}
    if name is not None:
        given["name"] = name

    async def work(consumer: Consumer) -> JSONValue:
        return await consumer.call(RIGHTS, "explain", given)

    found = with_consumer(access, work)
    allowed = isinstance(found, dict) and found.get("allowed") is True
    if access.json:
        print_json(found)
    elif isinstance(found, dict):
        obligations, stages = found.get("obligations"), found.get("stages")
        asks = isinstance(obligations, list) and CONFIRM in obligations
        click.echo("denied" if not allowed else "allowed once confirmed" if asks else "allowed")
        rows = [("decided by", found.get("rule"))]
        if isinstance(obligations, list) and obligations:
            rows.append(("obliges to", ", ".join(map(str, obligations))))
        if isinstance(stages, list):
            rows += [(str(stage.get("stage")), stage.get("says")) for stage in stages if isinstance(stage, dict)]
        print_table(("", ""), rows)
    if not allowed:
        raise Unsuccessful
