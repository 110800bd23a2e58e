"""Sessions on disk: what a restart of the runtime must not lose of a persistent session.

One SQLite file of the engine's own, written by one thread. Sessions are written behind, each whole. Only two things are
on disk before they are acknowledged: the id of a received QoS 2 publish, since without it a publish sent again would be
routed twice, and the filters of a kept session, since what they match from then on is owed to it. Those stand on their
own until their session is written the next time.
After a crash a session is one save older than it was, half a second: deliveries of that time are repeated, since its
cursor is as old as what it had in flight.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sys import intern
from types import TracebackType
from typing import Any, Self

import anyio
from pydantic_core import from_json, to_json

from bindings.mqtt.engines.native.session_state import filter_state, read_filter, read_session, state_of, text_of
from bindings.mqtt.engines.native.sessions import Key, Session
from bindings.mqtt.engines.seam import Limits
from things.errors import StorageDamaged
from things.whole_files import refuse_unless_damage

log = logging.getLogger(__name__)

SCHEMA_VERSION = 3
PUBLISHED_ROWS = 1_000
"""So far behind may be what is written of sessions that have caught up and to which nothing was sent."""
SAVE_S = 0.02
"""How long one round of saving may keep the loop; the rest has its turn in the next."""
_SCHEMA = """
CREATE TABLE sessions (
    account TEXT NOT NULL, client_id TEXT NOT NULL, ends INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (account, client_id)
) WITHOUT ROWID;
CREATE TABLE received (
    account TEXT NOT NULL, client_id TEXT NOT NULL, packet_id INTEGER NOT NULL,
    PRIMARY KEY (account, client_id, packet_id)
) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
_TO_2 = """
CREATE TABLE told (row_id INTEGER NOT NULL);
INSERT INTO told VALUES (0);
PRAGMA user_version = 2;
"""
_TO_3 = """
CREATE TABLE asked (
    account TEXT NOT NULL, client_id TEXT NOT NULL, filter TEXT NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (account, client_id, filter)
) WITHOUT ROWID;
PRAGMA user_version = 3;
"""
_STEPS = (_SCHEMA, _TO_2, _TO_3)
"""From nothing, and from each version to the next."""

_PROBES = (
    "SELECT count(account), count(client_id), count(ends), count(state) FROM sessions",
    "SELECT count(account), count(client_id), count(packet_id) FROM received",
    "SELECT row_id FROM told",
    "SELECT count(account), count(client_id), count(filter), count(state) FROM asked",
)
"""Each has a row in a file that can be gone on with."""
_MARK = "INSERT OR IGNORE INTO received VALUES (?, ?, ?)"
_UNMARK = "DELETE FROM received WHERE account = ? AND client_id = ? AND packet_id = ?"


