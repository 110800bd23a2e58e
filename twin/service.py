"""The twin's built-in services: Things whose actions are methods, one implementation behind every binding.

`dtw:directory:things` reads and writes Thing Descriptions, `dtw:values:latest` reads latest values,
`dtw:history:readings` stored ones. A caller needs for a method what its `requirement` says; what is listed is trimmed
to what the caller may see, down to single properties and events, and what is hidden looks unknown.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_core import from_json

from things.addresses import Address, Kind, TwinID, is_twin
from things.errors import (
    BadCursor,
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    UnknownName,
    UnknownThing,
)
from things.filters import MAX_FILTER_CHARS, parse_filter
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.records import Entry, HistoryQuery, Row, Value
from things.schemas import DataSchema
from things.td import ThingDescription
from things.times import parse_time, rfc3339
from things.vocabulary import Term
from twin.directory import OVERLAY_MEMBERS, DirectoryStore, TDVersion
from twin.history import HistoryStore
from twin.search import May, Search
from twin.values import LatestValues

View = Callable[[Entry, Principal, str | None], dict[str, Any]]
"""What a principal who may know of an entry gets to see of it, for one protocol or all."""

PresenceValues = Callable[[str], Mapping[str, JSONValue]]
"""`online` and `lastSeen` of a Thing, by the property names under which they are told."""

MAX_PAGE = 1_000
MAX_HISTORY_PAGE = 10_000
_AT_A_TIME = 200
"""Things looked at before others have a turn in the loop."""

_TEXT = {"type": "string", "minLength": 1, "maxLength": 512}
_TEXTS = {"type": "array", "items": _TEXT, "maxItems": 10_000}
_TIME = {"type": "string", "format": "date-time"}
_OBJECT = {"type": "object"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 100}

Given = Mapping[str, Any]
_Carry = Callable[[Any, Given, Principal], Awaitable[JSONValue]]
_Need = Callable[[Given], tuple[Operation, Address]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    title: str
    needs: _Need
    carry: _Carry
    schema: DataSchema
    is_safe: bool

    @property
    def action(self) -> dict[str, Any]:
        """The method as its TD describes it."""
        action = {"title": self.title, "input": self.schema.definition, "output": _OBJECT}
        return action | ({"safe": True, "idempotent": True} if self.is_safe else {})


def _method(
    title: str, needs: _Need, carry: _Carry, members: Given, required: Sequence[str] = (), *, is_safe: bool = True
) -> _Method:
    definition = {
        "type": "object",
        "properties": dict(members),
        "required": list(required),
        "additionalProperties": False,
    }
    return _Method(title=title, needs=needs, carry=carry, schema=DataSchema(definition), is_safe=is_safe)


class _Service:
    """What the services share: their methods make their TD, and a method's schema guards its input."""

    thing_id: ClassVar[str]
    title: ClassVar[str]
    methods: ClassVar[Mapping[str, _Method]]

    def __init__(self) -> None:
        self.td: dict[str, Any] = {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
            "@type": "skep:Service",
            "title": self.title,
            "actions": {name: method.action for name, method in self.methods.items()},
        }

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method with this input amounts to, for the decision. Raises UnknownName, Invalid."""
        given = {} if data is None else data
        method = self._method(name)
        method.schema.check(given, f"input of {name}")
        assert isinstance(given, dict)
        return method.needs(given)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; the input is what `requirement` was asked about. Raises SkepError."""
        given = {} if data is None else data
        assert isinstance(given, dict)
        return await self._method(name).carry(self, given, principal)

    def _method(self, name: str) -> _Method:
        method = self.methods.get(name)
        if method is None:
            raise UnknownName(self.thing_id, Kind.ACTION, name)
        return method


def _to(operation: Operation) -> _Need:
    return lambda given: (operation, Address(given["thingID"]))


# ---------------------------------------------------------------- directory


