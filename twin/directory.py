"""Thing Descriptions by thing id: in memory for reading, committed before a write returns.

Every published TD is kept with its time, also of removed Things, so that the directory can be read as of any instant.
A TD's version rises with each publish and never falls, removal included. An entry whose registration expired is hidden
at once and removed by `purge_expired`. A manager's overlay (title, description) outlives the agent's next publish.
"""

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from things.callbacks import ignore
from things.errors import UnknownThing
from things.messages import JSONValue
from things.records import DirectoryChange, Entry, EntryChange
from things.td import ThingDescription
from twin.changes import ChangeLog
from twin.database import Database
from twin.entries import EntryRows, TDVersion, complete, version_of
from twin.tables import TDVersionRow, table

log = logging.getLogger(__name__)

OVERLAY_MEMBERS = frozenset({"title", "description"})

_VERSIONS = table(TDVersionRow)

OnChanged = Callable[[DirectoryChange, Entry | None, Entry | None], None]
"""Told of a committed change in the loop: what happened, the entry before, the entry after."""

Condition = Callable[[Entry | None], None]
"""Asked with the standing entry, in the transaction that would change it; raises SkepError to prevent that."""


class DirectoryStore:
    """The directory in the twin's database; made by `DirectoryStore.load`."""

    def __init__(self, database: Database, clock: Callable[[], int], changes: ChangeLog) -> None:
        self._database = database
        self._clock = clock
        self._changes = changes
        self._rows = EntryRows(database)
        self._entries: dict[str, Entry] = {}
        self._ids: list[str] = []
        self._of_agent: dict[str, dict[str, None]] = {}
        self._ending: dict[str, None] = {}
        """Entries whose registration will expire."""
        self._listeners: list[OnChanged] = []

    @classmethod
    async def load(cls, database: Database, clock: Callable[[], int]) -> "DirectoryStore":
        """All entries of a database. TDs are kept as text and read when they are asked for."""
        directory = cls(database, clock, await ChangeLog.load(database, clock))
        for entry in await database.read(directory._rows.all):
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

    def ids(self, after: str = "") -> Sequence[str]:
        """All thing ids above `after`, sorted."""
        ids = self._ids[bisect_right(self._ids, after) :]
        return [thing_id for thing_id in ids if self.get(thing_id) is not None] if self._ending else ids

    def ending(self) -> Collection[str]:
        """Things whose registration will expire, or has and was not purged yet."""
        return tuple(self._ending)

    def on_changed(self, listener: OnChanged) -> None:
        """Tell `listener` of every committed change, in order."""
        self._listeners.append(listener)

    @property
    def last_change(self) -> int:
        """The id of the newest change; 0 before the first."""
        return self._changes.last

    def changes_since(self, id_: int, limit: int) -> Sequence[DirectoryChange]:
        """Changes with a higher id, oldest first; the last thousand are kept, over restarts too."""
        return self._changes.since(id_, limit)

    # ------------------------------------------------------------ reads of what was

    async def versions(self, thing_id: str) -> Sequence[TDVersion]:
        """Every TD a Thing had, oldest first."""

        def found(connection: Connection) -> list[TDVersion]:
            wanted = select(*_VERSIONS.c).where(_VERSIONS.c.thing_id == thing_id).order_by(_VERSIONS.c.version)
            return [version_of(row) for row in connection.execute(wanted)]

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
            return None if row is None or row.td is None else version_of(row)

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
            return [version_of(row) for row in connection.execute(wanted)]

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

    async def put(
        self,
        thing_id: str,
        td: ThingDescription,
        *,
        agent: str | None,
        expires: int | None = None,
        condition: Condition = ignore,
    ) -> Entry:
        """Create or replace; the same text again changes nothing and returns the standing entry. Raises what
        `condition` raises."""
        written = await self._written(lambda connection: self._put(connection, thing_id, td, agent, expires, condition))
        assert written.after is not None
        return written.after if written.change is not None else self._entries.get(thing_id, written.after)

    async def remove(self, thing_id: str, *, condition: Condition = ignore) -> bool:
        """Remove an entry; False if there was none. Raises what `condition` raises."""
        written = await self._written(lambda connection: self._remove(connection, thing_id, condition), frees=True)
        return written.change is not None

    async def set_overlay(self, thing_id: str, overlay: Mapping[str, JSONValue]) -> Entry:
        """Lay title or description over what the agent publishes; None drops a member. Raises UnknownThing."""
        written = await self._written(lambda connection: self._lay(connection, thing_id, overlay))
        assert written.after is not None
        return written.after

    async def purge_expired(self) -> int:
        """Remove entries whose registration expired; how many went."""
        expired = [thing_id for thing_id in self._ending if self.get(thing_id) is None]
        for thing_id in expired:
            await self.remove(thing_id)
        return len(expired)

    async def _written(self, job: "Callable[[Connection], _Written]", *, frees: bool = False) -> "_Written":
        future = self._database.submit(job, frees=frees, refuses_first=True)
        future.add_done_callback(self._apply)
        # Whoever waits may be cancelled; what was committed is known here all the same.
        return await asyncio.shield(future)

    # ------------------------------------------------------------ in the writer thread

    def _put(
        self,
        connection: Connection,
        thing_id: str,
        td: ThingDescription,
        agent: str | None,
        expires: int | None,
        condition: Condition,
    ) -> "_Written":
        now = self._clock()
        standing = self._rows.one(connection, thing_id)
        # What expired and was not purged yet is gone all the same.
        before = None if standing is None or self._is_expired(standing) else standing
        condition(before)
        if before is not None and (before.td.text, before.agent, before.expires) == (td.text, agent, expires):
            return _Written(before, before, None)
        if before is not None and before.td.text == td.text:
            version = before.version  # only the registration changed
        else:
            version = self._rows.add_version(connection, thing_id, now, td)
        after = complete(
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
        what = EntryChange.CREATED if before is None else EntryChange.UPDATED
        return self._stored(connection, what, standing, after)

    def _lay(self, connection: Connection, thing_id: str, overlay: Mapping[str, JSONValue]) -> "_Written":
        before = self._rows.one(connection, thing_id)
        if before is None:
            raise UnknownThing(thing_id)
        members = {name: text for name, text in {**before.overlay, **overlay}.items() if text is not None}
        after = complete(replace(before, overlay=members, modified=self._clock()))
        return self._stored(connection, EntryChange.UPDATED, before, after)

    def _stored(self, connection: Connection, what: EntryChange, before: Entry | None, after: Entry) -> "_Written":
        self._rows.put(connection, after)
        return _Written(before, after, self._changes.record(connection, what, before, after))

    def _remove(self, connection: Connection, thing_id: str, condition: Condition) -> "_Written":
        before = self._rows.one(connection, thing_id)
        condition(before)
        if before is None:
            return _Written(None, None, None)
        self._rows.remove(connection, before, self._clock())
        return _Written(before, None, self._changes.record(connection, EntryChange.DELETED, before, None))

    # ------------------------------------------------------------ in the loop

    def _apply(self, done: "asyncio.Future[_Written]") -> None:
        """Know what was committed, and tell of it."""
        if done.cancelled() or done.exception() is not None:
            return
        before, after, change = done.result()
        if change is None:
            return
        self._keep(change.thing_id, after)
        self._changes.keep(change)
        for listener in self._listeners:
            try:
                listener(change, before, after)
            except Exception:
                log.exception("a listener of the directory failed", extra={"thingID": change.thing_id})

    def _keep(self, thing_id: str, entry: Entry | None) -> None:
        standing = self._entries.pop(thing_id, None)
        self._ending.pop(thing_id, None)
        if standing is not None and standing.agent is not None:
            self._of_agent[standing.agent].pop(thing_id, None)
            if not self._of_agent[standing.agent]:
                del self._of_agent[standing.agent]
        if entry is None:
            if standing is not None:
                del self._ids[bisect_left(self._ids, thing_id)]
            return
        if standing is None:
            insort(self._ids, thing_id)
        self._entries[thing_id] = entry
        if entry.agent is not None:
            self._of_agent.setdefault(entry.agent, {})[thing_id] = None
        if entry.expires is not None:
            self._ending[thing_id] = None

    def _is_expired(self, entry: Entry) -> bool:
        return entry.expires is not None and entry.expires <= self._clock()


class _Written(NamedTuple):
    """What one write did; without a change, nothing."""

    before: Entry | None
    after: Entry | None
    change: DirectoryChange | None
