"""`skep audit`: the log of security acts."""

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.failures import Unsuccessful
from skep.cli.output import print_json
from skep.consumer import Consumer
from things.messages import JSONValue
from things.service_ids import ACCOUNTS


@click.group()
def audit() -> None:
    """The log of security acts, one chained line each."""


@audit.command(epilog="Example: skep audit verify --home ./site")
@access_options
def verify(access: Access) -> None:
    """Check that no line of the audit log was changed or taken out. Exit code 1: one was."""

    async def work(consumer: Consumer) -> JSONValue:
        return await consumer.call(ACCOUNTS, "verifyAudit")

    found = with_consumer(access, work)
    intact = isinstance(found, dict) and found.get("intact") is True
    if access.json:
        print_json(found)
    elif isinstance(found, dict):
        if intact:
            click.echo(f"intact · {found.get('acts')} acts")
        else:
            click.echo(f"broken · {found.get('file')} line {found.get('line')}: {found.get('reason')}")
    if not intact:
        raise Unsuccessful
