"""The built-in service `dtw:history:readings`: stored events and values, as far as the caller may see them."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic_core import from_json

from things.addresses import Address, Kind
from things.errors import BadCursor, UnknownThing
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.records import HistoryQuery, Row
from things.times import parse_time, rfc3339
from twin.directory import DirectoryStore
from twin.history import HistoryStore
from twin.methods import TEXT, TEXTS, TIME, Given, Method, Service, method
from twin.search import May

MAX_HISTORY_PAGE = 10_000


def _history_need(given: Given) -> tuple[Operation, Address]:
    thing_id = given.get("thingID")
    if thing_id is None:
        return Operation.READ, Address(HistoryService.thing_id)
    kind, name = given.get("kind"), given.get("name")
    return Operation.HISTORY, Address(thing_id, kind and Kind(kind), name) if kind and name else Address(thing_id)


class HistoryService(Service):
    """Stored events and values."""

    thing_id = "dtw:history:readings"
    title = "History"

    def __init__(self, directory: DirectoryStore, history: HistoryStore, may: May) -> None:
        super().__init__()
        self._directory = directory
        self._history = history
        self._may = may

    async def _read(self, given: Given, principal: Principal) -> JSONValue:
        things = self._things(given, principal)
        if not things:
            return {"items": []}
        query = _history_query(given, things)
        rows = await self._history.read(query)
        allowed: dict[tuple[str, str, str], bool] = {}
        items: list[JSONValue] = []
        for row in rows:
            series = (row.thing_id, row.kind, row.name)
            if series not in allowed:
                address = Address(row.thing_id, Kind(row.kind), row.name)
                allowed[series] = self._may(principal, Operation.HISTORY, address)
            if allowed[series]:
                items.append(_row_document(row))
        # The cursor is that of the last row looked at, shown or not: a page may be short, a listing has no hole.
        if len(rows) < query.limit:
            return {"items": items}
        return {"items": items, "cursor": _cursor(rows[-1], by_row=query.after_row is not None)}

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
        )
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
    }