class DirectoryService(_Service):
    """Thing Descriptions: read by everyone as far as they may see, other entries written by managers and services."""

    thing_id = "dtw:directory:things"
    title = "Directory"

    def __init__(self, directory: DirectoryStore, may: May, view: View, search: Search) -> None:
        super().__init__()
        self._directory = directory
        self._may = may
        self._view = view
        self._search = search
        self._writing = asyncio.Lock()

    async def _read(self, given: Given, principal: Principal) -> JSONValue:
        return self._view(self._known(given, principal), principal, given.get("protocol"))

    async def _read_entry(self, given: Given, principal: Principal) -> JSONValue:
        entry = self._known(given, principal)
        return {**_entry_document(entry), "td": self._view(entry, principal, given.get("protocol"))}

    def _known(self, given: Given, principal: Principal) -> Entry:
        entry = self._directory.get(given["thingID"])
        if entry is None or not self._may(principal, Operation.READ, Address(entry.thing_id)):
            raise UnknownThing(given["thingID"])
        return entry

    async def _list(self, given: Given, principal: Principal) -> JSONValue:
        """A page; the cursor is the id of its last entry."""
        if given.get("count"):
            return {"items": [], "total": sum([1 async for _ in self._found(given, principal)])}
        limit, skipped = given.get("limit", 100), given.get("offset", 0)
        items: list[JSONValue] = []
        last = ""
        async for entry in self._found(given, principal):
            if skipped:
                skipped -= 1
            elif len(items) == limit:
                return {"items": items, "cursor": last}
            else:
                items.append(self._view(entry, principal, given.get("protocol")))
                last = entry.thing_id
        return {"items": items}

    async def _found(self, given: Given, principal: Principal) -> AsyncIterator[Entry]:
        """The entries that the caller may know of and asked for, in order of their ids."""
        agent, type_, text = given.get("agent"), given.get("type"), given.get("text", "").casefold()
        filter_ = parse_filter(given["filter"]) if "filter" in given else None
        after = given.get("cursor", "")
        if filter_ is not None:
            candidates = self._search.candidates(filter_, after)
        else:
            candidates = self._directory.ids() if agent is None else self._directory.things_of(agent)
        for looked_at, thing_id in enumerate(candidates):
            if looked_at % _AT_A_TIME == _AT_A_TIME - 1:
                await asyncio.sleep(0)
            entry = self._directory.get(thing_id) if thing_id > after else None
            if (
                entry is not None
                and (agent is None or entry.agent == agent)
                and (type_ is None or type_ in entry.td.types)
                and (not text or text in str(entry.overlay.get("title", entry.td.title)).casefold())
                and self._may(principal, Operation.READ, Address(thing_id))
                and (filter_ is None or self._search.passes(filter_, entry, principal))
            ):
                yield entry

    async def _versions(self, given: Given, principal: Principal) -> JSONValue:
        """When which version was published; removals are versions without a TD."""
        found = await self._directory.versions(given["thingID"])
        if not found:
            raise UnknownThing(given["thingID"])
        return {"items": [_version_document(version) for version in found]}

    async def _as_of(self, given: Given, principal: Principal) -> JSONValue:
        """The TD as the caller would have seen it, with today's rights and addresses."""
        thing_id = given["thingID"]
        version = await self._directory.as_of(thing_id, parse_time(given["time"]))
        if version is None or version.td is None:
            raise UnknownThing(thing_id)
        entry = Entry(
            thing_id=thing_id,
            td=version.td,
            agent=TwinID.parse(thing_id).account if is_twin(thing_id) else None,
            version=version.version,
            created=version.published,
            modified=version.published,
        )
        document = dict(self._view(entry, principal, given.get("protocol")))
        # Whether its agent is here now says nothing about then.
        for name in (Term.ONLINE.value, Term.LAST_SEEN.value):
            document.pop(name, None)
        return {**_version_document(version), "td": document}

    async def _register(self, given: Given, principal: Principal) -> JSONValue:
        thing_id, document = given["thingID"], given["td"]
        if document.get("id", thing_id) != thing_id:
            raise Invalid("the TD's id is another one than that of the entry")
        expires = given.get("expires")
        td = ThingDescription.of({**document, "id": thing_id})
        async with self._writing:
            before = self._standing(given)
            entry = await self._directory.put(
                thing_id, td, agent=None, expires=None if expires is None else parse_time(expires)
            )
        return {**_entry_document(entry), "isNew": before is None}

    async def _update(self, given: Given, principal: Principal) -> JSONValue:
        thing_id, patch = given["thingID"], given["patch"]
        if patch.get("id", thing_id) != thing_id:
            raise Invalid("the id of an entry cannot be changed")
        async with self._writing:
            before = self._standing(given)
            if before is None:
                raise UnknownThing(thing_id)
            td = ThingDescription.of(_merged(before.td.document, {**patch, "id": thing_id}))
            entry = await self._directory.put(thing_id, td, agent=None, expires=before.expires)
        return _entry_document(entry)

    async def _remove(self, given: Given, principal: Principal) -> JSONValue:
        async with self._writing:
            self._standing(given)
            if not await self._directory.remove(given["thingID"]):
                raise UnknownThing(given["thingID"])
        return {}

    async def _overlay(self, given: Given, principal: Principal) -> JSONValue:
        async with self._writing:
            if self._directory.get(given["thingID"]) is None:
                raise UnknownThing(given["thingID"])
            overlay = {name: given[name] for name in OVERLAY_MEMBERS if name in given}
            return _entry_document(await self._directory.set_overlay(given["thingID"], overlay))

    def _standing(self, given: Given) -> Entry | None:
        """The entry that a write is about, if what the writer believes of it is true."""
        if is_twin(given["thingID"]):
            raise Forbidden("a twin's TD is published by its own agent only")
        entry = self._directory.get(given["thingID"])
        wanted, unwanted = given.get("ifMatch"), given.get("ifNoneMatch")
        if wanted is not None and (entry is None or wanted not in ("*", entry.etag)):
            raise PreconditionFailed("the entry is not as it was")
        if unwanted is not None and entry is not None and unwanted in ("*", entry.etag):
            raise PreconditionFailed("the entry is there already")
        return entry

    methods: ClassVar[Mapping[str, _Method]] = {
        "readTD": _method(
            "Read a Thing Description", _to(Operation.READ), _read, {"thingID": _TEXT, "protocol": _TEXT}, ["thingID"]
        ),
        "readEntry": _method(
            "Read a Thing Description with its registration",
            _to(Operation.READ),
            _read_entry,
            {"thingID": _TEXT, "protocol": _TEXT},
            ["thingID"],
        ),
        "listTDs": _method(
            "List Thing Descriptions in order of their ids",
            lambda given: (Operation.READ, Address(DirectoryService.thing_id)),
            _list,
            {
                "limit": _LIMIT,
                "offset": {"type": "integer", "minimum": 0},
                "cursor": _TEXT,
                "agent": _TEXT,
                "type": _TEXT,
                "text": _TEXT,
                "filter": {"type": "string", "minLength": 1, "maxLength": MAX_FILTER_CHARS},
                "protocol": _TEXT,
                "count": {"type": "boolean"},
            },
        ),
        "listVersions": _method(
            "When a Thing's description was published, changed and removed",
            _to(Operation.READ),
            _versions,
            {"thingID": _TEXT},
            ["thingID"],
        ),
        "readTDAsOf": _method(
            "Read the Thing Description of an instant of the past",
            _to(Operation.READ),
            _as_of,
            {"thingID": _TEXT, "time": _TIME, "protocol": _TEXT},
            ["thingID", "time"],
        ),
        "registerTD": _method(
            "Create or replace an entry that no agent speaks for",
            _to(Operation.PUBLISH_TD),
            _register,
            {"thingID": _TEXT, "td": _OBJECT, "expires": _TIME, "ifMatch": _TEXT, "ifNoneMatch": _TEXT},
            ["thingID", "td"],
            is_safe=False,
        ),
        "updateTD": _method(
            "Change members of such an entry (JSON merge patch)",
            _to(Operation.PUBLISH_TD),
            _update,
            {"thingID": _TEXT, "patch": _OBJECT, "ifMatch": _TEXT},
            ["thingID", "patch"],
            is_safe=False,
        ),
        "removeTD": _method(
            "Remove such an entry",
            _to(Operation.REMOVE_TD),
            _remove,
            {"thingID": _TEXT, "ifMatch": _TEXT},
            ["thingID"],
            is_safe=False,
        ),
        "setOverlay": _method(
            "Lay a title or description over what the agent publishes; null takes it away",
            _to(Operation.MANAGE),
            _overlay,
            {
                "thingID": _TEXT,
                "title": {"oneOf": [_TEXT, {"type": "null"}]},
                "description": {"oneOf": [{"type": "string", "maxLength": 8_192}, {"type": "null"}]},
            },
            ["thingID"],
            is_safe=False,
        ),
    }


