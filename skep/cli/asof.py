"""`skep asof`: every property as it stood at a moment."""

import asyncio

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.moments import moment
from skep.cli.output import print_json, print_table, short_time
from skep.consumer import Consumer
from skep.patterns import Pattern
from things.messages import JSONValue
from things.times import rfc3339

AT_ONCE = 8


@click.command(
    epilog="""\b
Examples:
  skep asof '10 minutes ago'
  skep asof 2026-03-31T14:00:00Z dtw:pumps:pump-1
"""
)
@click.argument("time")
@click.argument("pattern", default="dtw:*")
@access_options
def asof(access: Access, time: str, pattern: str) -> None:
    """Show the value every property had at TIME: a moment, or how long ago."""
    # The bound is exclusive, what was said at that very moment counts.
    until = rfc3339(moment(time) + 1)
    wanted = Pattern.parse(pattern)

    async def work(consumer: Consumer) -> list[dict[str, JSONValue]]:
        places = [
            (thing, name)
            for thing in await consumer.things()
            for name in thing.properties
            if wanted.matches(thing.id, "property", name)
        ]
        gate = asyncio.Semaphore(AT_ONCE)

        async def last(thing_id: str, name: str) -> list[dict[str, JSONValue]]:
            async with gate:
                return await consumer.thing(thing_id).history(name, kind="property", to=until, limit="1", order="desc")

        found = await asyncio.gather(*(last(thing.id, name) for thing, name in places))
        return [row for rows in found for row in rows]

    rows = with_consumer(access, work)
    if access.json:
        print_json(rows)
        return
    print_table(
        ("thing", "property", "value", "since"),
        ((one.get("thingID"), one.get("name"), one.get("value"), short_time(one.get("created"))) for one in rows),
        empty="nothing was known then",
    )
