"""`skep watch`: values and events in the terminal as they come."""

import asyncio
from contextlib import aclosing, suppress

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.output import cell, console, print_line, short_time
from skep.consumer import Change, Consumer
from things.times import from_datetime, rfc3339


@click.command(
    epilog="""\b
Examples:
  skep watch                          everything
  skep watch dtw:pumps:pump-1/flow    one property of one Thing
  skep watch 'dtw:pumps:*' --json | jq .value
"""
)
@click.argument("patterns", nargs=-1, metavar="[PATTERN]...")
@click.option("--kind", type=click.Choice(("event", "property")), help="Only events, or only property values.")
@click.option("--latest", is_flag=True, help="Begin with the latest values.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="End after this long.")
@access_options
def watch(
    access: Access, patterns: tuple[str, ...], kind: str | None, latest: bool, count: int | None, seconds: float | None
) -> None:
    """Follow values and events. PATTERN is dtw:AGENT:THING/NAME, with * for any; several share one connection."""

    wanted = patterns or ("dtw:*",)

    async def work(consumer: Consumer) -> None:
        seen = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(consumer.watch(*wanted, kind=kind, latest=latest)) as changes:
                async for change in changes:
                    _print(change, as_json=access.json)
                    seen += 1
                    if count is not None and seen >= count:
                        return

    with_consumer(access, work, live=True)


def _print(change: Change, *, as_json: bool) -> None:
    created = rfc3339(from_datetime(change.created))
    if as_json:
        named = {"thingID": change.thing_id, "kind": change.kind, "name": change.name, "value": change.value}
        print_line({**named, "created": created, "id": change.id})
        return
    mark = "!" if change.kind == "event" else " "
    console().print(
        f"[dim]{short_time(created)}[/] {mark} {cell(change.thing_id)}"
        f" [bold]{cell(change.name)}[/] {cell(change.value)}",
        soft_wrap=True,
    )
