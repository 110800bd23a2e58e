"""Thing Descriptions by thing id: in memory for reading, committed before a write returns.

Every published TD is kept with its time, also of removed Things, so that the directory can be read as of any instant.
A TD's version rises with each publish and never falls, removal included. An entry whose registration expired is hidden
at once and removed by `purge_expired`. A manager's overlay (title, description) outlives the agent's next publish.
"""

import bisect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, delete, func, insert, select, update

from things.errors import UnknownThing
from things.messages import JSONValue
from things.records import Entry
from things.td import ThingDescription
from twin.database import Database
from twin.tables import EntryRow, TDVersionRow, table

log = logging.getLogger(__name__)

OVERLAY_MEMBERS = frozenset({"title", "description"})

_ENTRIES = table(EntryRow)
_VERSIONS = table(TDVersionRow)


class Change(StrEnum):
    """What happened to an entry."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


OnChanged = Callable[[Change, Entry | None, Entry | None], None]
"""Told of a committed change in the loop: what happened, the entry before, the entry after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TDVersion:
    """A TD as it was published; `td` is None where the Thing was removed."""

    thing_id: str
    version: int
    published: int
    td: ThingDescription | None


class DirectoryStore:
    """The directory in the twin's database; made by `DirectoryStore.load`."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._database = database
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._ids: list[str] = []
        self._of_agent: dict[str, dict[str, None]] = {}
        self._listeners: list[OnChanged] = []

    @classmethod
    async def load(cls, database: Database, clock: Callable[[], int]) -> "DirectoryStore":
        """All entries of a database. TDs are kept as text and read when they are asked for."""
        directory = cls(database, clock)
        for entry in await database.read(_stored_entries):
            directory._keep(entry.thing_id, entry)
        return directory

    # ------------------------------------------------------------ reads, in memory

    def get(self, thing_id: str) -> Entry | None:
        """The entry, unless its registration expired."""
        entry = self._entries.get(thing_id)
        return None if entry is None or self._is_expired(entry) else entry

    def things_of(self, agent: str) -> Sequence[str]:
        """The ids of an agent's Things, sorted."""
        return sorted(thing_id for thing_id in self._of_agent.get(agent, ()) if self.get(thing_id) is not None)

    def agents(self) -> Collection[str]:
        """Accounts that have Things."""
        return self._of_agent.keys()

    def ids(self) -> Sequence[str]:
        """All thing ids, sorted."""
        return [thing_id for thing_id in self._ids if not self._is_expired(self._entries[thing_id])]

    def on_changed(self, listener: OnChanged) -> None:
        """Tell `listener` of every committed change, in order."""
        self._listeners.append(listener)

    # ------------------------------------------------------------ reads of what was

    async def versions(self, thing_id: str) -> Sequence[TDVersion]:
        """Every TD a Thing had, oldest first."""

        def found(connection: Connection) -> list[TDVersion]:
            wanted = select(*_VERSIONS.c).where(_VERSIONS.c.thing_id == thing_id).order_by(_VERSIONS.c.version)
            return [_version(row) for row in connection.execute(wanted)]

        return await self._database.read(found)

    async def as_of(self, thing_id: str, time: int) -> TDVersion | None:
        """The TD a Thing had at an instant (µs); None where it had none."""

        def found(connection: Connection) -> TDVersion | None:
            wanted = (
                select(*_VERSIONS.c)
                .where(_VERSIONS.c.thing_id == thing_id, _VERSIONS.c.published <= time)
                .order_by(_VERSIONS.c.version.desc())
                .limit(1)
            )
            row = connection.execute(wanted).first()
            return None if row is None or row.td is None else _version(row)

        return await self._database.read(found)

    async def all_as_of(self, time: int, *, after: str = "", limit: int) -> Sequence[TDVersion]:
        """The TDs that stood at an instant (µs), in order of thing ids above `after`."""

        def found(connection: Connection) -> list[TDVersion]:
            newest = (
                select(_VERSIONS.c.thing_id, func.max(_VERSIONS.c.version).label("version"))
                .where(_VERSIONS.c.published <= time, _VERSIONS.c.thing_id > after)
                .group_by(_VERSIONS.c.thing_id)
                .subquery()
            )
            wanted = (
                select(*_VERSIONS.c)
                .join(
                    newest,
                    (newest.c.thing_id == _VERSIONS.c.thing_id) & (newest.c.version == _VERSIONS.c.version),
                )
                .where(_VERSIONS.c.td.is_not(None))
                .order_by(_VERSIONS.c.thing_id)
                .limit(limit)
            )
            return [_version(row) for row in connection.execute(wanted)]

        return await self._database.read(found)

    async def removals(self, thing_ids: Sequence[str], time: int) -> Mapping[str, int]:
        """When each of these Things was last removed by an instant (both µs); absent where it never was."""

        def found(connection: Connection) -> dict[str, int]:
            wanted = (
                select(_VERSIONS.c.thing_id, func.max(_VERSIONS.c.published))
                .where(_VERSIONS.c.td.is_(None), _VERSIONS.c.published <= time, _VERSIONS.c.thing_id.in_(thing_ids))
                .group_by(_VERSIONS.c.thing_id)
            )
            return {row[0]: row[1] for row in connection.execute(wanted)}

        return await self._database.read(found)

    # ------------------------------------------------------------ changes

    async def put(self, thing_id: str, td: ThingDescription, *, agent: str | None, expires: int | None = None) -> Entry:
        """Create or replace; the same text again changes nothing and returns the standing entry."""
        before, after = await self._database.submit(
            lambda connection: self._put(connection, thing_id, td, agent, expires)
        )
        if after is before:
            return self._entries.get(thing_id, after)
        if before is None or self._is_expired(before):
            self._changed(Change.CREATED, None, after)
        else:
            self._changed(Change.UPDATED, before, after)
        return after

    async def remove(self, thing_id: str) -> bool:
        """Remove an entry; False if there was none."""
        before = await self._database.submit(lambda connection: self._remove(connection, thing_id), frees=True)
        if before is None:
            return False
        self._changed(Change.DELETED, before, None)
        return True

    async def set_overlay(self, thing_id: str, overlay: Mapping[str, JSONValue]) -> Entry:
        """Lay title or description over what the agent publishes; None drops a member. Raises UnknownThing."""

        def laid(connection: Connection) -> tuple[Entry, Entry]:
            before = _standing(connection, thing_id)
            if before is None:
                raise UnknownThing(thing_id)
            members = {name: text for name, text in {**before.overlay, **overlay}.items() if text is not None}
            after = _complete(replace(before, overlay=members, modified=self._clock()))
            connection.execute(
                update(_ENTRIES)
                .where(_ENTRIES.c.thing_id == thing_id)
                .values(overlay=to_json(members).decode() if members else None, modified=after.modified)
            )
            return before, after

        before, after = await self._database.submit(laid)
        self._changed(Change.UPDATED, before, after)
        return after

    async def purge_expired(self) -> int:
        """Remove entries whose registration expired; how many went."""
        expired = [thing_id for thing_id, entry in self._entries.items() if self._is_expired(entry)]
        for thing_id in expired:
            await self.remove(thing_id)
        return len(expired)

    # ------------------------------------------------------------ in the writer thread

    def _put(
        self, connection: Connection, thing_id: str, td: ThingDescription, agent: str | None, expires: int | None
    ) -> tuple[Entry | None, Entry]:
        now = self._clock()
        before = _standing(connection, thing_id)
        if before is not None and (before.td.text, before.agent, before.expires) == (td.text, agent, expires):
            return before, before
        if before is not None and before.td.text == td.text:
            version = before.version  # only the registration changed
        else:
            last = connection.execute(
                select(_VERSIONS.c.version)
                .where(_VERSIONS.c.thing_id == thing_id)
                .order_by(_VERSIONS.c.version.desc())
                .limit(1)
            ).scalar()
            version = (last or 0) + 1
            connection.execute(
                insert(_VERSIONS).values(
                    thing_id=thing_id,
                    version=version,
                    published=now,
                    title=td.title,
                    types=to_json(list(td.types)).decode(),
                    td=td.text.decode(),
                )
            )
        after = _complete(
            Entry(
                thing_id=thing_id,
                td=td,
                agent=agent,
                version=version,
                created=now if before is None else before.created,
                modified=now,
                expires=expires,
                overlay={} if before is None else before.overlay,
            )
        )
        row = {
            "agent": agent,
            "version": version,
            "created": after.created,
            "modified": now,
            "expires": expires,
            "overlay": to_json(dict(after.overlay)).decode() if after.overlay else None,
        }
        if before is None:
            connection.execute(insert(_ENTRIES).values(thing_id=thing_id, **row))
        else:
            connection.execute(update(_ENTRIES).where(_ENTRIES.c.thing_id == thing_id).values(**row))
        return before, after

    def _remove(self, connection: Connection, thing_id: str) -> Entry | None:
        before = _standing(connection, thing_id)
        if before is None:
            return None
        connection.execute(delete(_ENTRIES).where(_ENTRIES.c.thing_id == thing_id))
        connection.execute(
            insert(_VERSIONS).values(thing_id=thing_id, version=before.version + 1, published=self._clock())
        )
        return before

    # ------------------------------------------------------------ in the loop

    def _changed(self, change: Change, before: Entry | None, after: Entry | None) -> None:
        thing_id = (after or before).thing_id  # type: ignore[union-attr]
        self._keep(thing_id, after)
        for listener in self._listeners:
            try:
                listener(change, before, after)
            except Exception:
                log.exception("a listener of the directory failed", extra={"thingID": thing_id})

    def _keep(self, thing_id: str, entry: Entry | None) -> None:
        standing = self._entries.pop(thing_id, None)
        if standing is not None and standing.agent is not None:
            self._of_agent[standing.agent].pop(thing_id, None)
            if not self._of_agent[standing.agent]:
                del self._of_agent[standing.agent]
        if entry is None:
            if standing is not None:
                del self._ids[bisect.bisect_left(self._ids, thing_id)]
            return
        if standing is None:
            bisect.insort(self._ids, thing_id)
        self._entries[thing_id] = entry
        if entry.agent is not None:
            self._of_agent.setdefault(entry.agent, {})[thing_id] = None

    def _is_expired(self, entry: Entry) -> bool:
        return entry.expires is not None and entry.expires <= self._clock()


