"""The twin's built-in services: Things whose actions are methods, one implementation behind every binding.

`dtw:directory:things` reads and writes Thing Descriptions, `dtw:values:latest` reads latest values; stored ones are in
`twin.history_service`. What is listed is trimmed to what the caller may see, down to single properties and events, and
what is hidden looks unknown.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar

from things.addresses import Address, Kind, TwinID, is_twin
from things.errors import (
    Forbidden,
    Invalid,
    NotFound,
    PreconditionFailed,
    UnknownName,
    UnknownThing,
)
from things.filters import MAX_FILTER_CHARS, parse_filter
from things.identity import Principal
from things.merge_patch import merged
from things.messages import JSONValue, Operation
from things.records import Entry, Value
from things.td import ThingDescription
from things.times import parse_time, rfc3339
from things.vocabulary import ServiceType, Term
from twin.directory import OVERLAY_MEMBERS, DirectoryStore, TDVersion
from twin.methods import OBJECT, TEXT, TIME, Given, Method, Service, method, on_thing
from twin.search import May, Search
from twin.values import LatestValues

View = Callable[[Entry, Principal, str | None], dict[str, Any]]
"""What a principal who may know of an entry gets to see of it, for one protocol or all."""

PresenceValues = Callable[[str], Mapping[str, JSONValue]]
"""`online` and `lastSeen` of a Thing, by the property names under which they are told."""

MAX_PAGE = 1_000
_AT_A_TIME = 200
"""Things looked at before others have a turn in the loop."""

_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 100}

# ---------------------------------------------------------------- directory


class DirectoryService(Service):
    """Thing Descriptions: read by everyone as far as they may see, other entries written by managers and services."""

    thing_id = "dtw:directory:things"
    service_type = ServiceType.DIRECTORY_SERVICE
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
            td = ThingDescription.of(merged(before.td.document, {**patch, "id": thing_id}))
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

    methods: ClassVar[Mapping[str, Method]] = {
        "readTD": method(
            "Read a Thing Description",
            on_thing(Operation.READ),
            _read,
            {"thingID": TEXT, "protocol": TEXT},
            ["thingID"],
        ),
        "readEntry": method(
            "Read a Thing Description with its registration",
            on_thing(Operation.READ),
            _read_entry,
            {"thingID": TEXT, "protocol": TEXT},
            ["thingID"],
        ),
        "listTDs": method(
            "List Thing Descriptions in order of their ids",
            lambda given: (Operation.READ, Address(DirectoryService.thing_id)),
            _list,
            {
                "limit": _LIMIT,
                "offset": {"type": "integer", "minimum": 0},
                "cursor": TEXT,
                "agent": TEXT,
                "type": TEXT,
                "text": TEXT,
                "filter": {"type": "string", "minLength": 1, "maxLength": MAX_FILTER_CHARS},
                "protocol": TEXT,
                "count": {"type": "boolean"},
            },
        ),
        "listVersions": method(
            "When a Thing's description was published, changed and removed",
            on_thing(Operation.READ),
            _versions,
            {"thingID": TEXT},
            ["thingID"],
        ),
        "readTDAsOf": method(
            "Read the Thing Description of an instant of the past",
            on_thing(Operation.READ),
            _as_of,
            {"thingID": TEXT, "time": TIME, "protocol": TEXT},
            ["thingID", "time"],
        ),
        "registerTD": method(
            "Create or replace an entry that no agent speaks for",
            on_thing(Operation.PUBLISH_TD),
            _register,
            {"thingID": TEXT, "td": OBJECT, "expires": TIME, "ifMatch": TEXT, "ifNoneMatch": TEXT},
            ["thingID", "td"],
            is_safe=False,
        ),
        "updateTD": method(
            "Change members of such an entry (JSON merge patch)",
            on_thing(Operation.PUBLISH_TD),
            _update,
            {"thingID": TEXT, "patch": OBJECT, "ifMatch": TEXT},
            ["thingID", "patch"],
            is_safe=False,
        ),
        "removeTD": method(
            "Remove such an entry",
            on_thing(Operation.REMOVE_TD),
            _remove,
            {"thingID": TEXT, "ifMatch": TEXT},
            ["thingID"],
            is_safe=False,
        ),
        "setOverlay": method(
            "Lay a title or description over what the agent publishes; null takes it away",
            on_thing(Operation.MANAGE),
            _overlay,
            {
                "thingID": TEXT,
                "title": {"oneOf": [TEXT, {"type": "null"}]},
                "description": {"oneOf": [{"type": "string", "maxLength": 8_192}, {"type": "null"}]},
            },
            ["thingID"],
            is_safe=False,
        ),
    }


# ---------------------------------------------------------------- latest values


class ValuesService(Service):
    """Latest values of properties and events."""

    thing_id = "dtw:values:latest"
    service_type = ServiceType.VALUES_SERVICE
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

    methods: ClassVar[Mapping[str, Method]] = {
        "readProperty": method(
            "Read the latest value of a property",
            lambda given: (Operation.READ, Address(given["thingID"], Kind.PROPERTY, given["name"])),
            _property,
            {"thingID": TEXT, "name": TEXT},
            ["thingID", "name"],
        ),
        "readProperties": method(
            "Read the latest values of all properties of a Thing",
            on_thing(Operation.READ),
            _properties,
            {"thingID": TEXT},
            ["thingID"],
        ),
        "readEvent": method(
            "Read the latest event of a name",
            lambda given: (Operation.READ, Address(given["thingID"], Kind.EVENT, given["name"])),
            _event,
            {"thingID": TEXT, "name": TEXT},
            ["thingID", "name"],
        ),
        "readEvents": method(
            "Read the latest event of every name of a Thing",
            on_thing(Operation.READ),
            _events,
            {"thingID": TEXT},
            ["thingID"],
        ),
    }


# ---------------------------------------------------------------- documents


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
