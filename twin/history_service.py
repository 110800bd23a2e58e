"""The built-in service `dtw:history:readings`: stored events and values, sums of them, and the twin as of an instant.

Everything is shown as far as the caller may see it, down to single properties and events.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from pydantic_core import from_json

from things.addresses import Address, Kind
from things.durations import window_seconds
from things.errors import BadCursor, Invalid, UnknownThing
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.records import HistoryQuery, Row
from things.times import parse_time, rfc3339
from things.vocabulary import ServiceType
from twin.directory import DirectoryStore
from twin.methods import TEXT, TEXTS, TIME, Given, Method, Service, method, on_thing
from twin.readings import Readings
from twin.search import May
from twin.time_travel import TimeTravel, View
from twin.windows import AGGREGATES, nice_window_us

MAX_HISTORY_PAGE = 10_000
MAX_WINDOWS = 10_000
MAX_THINGS = 1_000


def _history_need(given: Given) -> tuple[Operation, Address]:
    thing_id = given.get("thingID")
    if thing_id is None:
        return Operation.READ, Address(HistoryService.thing_id)
    kind, names = given.get("kind"), {*given.get("names", ()), *([given["name"]] if "name" in given else ())}
    if len(names) != 1:
        return Operation.HISTORY, Address(thing_id)
    return Operation.HISTORY, Address(thing_id, Kind(kind) if kind else None, names.pop())


class HistoryService(Service):
    """Stored events and values, hot and sealed as one series."""

    thing_id = "dtw:history:readings"
    service_type = ServiceType.HISTORY_SERVICE
    title = "History"

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
        super().__init__()
        self._gateway = gateway
        self._directory = directory
        self._readings = readings
        self._may = may
        self._clock = clock
        self._then = TimeTravel(directory, readings, may, view)

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """As ever; a name that stands alone is that of an event only if the Thing has no such property."""
        operation, address = super().requirement(name, data)
        if address.name is not None and address.kind is None:
            entry = self._directory.get(address.thing_id)
            is_event = entry is not None and address.name in entry.td.events and address.name not in entry.td.properties
            address = address._replace(kind=Kind.EVENT if is_event else Kind.PROPERTY)
        return operation, address

    async def _read(self, given: Given, principal: Principal) -> JSONValue:
        things = self._things(given, principal)
        if not things:
            return {"gateway": self._gateway, "items": []}
        query = _history_query(given, things)
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

    async def _windows(self, given: Given, principal: Principal) -> JSONValue:
        """`{"window","items":[{"kind","name","from","to",…}]}`, by kind, name and time; the window is in seconds."""
        query = replace(_history_query(given, self._things(given, principal)), limit=MAX_WINDOWS + 1)
        window_us = await self._window(given, query)
        found = await self._readings.windows(query, window_us) if window_us else []
        if len(found) > MAX_WINDOWS:
            raise Invalid("this spans too many windows; use a narrower time or a wider window")
        shown = self._shown(principal)
        asked = given.get("agg", ("avg", "min", "max", "count"))
        items: list[JSONValue] = [
            _window_document(one, window_us, asked) for one in found if shown(one["thing_id"], one["kind"], one["name"])
        ]
        return {"window": window_us / 1_000_000, "items": items}

    async def _window(self, given: Given, query: HistoryQuery) -> int:
        """The length that was asked for, or that gives the number of points asked for; 0 where nothing is stored."""
        window, points = given.get("window"), given.get("points")
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

    async def _as_of(self, given: Given, principal: Principal) -> JSONValue:
        time = parse_time(given["time"])
        return await self._then.thing(given["thingID"], time, principal, given.get("protocol"))

    async def _list_as_of(self, given: Given, principal: Principal) -> JSONValue:
        return await self._then.listing(
            parse_time(given["time"]),
            principal,
            given.get("protocol"),
            after=given.get("cursor", ""),
            offset=given.get("offset", 0),
            limit=given.get("limit", 100),
        )

    async def _difference(self, given: Given, principal: Principal) -> JSONValue:
        start = parse_time(given["from"])
        end = parse_time(given["to"]) if "to" in given else self._clock()
        return await self._then.difference(
            given.get("thingID"), start, end, principal, after=given.get("cursor", ""), limit=given.get("limit", 100)
        )

    def _shown(self, principal: Principal) -> Callable[[str, str, str], bool]:
        """Whether the caller may see a series; each is decided once."""

        @cache
        def shown(thing_id: str, kind: str, name: str) -> bool:
            return self._may(principal, Operation.HISTORY, Address(thing_id, Kind(kind), name))

        return shown

    def _things(self, given: Given, principal: Principal) -> Sequence[str]:
        if "thingID" in given:
            if self._directory.get(given["thingID"]) is None:
                raise UnknownThing(given["thingID"])
            return [given["thingID"]]
        known = given["things"] if "things" in given else self._directory.ids()
        return [
            thing_id
            for thing_id in known
            if self._directory.get(thing_id) is not None and self._may(principal, Operation.HISTORY, Address(thing_id))
        ]

    methods: ClassVar[Mapping[str, Method]] = {
        "readHistory": method(
            "Read stored events and values, by time, or after a row by row id",
            _history_need,
            _read,
            {
                "thingID": TEXT,
                "things": TEXTS,
                "kind": {"enum": ["event", "property"]},
                "name": TEXT,
                "names": TEXTS,
                "from": TIME,
                "to": TIME,
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HISTORY_PAGE, "default": 1_000},
                "cursor": TEXT,
                "afterRow": {"type": "integer", "minimum": 0},
                "order": {"enum": ["asc", "desc"], "default": "asc"},
            },
        ),
        "readWindows": method(
            "Sum up stored values by windows of time, of a given length or as many as make a number of points",
            _history_need,
            _windows,
            {
                "thingID": TEXT,
                "kind": {"enum": ["event", "property"]},
                "name": TEXT,
                "names": TEXTS,
                "from": TIME,
                "to": TIME,
                "window": TEXT,
                "points": {"type": "integer", "minimum": 1, "maximum": MAX_WINDOWS},
                "agg": {"type": "array", "items": {"enum": list(AGGREGATES)}, "minItems": 1, "maxItems": 7},
            },
            ["thingID"],
        ),
        "readAsOf": method(
            "Read a Thing as it was at an instant: its description and the values of its properties",
            on_thing(Operation.HISTORY),
            _as_of,
            {"thingID": TEXT, "time": TIME, "protocol": TEXT},
            ["thingID", "time"],
        ),
        "listAsOf": method(
            "List the Thing Descriptions of an instant in order of their ids",
            _history_need,
            _list_as_of,
            {
                "time": TIME,
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_THINGS, "default": 100},
                "offset": {"type": "integer", "minimum": 0},
                "cursor": TEXT,
                "protocol": TEXT,
            },
            ["time"],
        ),
        "difference": method(
            "What is different at one instant (now, if none is given) from what was at another, of a Thing or of all",
            _history_need,
            _difference,
            {
                "thingID": TEXT,
                "from": TIME,
                "to": TIME,
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_THINGS, "default": 100},
                "cursor": TEXT,
            },
            ["from"],
        ),
    }


def _history_query(given: Given, things: Sequence[str]) -> HistoryQuery:
    start, end, cursor, after_row = (given.get(name) for name in ("from", "to", "cursor", "afterRow"))
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
    return HistoryQuery(
        things=things,
        kind=Kind(given["kind"]) if "kind" in given else None,
        names=[*given.get("names", ()), *([given["name"]] if "name" in given else ())],
        start=None if start is None else parse_time(start),
        end=None if end is None else parse_time(end),
        after_row=after_row,
        after=after,
        descending=given.get("order") == "desc" and after_row is None,
        limit=given.get("limit", 1_000),
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
