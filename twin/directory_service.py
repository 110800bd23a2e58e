"""The built-in service of the directory: Thing Descriptions behind every binding alike.

What is listed is trimmed to what the caller may see, down to single properties and events, and what is hidden looks
unknown. Twins are published by their agents; other entries are written here, by managers and services.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pydantic_core import from_json

from things.addresses import Address, TwinID, is_twin
from things.errors import Forbidden, Invalid, PreconditionFailed, UnknownThing
from things.filters import MAX_FILTER_CHARS, And, Comparison, Field, Filter, Operator, Subject, parse_filter
from things.identity import Principal
from things.merge_patch import merged
from things.messages import JSONValue, Operation
from things.records import Change, DirectoryChange, Entry
from things.td import ThingDescription
from things.times import parse_time, rfc3339
from things.vocabulary import ServiceType, Term
from twin.changes import shown_patch
from twin.directory import OVERLAY_MEMBERS, DirectoryStore
from twin.entries import TDVersion
from twin.methods import OBJECT, TEXT, TIME, Given, Method, Service, method, on_thing
from twin.search import May, Search


class View(Protocol):
    """What a principal who may know of an entry gets to see of it, for one protocol or all."""

    def of(self, entry: Entry, principal: Principal, protocol: str | None = None) -> dict[str, Any]: ...

    def text(self, entry: Entry, principal: Principal, protocol: str | None = None) -> bytes:
        """The same as JSON text, which costs less."""
        ...


MAX_PAGE = 1_000
_AT_A_TIME = 200
"""Things looked at before others have a turn in the loop."""

_LIMIT = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 100}

_ASKED = {
    "agent": (Subject.AGENT, Operator.IS),
    "type": (Subject.TYPE, Operator.IS),
    "text": (Subject.TITLE, Operator.CONTAINS),
}
"""Members of a question that say in short what a filter says."""
_TRIES = 5


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

    async def _read(self, given: Given, principal: Principal) -> JSONValue:
        return self._view.of(self._known(given, principal), principal, given.get("protocol"))

    async def _read_entry(self, given: Given, principal: Principal) -> JSONValue:
        return self._entry(self._known(given, principal), given, principal)

    def _entry(self, entry: Entry, given: Given, principal: Principal) -> dict[str, JSONValue]:
        """The TD with its registration; of a twin as `text` if that is asked for: whoever passes it on as it is spares
        reading and writing it."""
        document, protocol = _entry_document(entry), given.get("protocol")
        if given.get("encoded") and is_twin(entry.thing_id):
            document["text"] = self._view.text(entry, principal, protocol).decode()
        else:
            document["td"] = self._view.of(entry, principal, protocol)
        return document

    def _known(self, given: Given, principal: Principal) -> Entry:
        entry = self._directory.get(given["thingID"])
        if entry is None or not self._may(principal, Operation.READ, Address(entry.thing_id)):
            raise UnknownThing(given["thingID"])
        return entry

    async def _list(self, given: Given, principal: Principal) -> JSONValue:
        """A page; the cursor is the id of its last entry, `change` the newest change that is in it."""
        change = self._directory.last_change
        if given.get("count"):
            return {"items": [], "total": sum([1 async for _ in self._found(given, principal)]), "change": change}
        limit, skipped = given.get("limit", 100), given.get("offset", 0)
        items: list[JSONValue] = []
        last = ""
        async for entry in self._found(given, principal):
            if skipped:
                skipped -= 1
            elif len(items) == limit:
                return {"items": items, "cursor": last, "change": change}
            else:
                items.append(
                    self._entry(entry, given, principal)
                    if given.get("entries")
                    else self._view.of(entry, principal, given.get("protocol"))
                )
                last = entry.thing_id
        return {"items": items, "change": change}

    async def _found(self, given: Given, principal: Principal) -> AsyncIterator[Entry]:
        """The entries that the caller may know of and asked for, in order of their ids."""
        filter_, after = _filter(given), given.get("cursor", "")
        if filter_ is None:
            candidates = self._directory.ids(after)
        else:
            candidates = await self._search.candidates(filter_, after)
        for looked_at, thing_id in enumerate(candidates, 1):
            if looked_at % _AT_A_TIME == 0:
                await asyncio.sleep(0)
            entry = self._directory.get(thing_id)
            if (
                entry is not None
                and (filter_ is None or self._search.passes(filter_, entry, principal))
                and self._may(principal, Operation.READ, Address(thing_id))
            ):
                yield entry

    async def _changes(self, given: Given, principal: Principal) -> JSONValue:
        """Changes after one, as far as the caller may know of them; `last` is the `after` of the next question."""
        after = given.get("after")
        if after is None:
            return {"items": [], "last": self._directory.last_change}
        changes = self._directory.changes_since(after, given.get("limit", 100))
        items: list[JSONValue] = [
            shown
            for change in changes
            if (shown := self._change(change, principal, diff=bool(given.get("diff")))) is not None
        ]
        return {"items": items, "last": changes[-1].id if changes else after}

    def _change(self, change: DirectoryChange, principal: Principal, *, diff: bool) -> JSONValue:
        if not self._may(principal, Operation.READ, Address(change.thing_id)):
            return None
        told: dict[str, JSONValue] = {"id": change.id, "change": change.what.value, "thingID": change.thing_id}
        # Of what is gone by now there is nothing left to tell but that it was.
        entry = None if change.what is Change.DELETED else self._directory.get(change.thing_id)
        if diff and entry is not None:
            td = self._view.of(entry, principal)
            told |= _entry_document(entry)
            if change.what is Change.CREATED:
                told["td"] = td
            else:
                told["patch"] = shown_patch(from_json(change.patch), change.thing_id, td)
        return told

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
        document = dict(self._view.of(entry, principal, given.get("protocol")))
        # Whether its agent is here now says nothing about then.
        for name in (Term.ONLINE.value, Term.LAST_SEEN.value):
            document.pop(name, None)
        return {**_version_document(version), "td": document}

    async def _register(self, given: Given, principal: Principal) -> JSONValue:
        thing_id, document = given["thingID"], given["td"]
        _refuse_twin(thing_id)
        if document.get("id", thing_id) != thing_id:
            raise Invalid("the TD's id is another one than that of the entry")
        expires = given.get("expires")
        td = ThingDescription.of({**document, "id": thing_id})
        condition = _Condition(given.get("ifMatch"), given.get("ifNoneMatch"))
        entry = await self._directory.put(
            thing_id, td, agent=None, expires=None if expires is None else parse_time(expires), condition=condition
        )
        return {**_entry_document(entry), "isNew": condition.found_nothing}

    async def _update(self, given: Given, principal: Principal) -> JSONValue:
        thing_id, patch, wanted = given["thingID"], given["patch"], given.get("ifMatch")
        _refuse_twin(thing_id)
        if patch.get("id", thing_id) != thing_id:
            raise Invalid("the id of an entry cannot be changed")
        for _ in range(_TRIES):
            before = self._directory.get(thing_id)
            if before is None:
                raise UnknownThing(thing_id)
            _Condition(wanted, None)(before)
            td = ThingDescription.of(merged(before.td.document, {**patch, "id": thing_id}))
            try:
                entry = await self._directory.put(
                    thing_id, td, agent=None, expires=before.expires, condition=_Condition(before.etag, None)
                )
            except PreconditionFailed:
                continue  # somebody wrote in between: laid over what stands there now, unless the caller minds
            return _entry_document(entry)
        raise PreconditionFailed("the entry changes faster than it can be patched")

    async def _remove(self, given: Given, principal: Principal) -> JSONValue:
        _refuse_twin(given["thingID"])
        if not await self._directory.remove(given["thingID"], condition=_Condition(given.get("ifMatch"), None)):
            raise UnknownThing(given["thingID"])
        return {}

    async def _overlay(self, given: Given, principal: Principal) -> JSONValue:
        overlay = {name: given[name] for name in OVERLAY_MEMBERS if name in given}
        return _entry_document(await self._directory.set_overlay(given["thingID"], overlay))

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
            {"thingID": TEXT, "protocol": TEXT, "encoded": {"type": "boolean"}},
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
                "entries": {"type": "boolean"},
                "encoded": {"type": "boolean"},
            },
        ),
        "listChanges": method(
            "What came, went and changed after a change; without one, the newest",
            lambda given: (Operation.READ, Address(DirectoryService.thing_id)),
            _changes,
            {"after": {"type": "integer", "minimum": 0}, "limit": _LIMIT, "diff": {"type": "boolean"}},
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


@dataclass(slots=True)
class _Condition:
    """What a writer believes of the entry (`If-Match`, `If-None-Match`), checked where it is written."""

    match: str | None
    none_match: str | None
    found_nothing: bool = False

    def __call__(self, standing: Entry | None) -> None:
        self.found_nothing = standing is None
        if self.match is not None and not _names(self.match, standing):
            raise PreconditionFailed("the entry is not as it was")
        if self.none_match is not None and _names(self.none_match, standing):
            raise PreconditionFailed("the entry is there already")


def _names(tags: str, entry: Entry | None) -> bool:
    """Whether a list of entity tags, or `*` for any, is true of the entry."""
    return entry is not None and (tags.strip() == "*" or entry.etag in (tag.strip() for tag in tags.split(",")))


def _refuse_twin(thing_id: str) -> None:
    if is_twin(thing_id):
        raise Forbidden("a twin's TD is published by its own agent only")


def _filter(given: Given) -> Filter | None:
    """Everything that is asked of an entry, as one filter."""
    asked: list[Filter] = [
        Comparison(Field(subject), operator, given[name])
        for name, (subject, operator) in _ASKED.items()
        if name in given
    ]
    if "filter" in given:
        asked.append(parse_filter(given["filter"]))
    return And(tuple(asked)) if asked else None


# ---------------------------------------------------------------- documents


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