class SessionStore:
    """The file of sessions; an async context while the engine serves."""

    def __init__(self, path: Path, clock: Callable[[], int], limits: Limits | None = None) -> None:
        """`clock` (µs UTC) is one that goes on over restarts: by it sessions end that nobody has come back to."""
        self._path = path
        self._limits = limits or Limits()
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mqtt-sessions")
        self._forgotten: set[Key] = set()
        self._changes: dict[Key, tuple[int, dict[str, Any]]] = {}
        self._marks: list[tuple[bool, Key, int]] = []
        self._asked: dict[Key, dict[str, bytes]] = {}
        """Filters that were asked for since their session was put."""
        self._published = 0
        """The row up to which sessions that had caught up, and were not written since, have been given all."""
        self._written = 0
        """As `_published` is on disk."""
        self._committed: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._db: sqlite3.Connection

    async def __aenter__(self) -> Self:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The engine ends by being cancelled, and what it said last must be on disk all the same.
        with anyio.CancelScope(shield=True):
            if self._writing is not None:
                await asyncio.wait({self._writing})
            await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
        self._thread.shutdown()

    async def load(self) -> list[Session]:
        """Every session that has not ended, without a connection."""
        loop, now_us = asyncio.get_running_loop(), self._clock()
        rows, received, asked, self._published = await loop.run_in_executor(self._thread, self._read)
        self._written = self._published
        sessions = []
        for account, client_id, ends, state in rows:
            try:
                session = read_session(
                    (intern(account), client_id), from_json(state), self._limits, loop.time(), now_us, self._published
                )
            except (ValueError, TypeError, LookupError) as error:
                # Its client begins a new one, as after its end.
                log.error("a kept session cannot be read", extra={"account": account, "reason": repr(error)})
                continue
            session.is_stored = True
            session.ends = loop.time() + max(0.0, (ends - now_us) / 1e6)
            sessions.append(session)
        by_key = {session.key: session for session in sessions}
        for account, client_id, packet_id in received:
            if (each := by_key.get((account, client_id))) is not None:
                each.incoming = {**(each.incoming or {}), packet_id: None}
        for account, client_id, state in asked:
            if (each := by_key.get((account, client_id))) is not None:
                each.filters.update([read_filter(from_json(state))])
        return sessions

    def put(self, session: Session, published_row: int) -> None:
        """Write the session behind, as it is now; `published_row` is the last one that was told."""
        loop_now, now_us = asyncio.get_running_loop().time(), self._clock()
        left_s = session.expiry_s if session.ends is None else session.ends - loop_now
        ends = now_us + int(left_s * 1e6)
        self._asked.pop(session.key, None)
        self._changes[session.key] = (ends, state_of(session, loop_now, now_us, published_row))
        self._write_soon()

    def forget(self, key: Key) -> None:
        """Remove the session behind."""
        self._forgotten.add(key)
        self._changes.pop(key, None)
        self._asked.pop(key, None)
        self._marks = [mark for mark in self._marks if mark[1] != key]
        self._write_soon()

    async def mark(self, key: Key, packet_id: int, *, received: bool) -> None:
        """Return when the id of a QoS 2 publish is on disk as received, or as released; many share one commit."""
        self._marks.append((received, key, packet_id))
        await self._commit()

    async def keep(self, session: Session, filters: Iterable[str], published_row: int) -> None:
        """Return when filters of a session are on disk as they are now, at a cost that does not grow with what else it
        has; many share one commit. Raises sqlite3.Error."""
        if session.is_stored:
            asked = self._asked.setdefault(session.key, {})
            for text in filters:
                if (options := session.filters.get(text)) is not None:
                    asked[text] = to_json(filter_state(text, options))
        else:
            self._save(session, published_row)
        await self._commit()

    async def _commit(self) -> None:
        if self._committed is None:
            self._committed = asyncio.get_running_loop().create_future()
        committed = self._committed
        self._write_soon()
        await asyncio.shield(committed)

    def save(self, sessions: Iterable[Session], published_row: int) -> None:
        """Write behind what has changed, the longest unsaved first, for as long as one turn of the loop may take.
        `published_row` is the last one that was told."""
        until = asyncio.get_running_loop().time() + SAVE_S
        changed = [each for each in sessions if each.dirty and (each.is_kept or each.is_stored)]
        changed.sort(key=lambda each: each.saved)
        for done, session in enumerate(changed, start=1):
            if self._save(session, published_row) > until and done < len(changed):
                break
        else:
            if published_row - self._published >= PUBLISHED_ROWS:
                self._published = published_row
                self._write_soon()
        if self._forgotten or self._changes:
            self._write_soon()

    def save_all(self, sessions: Iterable[Session], published_row: int) -> None:
        """Write every session behind, and whatever could not be written before."""
        for session in sessions:
            self._save(session, published_row)
        self._write_soon()

    def _save(self, session: Session, published_row: int) -> float:
        """Put or forget one session; when that was done (engine clock)."""
        session.dirty, now = False, asyncio.get_running_loop().time()
        if session.is_kept:
            session.is_stored, session.saved = True, now
            self.put(session, published_row)
        elif session.is_stored:
            session.is_stored = False
            self.forget(session.key)
        return now

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_behind())

    async def _write_behind(self) -> None:
        loop = asyncio.get_running_loop()
        while self._forgotten or self._changes or self._committed is not None or self._published > self._written:
            work, published = (self._forgotten, self._changes, self._asked, self._marks), self._published
            self._forgotten, self._changes, self._asked, self._marks = set(), {}, {}, []
            committed, self._committed = self._committed, None
            try:
                await loop.run_in_executor(self._thread, self._write, *work, published)
            except sqlite3.Error as error:
                log.exception("sessions could not be saved")
                # Publishes whose id is not on disk go unacknowledged, and so do filters; the rest is written with the
                # next save.
                self._forgotten |= work[0]
                self._changes = work[1] | self._changes
                if committed is not None:
                    committed.set_exception(error)
                if self._committed is None:
                    return
            else:
                self._written = published
                if committed is not None:
                    committed.set_result(None)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Payloads wait in it: nobody else may read it, nor the files SQLite puts beside it with the same rights.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version < SCHEMA_VERSION:
                self._db.executescript(f"BEGIN; {' '.join(_STEPS[version:])} COMMIT;")
            elif version != SCHEMA_VERSION:
                raise StorageDamaged(f"{self._path} has schema {version}, this runtime knows {SCHEMA_VERSION}")
            for probe in _PROBES:
                if self._db.execute(probe).fetchone() is None:
                    raise StorageDamaged(f"{self._path} lacks what a new file has")
        except sqlite3.DatabaseError as error:
            refuse_unless_damage(self._path, error)
            raise StorageDamaged(f"{self._path} is no file of sessions: {error}") from error

    def _read(
        self,
    ) -> tuple[list[tuple[str, str, int, bytes]], list[tuple[str, str, int]], list[tuple[str, str, bytes]], int]:
        try:
            self._db.execute("DELETE FROM sessions WHERE ends <= ?", (self._clock(),))
            for table in ("received", "asked"):
                self._db.execute(
                    f"DELETE FROM {table} WHERE (account, client_id) NOT IN (SELECT account, client_id FROM sessions)"
                )
            rows = self._db.execute("SELECT account, client_id, ends, state FROM sessions").fetchall()
            received = self._db.execute("SELECT account, client_id, packet_id FROM received").fetchall()
            asked = self._db.execute("SELECT account, client_id, state FROM asked").fetchall()
            return rows, received, asked, self._db.execute("SELECT row_id FROM told").fetchone()[0]
        except sqlite3.DatabaseError as error:
            refuse_unless_damage(self._path, error)
            raise StorageDamaged(f"{self._path} cannot be read: {error}") from error

    def _write(
        self,
        forgotten: set[Key],
        changes: dict[Key, tuple[int, dict[str, Any]]],
        asked: dict[Key, dict[str, bytes]],
        marks: list[tuple[bool, Key, int]],
        published: int,
    ) -> None:
        rows = [(*key, ends, text_of(state)) for key, (ends, state) in changes.items()]
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for table in ("sessions", "received"):
                self._db.executemany(f"DELETE FROM {table} WHERE account = ? AND client_id = ?", forgotten)
            self._db.executemany("DELETE FROM asked WHERE account = ? AND client_id = ?", forgotten | set(changes))
            self._db.executemany("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)", rows)
            self._db.executemany(
                "INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?)",
                [(*key, text, state) for key, filters in asked.items() for text, state in filters.items()],
            )
            for received, key, packet_id in marks:
                self._db.execute(_MARK if received else _UNMARK, (*key, packet_id))
            self._db.execute("UPDATE told SET row_id = ? WHERE row_id <> ?", (published, published))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
