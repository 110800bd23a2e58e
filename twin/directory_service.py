"""The built-in service of the directory: Thing Descriptions behind every binding alike.

What is listed is trimmed to what the caller may see, down to single properties and events, and what is hidden looks
unknown. Twins are published by their agents; other entries are written here, by managers and services.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from pydantic_core import from_json

from things.addresses import Address, is_twin
from things.errors import Forbidden, Invalid, PreconditionFailed, UnknownThing
from things.filters import And, Comparison, Field, Filter, Operator, Subject, parse_filter
from things.identity import Principal
from things.jsontext import encode
from things.merge_patch import merged
from things.messages import JSONValue, Operation
from things.methods import Method, MethodService, on_service, on_thing
from things.records import DirectoryChange, Entry, EntryChange
from things.service_ids import DIRECTORY
from things.td import ThingDescription
from things.times import rfc3339
from things.vocabulary import ServiceType
from twin.changes import shown_patch
from twin.directory import OVERLAY_MEMBERS, DirectoryStore
from twin.entries import NOT_KNOWN_THEN, TDVersion
from twin.inputs import (
    ListChanges,
    ListTDs,
    OneThing,
    Overlay,
    QuerySPARQL,
    ReadEntry,
    ReadTD,
    RegisterTD,
    RemoveTD,
    ThingAsOf,
    UpdateTD,
)
from twin.rdf.index import RdfIndex
from twin.search import May, Search


class View(Protocol):
    """What a principal who may know of an entry gets to see of it, for one protocol or all."""

    def of(self, entry: Entry, principal: Principal, protocol: str | None = None) -> dict[str, Any]: ...

    def text(self, entry: Entry, principal: Principal, protocol: str | None = None) -> bytes:
        """The same as JSON text, which costs less."""
        ...


MAX_PAGE_BYTES = 4_194_304
"""Of descriptions as text; a page ends there however many Things it has, since it is held for each that reads it."""
_TURN_S = 0.002
"""Of looking at Things before others have a turn in the loop: to derive one description may take as long as to look at
hundreds."""

_ASKED = {
    "agent": (Subject.AGENT, Operator.IS),
    "type": (Subject.TYPE, Operator.IS),
    "text": (Subject.TITLE, Operator.CONTAINS),
}
"""Members of a question that say in short what a filter says."""
_TRIES = 5


class DirectoryService(MethodService):
    """Thing Descriptions: read by everyone as far as they may see, other entries written by managers and services."""

    def __init__(self, directory: DirectoryStore, may: May, view: View, search: Search, rdf: RdfIndex) -> None:
        self._directory = directory
        self._may = may
        self._view = view
        self._search = search
        self._rdf = rdf
        reads, writes = on_thing(Operation.READ), on_thing(Operation.PUBLISH_TD)
        lists = on_service(Operation.READ, DIRECTORY)
        super().__init__(
            DIRECTORY,
            Operation.READ,
            [
                Method(
                    name="readTD",
                    title="Read a Thing Description",
                    input=ReadTD,
                    run=self._read,
                    needs=reads,
                    safe=True,
                ),
                Method(
                    name="readEntry",
                    title="Read a Thing Description with its registration",
                    input=ReadEntry,
                    run=self._read_entry,
                    needs=reads,
                    safe=True,
                ),
                Method(
                    name="listTDs",
                    title="List Thing Descriptions in order of their ids",
                    input=ListTDs,
                    run=self._list,
                    needs=lists,
                    safe=True,
                ),
                Method(
                    name="listChanges",
                    title="What came, went and changed after a change; without one, the newest",
                    input=ListChanges,
                    run=self._changes,
                    needs=lists,
                    safe=True,
                ),
                Method(
                    name="querySPARQL",
                    title="Ask the descriptions in SPARQL 1.1",
                    input=QuerySPARQL,
                    run=self._query,
                    needs=lists,
                    safe=True,
                ),
                Method(
                    name="listVersions",
                    title="When a Thing's description was published, changed and removed",
                    input=OneThing,
                    run=self._versions,
                    needs=reads,
                    safe=True,
                ),
                Method(
                    name="readTDAsOf",
                    title="Read the Thing Description of an instant of the past",
                    input=ThingAsOf,
                    run=self._as_of,
                    needs=reads,
                    safe=True,
                ),
                Method(
                    name="registerTD",
                    title="Create or replace an entry that no agent speaks for",
                    input=RegisterTD,
                    run=self._register,
                    needs=writes,
                ),
                Method(
                    name="updateTD",
                    title="Change members of such an entry (JSON merge patch)",
                    input=UpdateTD,
                    run=self._update,
                    needs=writes,
                ),
                Method(
                    name="removeTD",
                    title="Remove such an entry",
                    input=RemoveTD,
                    run=self._remove,
                    needs=on_thing(Operation.REMOVE_TD),
                ),
                Method(
                    name="setOverlay",
                    title="Lay a title or description over what the agent publishes; null takes it away",
                    input=Overlay,
                    run=self._overlay,
                    needs=on_thing(Operation.MANAGE),
                ),
            ],
            type_=ServiceType.DIRECTORY_SERVICE,
            title="Directory",
            description="Thing Descriptions of all Things, former ones and changes too, as far as the caller may see.",
        )

    async def _read(self, given: ReadTD, principal: Principal) -> JSONValue:
        return self._view.of(self._known(given, principal), principal, given.protocol)

    async def _read_entry(self, given: ReadEntry, principal: Principal) -> JSONValue:
        return self._entry(self._known(given, principal), given, principal)

    def _entry(self, entry: Entry, given: ReadEntry | ListTDs, principal: Principal) -> dict[str, JSONValue]:
        """The TD with its registration; of a twin as `text` if that is asked for: whoever passes it on as it is spares
        reading and writing it."""
        document, protocol = _entry_document(entry), given.protocol
        if given.encoded and is_twin(entry.thing_id):
            document["text"] = self._view.text(entry, principal, protocol).decode()
        else:
            document["td"] = self._view.of(entry, principal, protocol)
        return document

    def _known(self, given: OneThing, principal: Principal) -> Entry:
        entry = self._directory.get(given.thing_id)
        if entry is None or not self._may(principal, Operation.READ, Address(entry.thing_id)):
            raise UnknownThing(given.thing_id)
        return entry

    async def _list(self, given: ListTDs, principal: Principal) -> JSONValue:
        """A page; the cursor is the id of its last entry, `change` the newest change that is in it."""
        change = self._directory.last_change
        if given.count:
            return {"items": [], "total": sum([1 async for _ in self._found(given, principal)]), "change": change}
        limit, skipped = given.limit, given.offset
        items: list[JSONValue] = []
        last, size = "", 0
        async for entry in self._found(given, principal):
            if skipped:
                skipped -= 1
            elif len(items) == limit or size >= MAX_PAGE_BYTES:
                return {"items": items, "cursor": last, "change": change}
            else:
                if given.entries:
                    document = self._entry(entry, given, principal)
                    text = document.get("text")
                    size += len(text) if isinstance(text, str) else len(encode(document))
                    items.append(document)
                else:
                    items.append(self._view.of(entry, principal, given.protocol))
                last = entry.thing_id
        return {"items": items, "change": change}

    async def _found(self, given: ListTDs, principal: Principal) -> AsyncIterator[Entry]:
        """The entries that the caller may know of and asked for, in order of their ids."""
        filter_, after = _filter(given), given.cursor or ""
        if filter_ is None:
            candidates = self._directory.ids(after)
        else:
            candidates = await self._search.candidates(filter_, after)
        begun = perf_counter()
        for thing_id in candidates:
            if perf_counter() - begun > _TURN_S:
                await asyncio.sleep(0)
                begun = perf_counter()
            entry = self._directory.get(thing_id)
            if (
                entry is not None
                and (filter_ is None or self._search.passes(filter_, entry, principal))
                and self._may(principal, Operation.READ, Address(thing_id))
            ):
                yield entry

    async def _changes(self, given: ListChanges, principal: Principal) -> JSONValue:
        """Changes after one, as far as the caller may know of them; `last` is the `after` of the next question."""
        after = given.after
        if after is None:
            return {"items": [], "last": self._directory.last_change}
        changes = self._directory.changes_since(after, given.limit)
        items: list[JSONValue] = [
            shown for change in changes if (shown := self._change(change, principal, diff=given.diff)) is not None
        ]
        return {"items": items, "last": changes[-1].id if changes else after}

    def _change(self, change: DirectoryChange, principal: Principal, *, diff: bool) -> JSONValue:
        if not self._may(principal, Operation.READ, Address(change.thing_id)):
            return None
        told: dict[str, JSONValue] = {"id": change.id, "change": change.what.value, "thingID": change.thing_id}
        # Of what is gone by now there is nothing left to tell but that it was.
        entry = None if change.what is EntryChange.DELETED else self._directory.get(change.thing_id)
        if diff and entry is not None:
            td = self._view.of(entry, principal)
            told |= _entry_document(entry)
            if change.what is EntryChange.CREATED:
                told["td"] = td
            else:
                told["patch"] = shown_patch(from_json(change.patch), change.thing_id, td)
        return told

    async def _query(self, given: QuerySPARQL, principal: Principal) -> JSONValue:
        """The answer as text, in the first accepted media type that fits the form of the query; none without one."""
        answer = await self._rdf.ask(principal, given.query, given.accepted)
        return {"form": answer.form, "mediaType": answer.media_type, "text": answer.text.decode()}

    async def _versions(self, given: OneThing, principal: Principal) -> JSONValue:
        """When which version was published; removals are versions without a TD."""
        found = await self._directory.versions(given.thing_id)
        if not found:
            raise UnknownThing(given.thing_id)
        return {"items": [_version_document(version) for version in found]}

    async def _as_of(self, given: ThingAsOf, principal: Principal) -> JSONValue:
        """The TD as the caller would have seen it, with today's rights and addresses."""
        version = await self._directory.as_of(given.thing_id, given.time)
        if version is None or (entry := version.entry) is None:
            raise UnknownThing(given.thing_id)
        shown = self._view.of(entry, principal, given.protocol)
        document = {name: value for name, value in shown.items() if name not in NOT_KNOWN_THEN}
        return {**_version_document(version), "td": document}

    async def _register(self, given: RegisterTD, principal: Principal) -> JSONValue:
        thing_id, document = given.thing_id, given.td
        _refuse_twin(thing_id)
        if document.get("id", thing_id) != thing_id:
            raise Invalid("the TD's id is another one than that of the entry")
        td = ThingDescription.of({**document, "id": thing_id})
        condition = _Condition(given.if_match, given.if_none_match)
        entry = await self._directory.put(thing_id, td, agent=None, expires=given.expires, condition=condition)
        return {**_entry_document(entry), "isNew": condition.found_nothing}

    async def _update(self, given: UpdateTD, principal: Principal) -> JSONValue:
        thing_id, patch, wanted = given.thing_id, given.patch, given.if_match
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
                continue  # somebody wrote in between: merged into what is there now, unless the caller minds
            return _entry_document(entry)
        raise PreconditionFailed("the entry changes faster than it can be patched")

    async def _remove(self, given: RemoveTD, principal: Principal) -> JSONValue:
        _refuse_twin(given.thing_id)
        if not await self._directory.remove(given.thing_id, condition=_Condition(given.if_match, None)):
            raise UnknownThing(given.thing_id)
        return {}

    async def _overlay(self, given: Overlay, principal: Principal) -> JSONValue:
        overlay = {name: getattr(given, name) for name in OVERLAY_MEMBERS if name in given.model_fields_set}
        return _entry_document(await self._directory.set_overlay(given.thing_id, overlay))


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


def _filter(given: ListTDs) -> Filter | None:
    """Everything that is asked of an entry, as one filter."""
    asked: list[Filter] = [
        Comparison(Field(subject), operator, text)
        for name, (subject, operator) in _ASKED.items()
        if (text := getattr(given, name)) is not None
    ]
    if given.filter is not None:
        asked.append(parse_filter(given.filter))
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
