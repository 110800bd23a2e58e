"""Reading through the built-in services: the one place that knows their Things, methods and answers.

HTTP's GET paths only spell calls that every binding could make; the services decide and trim by the caller's rights.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from bindings.http.exchange import Exchange
from things.errors import UnknownThing
from things.messages import JSONValue
from things.service_ids import DIRECTORY, HISTORY, REQUESTS, VALUES
from things.times import rfc3339

_DESCRIBING = frozenset({DIRECTORY, HISTORY})
"""Services whose answers hold addresses of ours."""


async def call(exchange: Exchange, service: str, method: str, **data: JSONValue) -> Any:
    """Call a method with the members that have a value."""
    given: dict[str, JSONValue] = {name: value for name, value in data.items() if value is not None}
    return await exchange.context.sink.call(
        exchange.principal,
        service,
        method,
        given,
        exchange.placed_origin if service in _DESCRIBING else exchange.origin,
        confirmation=exchange.confirmation(),
    )


async def td(exchange: Exchange, thing_id: str) -> dict[str, Any]:
    """The TD as this caller may see it; raises UnknownThing."""
    found = await call(exchange, DIRECTORY, "readTD", thingID=thing_id)
    if not isinstance(found, dict):
        raise UnknownThing(thing_id)
    return found


async def changes(exchange: Exchange, after: int | None, *, diff: bool, limit: int) -> dict[str, Any]:
    """`{"items":[{"id","change","thingID",…}],"last"}`: changes of the directory after one, oldest first, and the
    `after` of the next question."""
    return cast(dict[str, Any], await call(exchange, DIRECTORY, "listChanges", after=after, diff=diff, limit=limit))


async def property_value(exchange: Exchange, thing_id: str, name: str) -> dict[str, Any]:
    """`{"value","created",…}` of a property; raises UnknownThing, UnknownName, or NotFound while it has no value."""
    return cast(dict[str, Any], await call(exchange, VALUES, "readProperty", thingID=thing_id, name=name))


async def property_values(exchange: Exchange, thing_id: str) -> Mapping[str, Any]:
    """Value documents of all properties by name."""
    return cast(Mapping[str, Any], await call(exchange, VALUES, "readProperties", thingID=thing_id))


async def some_values(exchange: Exchange, thing_id: str, names: Sequence[str]) -> dict[str, JSONValue]:
    """The values of these properties by name; raises as `property_value` for the first that has none."""
    found = await property_values(exchange, thing_id)
    for name in names:
        if name not in found:
            # Says by itself whether the name is unknown, hidden or without a value.
            await property_value(exchange, thing_id, name)
    return {name: found[name]["value"] for name in names if name in found}


async def history(exchange: Exchange, **query: JSONValue) -> dict[str, Any]:
    """`{"items":[…],"cursor"}` of stored events and values."""
    return cast(dict[str, Any], await call(exchange, HISTORY, "readHistory", **query))


async def windows(exchange: Exchange, **query: JSONValue) -> dict[str, Any]:
    """`{"window","items":[…]}`: sums of a Thing's stored values by windows of time."""
    return cast(dict[str, Any], await call(exchange, HISTORY, "readWindows", **query))


async def thing_as_of(exchange: Exchange, thing_id: str, time: int) -> dict[str, Any]:
    """`{"td","published","properties":{name: {"value",…}}}` of a Thing at an instant (µs); raises UnknownThing."""
    found = await call(
        exchange, HISTORY, "readAsOf", thingID=thing_id, time=rfc3339(time), protocol=exchange.one("forms")
    )
    return cast(dict[str, Any], found)


async def rows_after(
    exchange: Exchange,
    row_id: int,
    *,
    things: Sequence[str],
    kind: str | None,
    names: Sequence[str],
    limit: int,
) -> tuple[list[dict[str, Any]], int | None]:
    """The next rows by row id, for replays and long polls, and the row to go on from; None at the end. A page may be
    short of what the caller may not see."""
    query: dict[str, JSONValue] = {"afterRow": row_id, "limit": limit}
    if things:
        query["things"] = list(things)
    if names:
        query["names"] = list(names)
    if kind is not None:
        query["kind"] = kind
    found = await history(exchange, **query)
    cursor = found.get("cursor")
    return found["items"], None if cursor is None else int(cursor)


async def request(exchange: Exchange, request_id: str) -> dict[str, Any]:
    """One row of the ledger; raises UnknownRequest for foreign ones too."""
    return cast(dict[str, Any], await call(exchange, REQUESTS, "readRequest", requestID=request_id))


async def requests(exchange: Exchange, **query: JSONValue) -> dict[str, Any]:
    """`{"items":[…],"cursor"}`, newest first."""
    return cast(dict[str, Any], await call(exchange, REQUESTS, "listRequests", **query))


async def inbox(exchange: Exchange, after: int, limit: int) -> list[dict[str, Any]]:
    """Statuses of the caller's requests with a higher seq."""
    found = await call(exchange, REQUESTS, "readInbox", after=after, limit=limit)
    return cast(list[dict[str, Any]], found["items"] if isinstance(found, dict) else found)
