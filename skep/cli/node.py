"""`skep node`: what the messaging node routes."""

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.output import print_json, print_table
from skep.consumer import Consumer
from things.service_ids import NODE


@click.group()
def node() -> None:
    """The messaging node."""


@node.command(epilog="Example: skep node routes --home ./site")
@access_options
def routes(access: Access) -> None:
    """List the node's connectors, stubs and sessions, with the addresses each holds."""

    async def work(consumer: Consumer) -> object:
        return await consumer.call(NODE, "routes")

    found = with_consumer(access, work)
    assert isinstance(found, dict)
    if access.json:
        print_json(found)
        return
    print_table(
        ("address", "answered by"),
        [
            *((one["address"], one["kind"]) for one in found["connectors"]),
            *((f"whatever is of {one['domain']}", one["kind"]) for one in found["stubs"]),
        ],
        empty="the node is not serving",
    )
    click.echo()
    print_table(
        ("runtime", "account", "state", "addresses", "subscriptions", "waiting"),
        (
            (
                one["runtimeURL"],
                one["account"],
                "live" if one["isLive"] else "away",
                one["addressCount"],
                one["subscriptionCount"],
                one["waiting"],
            )
            for one in found["sessions"]
        ),
        empty="no runtimes are connected",
    )