# ---------------------------------------------------------------- latest values


class ValuesService(_Service):
    """Latest values of properties and events."""

    thing_id = "dtw:values:latest"
    title = "Latest values"

    def __init__(
        self,
        directory: DirectoryStore,
        values: LatestValues,
        may: May,
        *,
        presence: PresenceValues = lambda thing_id: {},
        clock: Callable[[], int],
    ) -> None:
        super().__init__()
        self._directory = directory
        self._values = values
        self._may = may
        self._presence = presence
        self._clock = clock

    async def _one(self, kind: Kind, given: Given) -> JSONValue:
        thing_id, name = given["thingID"], given["name"]
        entry = self._directory.get(thing_id)
        if entry is None:
            raise UnknownThing(thing_id)
        value = self._values.get(thing_id, kind, name)
        if value is None and kind is Kind.PROPERTY and name in (told := self._presence(thing_id)):
            return self._told(told[name])
        if value is None:
            if entry.td.affordance(kind, name) is None:
                raise UnknownName(thing_id, kind, name)
            raise NotFound(f"{kind.value} {name!r} has no value yet")
        return _value_document(value)

    async def _all(self, kind: Kind, given: Given, principal: Principal) -> JSONValue:
        thing_id = given["thingID"]
        if self._directory.get(thing_id) is None:
            raise UnknownThing(thing_id)
        found = {
            name: _value_document(value)
            for (of_kind, name), value in self._values.of_thing(thing_id).items()
            if of_kind is kind
        }
        if kind is Kind.PROPERTY:
            found = {name: self._told(value) for name, value in self._presence(thing_id).items()} | found
        return {
            name: document
            for name, document in found.items()
            if self._may(principal, Operation.READ, Address(thing_id, kind, name))
        }

    def _told(self, value: JSONValue) -> dict[str, JSONValue]:
        """A value that is worked out when it is read, and so has no row."""
        now = rfc3339(self._clock())
        return {"value": value, "created": now, "received": now, "rowID": 0, "quality": 0}

    async def _property(self, given: Given, principal: Principal) -> JSONValue:
        return await self._one(Kind.PROPERTY, given)

    async def _properties(self, given: Given, principal: Principal) -> JSONValue:
        return await self._all(Kind.PROPERTY, given, principal)

    async def _event(self, given: Given, principal: Principal) -> JSONValue:
        return await self._one(Kind.EVENT, given)

    async def _events(self, given: Given, principal: Principal) -> JSONValue:
        return await self._all(Kind.EVENT, given, principal)

    methods: ClassVar[Mapping[str, _Method]] = {
        "readProperty": _method(
            "Read the latest value of a property",
            lambda given: (Operation.READ, Address(given["thingID"], Kind.PROPERTY, given["name"])),
            _property,
            {"thingID": _TEXT, "name": _TEXT},
            ["thingID", "name"],
        ),
        "readProperties": _method(
            "Read the latest values of all properties of a Thing",
            _to(Operation.READ),
            _properties,
            {"thingID": _TEXT},
            ["thingID"],
        ),
        "readEvent": _method(
            "Read the latest event of a name",
            lambda given: (Operation.READ, Address(given["thingID"], Kind.EVENT, given["name"])),
            _event,
            {"thingID": _TEXT, "name": _TEXT},
            ["thingID", "name"],
        ),
        "readEvents": _method(
            "Read the latest event of every name of a Thing",
            _to(Operation.READ),
            _events,
            {"thingID": _TEXT},
            ["thingID"],
        ),
    }