def _complete(entry: Entry) -> Entry:
    """With the tag that changes with anything a reader sees."""
    digest = blake2b(entry.td.text, digest_size=12)
    digest.update(to_json(dict(entry.overlay)))
    return replace(entry, etag=f'"{entry.version}-{digest.hexdigest()}"')


_JOINED = select(*_ENTRIES.c, _VERSIONS.c.title, _VERSIONS.c.types, _VERSIONS.c.td).where(
    _VERSIONS.c.thing_id == _ENTRIES.c.thing_id, _VERSIONS.c.version == _ENTRIES.c.version
)


def _stored_entries(connection: Connection) -> list[Entry]:
    return [_entry(row) for row in connection.execute(_JOINED.order_by(_ENTRIES.c.thing_id))]


def _standing(connection: Connection, thing_id: str) -> Entry | None:
    row = connection.execute(_JOINED.where(_ENTRIES.c.thing_id == thing_id)).first()
    return None if row is None else _entry(row)


def _entry(row: Any) -> Entry:
    return _complete(
        Entry(
            thing_id=row.thing_id,
            td=_td(row),
            agent=row.agent,
            version=row.version,
            created=row.created,
            modified=row.modified,
            expires=row.expires,
            overlay={} if row.overlay is None else from_json(row.overlay),
        )
    )


def _version(row: Any) -> TDVersion:
    return TDVersion(
        thing_id=row.thing_id,
        version=row.version,
        published=row.published,
        td=None if row.td is None else _td(row),
    )


def _td(row: Any) -> ThingDescription:
    # It was checked before it was stored; reading it again waits until somebody needs more than title and type.
    return ThingDescription(row.td.encode(), {"title": row.title, "@type": from_json(row.types)})
