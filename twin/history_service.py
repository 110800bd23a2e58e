"""The built-in service `dtw:history:readings`: stored events and values, sums of them, and the twin as of an instant.

Everything is shown as far as the caller may see it, down to single properties and events.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic_core import from_json

from things.addresses import Address, Kind
from things.durations import window_seconds
from things.errors import BadCursor, Invalid, UnknownThing
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Method, MethodService, on_service, on_thing
from things.records import HistoryQuery, Row
from things.service_ids import HISTORY
from things.times import rfc3339
from things.vocabulary import ServiceType
from twin.directory import DirectoryStore
from twin.inputs import MAX_WINDOWS, Difference, ListAsOf, ReadHistory, ReadWindows, Series, ThingAsOf
from twin.readings import Readings
from twin.search import May
from twin.time_travel import TimeTravel, View
from twin.windows import nice_window_us


def _need(given: Series) -> tuple[Operation, Address]:
    if given.thing_id is None:
        return Operation.READ, Address(HISTORY)
    names = set(given.all_names)
    if len(names) != 1:
        return Operation.HISTORY, Address(given.thing_id)
    return Operation.HISTORY, Address(given.thing_id, given.series_kind, names.pop())


def _difference_need(given: Difference) -> tuple[Operation, Address]:
    if given.thing_id is None:
        return Operation.READ, Address(HISTORY)
    return Operation.HISTORY, Address(given.thing_id)


class HistoryService(MethodService):
    """Stored events and values, hot and sealed as one series."""

    def __init__(
        self,
        directory: DirectoryStore,
        readings: Readings,
        may: May,
        view: View,
        *,
        clock: Callable[[], int],
        gateway: str = "",
    ) -> None:
        """`gateway` is the id under which the readings lie in a lake."""
        self._gateway = gateway
        self._directory = directory
        self._readings = readings
        self._may = may
        self._clock = clock
        self._then = TimeTravel(directory, readings, may, view)
        super().__init__(
            HISTORY,
            Operation.READ,
            [
                Method(
                    name="readHistory",
                    title="Read stored events and values, by time, or after a row by row id",
                    input=ReadHistory,
                    run=self._read,
                    needs=_need,
                    safe=True,
                ),
                Method(
                    name="readWindows",
                    title=(
                        "Sum up stored values by windows of time, of a given length or as many as make a number of"
                        " points"
                    ),
                    input=ReadWindows,
                    run=self._windows,
                    needs=_need,
                    safe=True,
                ),
                Method(
                    name="readAsOf",
                    title="Read a Thing as it was at an instant: its description and the values of its properties",
                    input=ThingAsOf,
                    run=self._as_of,
                    needs=on_thing(Operation.HISTORY),
                    safe=True,
                ),
                Method(
                    name="listAsOf",
                    title="List the Thing Descriptions of an instant in order of their ids",
                    input=ListAsOf,
                    run=self._list_as_of,
                    needs=on_service(Operation.READ, HISTORY),
                    safe=True,
                ),
                Method(
                    name="difference",
                    title=(
                        "What is different at one instant (now, if none is given) from what was at another,"
                        " of a Thing or of all"
                    ),
                    input=Difference,
                    run=self._difference,
                    needs=_difference_need,
                    safe=True,
                ),
            ],
            type_=ServiceType.HISTORY_SERVICE,
            title="History",
            description="Stored events and values, sums of them, and Things as they were.",
        )

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """As ever; a name that stands alone is that of an event only if the Thing has no such property."""
        operation, address = super().requirement(name, data)
        if address.name is not None and address.kind is None:
            entry = self._directory.get(address.thing_id)
            is_event = entry is not None and address.name in entry.td.events and address.name not in entry.td.properties
            address = address._replace(kind=Kind.EVENT if is_event else Kind.PROPERTY)
        return operation, address

    async def _read(self, given: ReadHistory, principal: Principal) -> JSONValue:
        things = self._things(given, principal)
        if not things:
            return {"gateway": self._gateway, "items": []}
        query = _page_query(given, things)
        rows = await self._readings.read(query)
        shown = self._shown(principal)
        items: list[JSONValue] = [_row_document(row) for row in rows if shown(row.thing_id, row.kind, row.name)]
        # The cursor is that of the last row looked at, shown or not: a page may be short, a listing has no hole.
        if len(rows) < query.limit:
            return {"gateway": self._gateway, "items": items}
        return {
            "gateway": self._gateway,
            "items": items,
            "cursor": _cursor(rows[-1], by_row=query.after_row is not None),
        }

    async def _windows(self, given: ReadWindows, principal: Principal) -> JSONValue:
        """`{"window","items":[{"kind","name","from","to",…}]}`, by kind, name and time; the window is in seconds."""
        query = replace(_query(given, self._things(given, principal)), limit=MAX_WINDOWS + 1)
        window_us = await self._window(given, query)
        found = await self._readings.windows(query, window_us) if window_us else []
        if len(found) > MAX_WINDOWS:
            raise Invalid("this spans too many windows; use a narrower time or a wider window")
        shown = self._shown(principal)
        asked = given.agg
        items: list[JSONValue] = [
            _window_document(one, window_us, asked) for one in found if shown(one["thing_id"], one["kind"], one["name"])
        ]
        return {"window": window_us / 1_000_000, "items": items}

    async def _window(self, given: ReadWindows, query: HistoryQuery) -> int:
        """The length that was asked for, or that gives the number of points asked for; 0 where nothing is stored."""
        window, points = given.window, given.points
        if (window is None) == (points is None):
            raise Invalid("either a window such as 5m or a number of points is needed")
        if window is not None:
            return max(1, round(window_seconds(window) * 1_000_000))
        start, end = query.start, self._clock() if query.end is None else query.end
        if start is None:
            oldest = await self._readings.read(replace(query, limit=1))
            if not oldest:
                return 0
            start = oldest[0].created
        return nice_window_us(max(end - start, 1), points or 1)

    async def _as_of(self, given: ThingAsOf, principal: Principal) -> JSONValue:
        return await self._then.thing(given.thing_id, given.time, principal, given.protocol)

    async def _list_as_of(self, given: ListAsOf, principal: Principal) -> JSONValue:
        return await self._then.listing(
            given.time,
            principal,
            given.protocol,
            after=given.cursor or "",
            offset=given.offset,
            limit=given.limit,
        )

    async def _difference(self, given: Difference, principal: Principal) -> JSONValue:
        end = self._clock() if given.end is None else given.end
        return await self._then.difference(
            given.thing_id, given.start, end, principal, after=given.cursor or "", limit=given.limit
        )

    def _shown(self, principal: Principal) -> Callable[[str, str, str], bool]:
        """Whether the caller may see a series; each is decided once."""

        @cache
        def shown(thing_id: str, kind: str, name: str) -> bool:
            return self._may(principal, Operation.HISTORY, Address(thing_id, Kind(kind), name))

        return shown

    def _things(self, given: Series, principal: Principal) -> Sequence[str]:
        if given.thing_id is not None:
            if self._directory.get(given.thing_id) is None:
                raise UnknownThing(given.thing_id)
            return [given.thing_id]
        asked = given.things if isinstance(given, ReadHistory) else None
        known = self._directory.ids() if asked is None else asked
        return [
            thing_id
            for thing_id in known
            if self._directory.get(thing_id) is not None and self._may(principal, Operation.HISTORY, Address(thing_id))
        ]


def _query(given: Series, things: Sequence[str]) -> HistoryQuery:
    return HistoryQuery(things=things, kind=given.series_kind, names=given.all_names, start=given.start, end=given.end)


def _page_query(given: ReadHistory, things: Sequence[str]) -> HistoryQuery:
    cursor, after_row = given.cursor, given.after_row
    after = None
    if cursor is not None:
        created, _, row_id = cursor.partition(".")
        if not (created.lstrip("-").isdecimal() and row_id.isdecimal() and created.isascii() and row_id.isascii()):
            if not (cursor.isascii() and cursor.isdecimal()):
                raise BadCursor(cursor)
            after_row = int(cursor)
        else:
            after = (int(created), int(row_id))
    if any(abs(number) >= 2**63 for number in (*(after or ()), after_row or 0)):
        raise BadCursor(str(cursor or after_row))
    return replace(
        _query(given, things),
        after_row=after_row,
        after=after,
        descending=given.order == "desc" and after_row is None,
        limit=given.limit,
    )


def _cursor(row: Row, *, by_row: bool) -> str:
    return str(row.row_id) if by_row else f"{row.created}.{row.row_id}"


def _window_document(one: Mapping[str, Any], window_us: int, asked: Sequence[str]) -> dict[str, JSONValue]:
    begin = one["begin"]
    sums = {**one, "first": from_json(one["first"]), "last": from_json(one["last"])}
    return {
        "kind": one["kind"],
        "name": one["name"],
        "from": rfc3339(begin),
        "to": rfc3339(begin + window_us),
        **{name: sums[name] for name in asked},
    }


def _row_document(row: Row) -> dict[str, JSONValue]:
    return {
        "rowID": row.row_id,
        "thingID": row.thing_id,
        "kind": row.kind,
        "name": row.name,
        "value": from_json(row.value),
        "created": rfc3339(row.created),
        "received": rfc3339(row.received),
        "quality": row.quality,
        "tdVersion": row.td_version,
        **({} if row.source_time is None else {"sourceTime": rfc3339(row.source_time)}),
    }