# ---------------------------------------------------------------- history


def _history_need(given: Given) -> tuple[Operation, Address]:
    thing_id = given.get("thingID")
    if thing_id is None:
        return Operation.READ, Address(HistoryService.thing_id)
    kind, name = given.get("kind"), given.get("name")
    return Operation.HISTORY, Address(thing_id, kind and Kind(kind), name) if kind and name else Address(thing_id)


class HistoryService(_Service):
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

    methods: ClassVar[Mapping[str, _Method]] = {
        "readHistory": _method(
            "Read stored events and values, by time, or after a row by row id",
            _history_need,
            _read,
            {
                "thingID": _TEXT,
                "things": _TEXTS,
                "kind": {"enum": ["event", "property"]},
                "name": _TEXT,
                "names": _TEXTS,
                "from": _TIME,
                "to": _TIME,
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_HISTORY_PAGE, "default": 1_000},
                "cursor": _TEXT,
                "afterRow": {"type": "integer", "minimum": 0},
                "order": {"enum": ["asc", "desc"], "default": "asc"},
            },
        )
    }


# ---------------------------------------------------------------- documents


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


def _value_document(value: Value) -> dict[str, JSONValue]:
    return {
        "value": value.value,
        "created": rfc3339(value.created),
        "received": rfc3339(value.received),
        "rowID": value.row_id,
        "quality": value.quality,
    }


def _entry_document(entry: Entry) -> dict[str, JSONValue]:
    return {
        "thingID": entry.thing_id,
        "agent": entry.agent,
        "version": entry.version,
        "etag": entry.etag,
        "created": rfc3339(entry.created),
        "modified": rfc3339(entry.modified),
        "expires": None if entry.expires is None else rfc3339(entry.expires),
    }


def _version_document(version: TDVersion) -> dict[str, JSONValue]:
    return {
        "thingID": version.thing_id,
        "version": version.version,
        "published": rfc3339(version.published),
        "isRemoved": version.td is None,
    }


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
