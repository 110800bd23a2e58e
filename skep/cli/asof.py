"""`skep asof`: every property as it stood at a moment, and what changed between two."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

import click

from skep.cli.access import Access, access_options, with_consumer
from skep.cli.moments import moment
from skep.cli.output import items_of, print_json, print_table, short_time
from skep.consumer import Consumer
from skep.patterns import ChangePattern
from things.errors import NotFound
from things.messages import JSONValue
from things.service_ids import HISTORY, is_service
from things.times import rfc3339

AT_ONCE = 8
PAGE = 500

_Row = dict[str, JSONValue]


@click.command(
    epilog="""\b
Examples:
  skep asof '10 minutes ago'
  skep asof 2026-03-31T14:00:00Z dtw:pumps:pump-1
  skep asof '1 day ago' --to now
"""
)
@click.argument("time")
@click.argument("pattern", default="dtw:*")
@click.option("--to", "until", help="Show what was different at this later moment instead.")
@access_options
def asof(access: Access, time: str, pattern: str, until: str | None) -> None:
    """Show the value every property had at TIME: a moment, or how long ago."""
    then, wanted = moment(time), ChangePattern.parse(pattern)
    if until is not None:
        _show_changes(access, then, moment(until), wanted)
        return

    async def work(consumer: Consumer) -> list[_Row]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(thing_id: str) -> list[_Row]:
            async with gate:
                return [row for row in await _values(consumer, thing_id, then) if _is_meant(wanted, row)]

        found = await asyncio.gather(*map(one, await _things(consumer, then, wanted)))
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


async def _things(consumer: Consumer, then: int, wanted: ChangePattern) -> list[str]:
    """Things of today, whose history may begin before they were described here, and those that were there then."""
    ids = {thing.id for thing in await consumer.things()}
    async for page in _pages(consumer, "listAsOf", {"time": rfc3339(then), "limit": PAGE}):
        ids |= {str(td.get("id")) for td in page}
    whole = replace(wanted, name="*")
    return sorted(one for one in ids if not is_service(one) and whole.matches(one, "property", ""))


async def _pages(consumer: Consumer, method: str, asked: _Row) -> AsyncGenerator[list[_Row], None]:
    while True:
        page = await consumer.call(HISTORY, method, asked)
        yield [dict(item) for item in items_of(page)]
        cursor = page.get("cursor") if isinstance(page, dict) else None
        if not isinstance(cursor, str):
            return
        asked = {**asked, "cursor": cursor}


async def _values(consumer: Consumer, thing_id: str, then: int) -> list[_Row]:
    try:
        found = await consumer.call(HISTORY, "readAsOf", {"thingID": thing_id, "time": rfc3339(then)})
    except NotFound:
        return []
    properties = found.get("properties") if isinstance(found, dict) else None
    if not isinstance(properties, dict):
        return []
    return [
        {"thingID": thing_id, "kind": "property", "name": name, **value}
        for name, value in properties.items()
        if isinstance(value, dict)
    ]


def _is_meant(wanted: ChangePattern, row: _Row) -> bool:
    return wanted.matches(str(row["thingID"]), "property", str(row["name"]))


def _show_changes(access: Access, start: int, end: int, wanted: ChangePattern) -> None:
    asked: dict[str, JSONValue] = {"from": rfc3339(start), "to": rfc3339(end), "limit": PAGE}

    async def work(consumer: Consumer) -> list[_Row]:
        return [item async for page in _pages(consumer, "difference", asked) for item in page]

    whole = replace(wanted, name="*")
    found = [item for item in with_consumer(access, work) if whole.matches(str(item.get("thingID")), "property", "")]
    if access.json:
        print_json(found)
        return
    lines = (line for item in found for line in _lines(item, wanted))
    print_table(("thing", "what", "then", "later"), lines, empty="nothing changed")


def _lines(item: _Row, wanted: ChangePattern) -> Iterator[tuple[JSONValue, ...]]:
    thing_id, patch, properties = item.get("thingID"), item.get("patch"), item.get("properties")
    if item.get("change") is not None and wanted.name == "*":
        yield thing_id, "description", None, item["change"] if patch is None else ", ".join(_keys(patch))
    for name, change in properties.items() if isinstance(properties, dict) else ():
        if isinstance(change, dict) and wanted.matches(str(thing_id), "property", name):
            yield thing_id, name, *(_value(change.get(side)) for side in ("from", "to"))


def _keys(patch: JSONValue) -> list[str]:
    return list(patch) if isinstance(patch, dict) else []


def _value(document: JSONValue) -> JSONValue:
    return document.get("value") if isinstance(document, dict) else None
