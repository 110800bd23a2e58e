"""Sessions on disk: what a restart of the runtime must not lose of a persistent session.

One SQLite file of the engine's own, written by one thread. Sessions are written behind, each whole; only the id of a
received QoS 2 publish is on disk before its PUBREC, since without it a publish sent again would be routed twice.
After a crash a session is one save older than it was (half a second; of a client that is away, some seconds):
deliveries of that time are repeated or, for events, lost; the history has them.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from pydantic_core import from_json, to_json

from bindings.mqtt.engines.native.session_state import read_session, state_of
from bindings.mqtt.engines.native.sessions import Key, Session
from bindings.mqtt.engines.seam import Limits
from things.errors import StorageDamaged

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
SAVE_PARKED_EVERY_S = 5.0
"""How often sessions are written whose client is away: each is written whole, with all that waits."""
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
        self._changes: dict[Key, tuple[int, bytes]] = {}
        self._marks: list[tuple[bool, Key, int]] = []
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
        rows, received = await loop.run_in_executor(self._thread, self._read)
        sessions = []
        for account, client_id, ends, state in rows:
            try:
                session = read_session((account, client_id), from_json(state), self._limits, loop.time(), now_us)
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
        return sessions

    def put(self, session: Session) -> None:
        """Write the session behind, as it is now."""
        loop_now, now_us = asyncio.get_running_loop().time(), self._clock()
        left_s = session.expiry_s if session.ends is None else session.ends - loop_now
        ends = now_us + int(left_s * 1e6)
        self._changes[session.key] = (ends, to_json(state_of(session, loop_now, now_us)))
        self._write_soon()

    def forget(self, key: Key) -> None:
        """Remove the session behind."""
        self._forgotten.add(key)
        self._changes.pop(key, None)
        self._marks = [mark for mark in self._marks if mark[1] != key]
        self._write_soon()

    async def mark(self, key: Key, packet_id: int, *, received: bool) -> None:
        """Return when the id of a QoS 2 publish is on disk as received, or as released; many share one commit."""
        self._marks.append((received, key, packet_id))
        if self._committed is None:
            self._committed = asyncio.get_running_loop().create_future()
        committed = self._committed
        self._write_soon()
        await asyncio.shield(committed)

    def save(self, sessions: Iterable[Session]) -> None:
        """Write behind what has changed, the longest unsaved first, for as long as one turn of the loop may take."""
        until = asyncio.get_running_loop().time() + SAVE_S
        changed = [
            each
            for each in sessions
            if each.dirty
            and (each.is_kept or each.is_stored)
            and (each.parked is None or until - each.saved >= SAVE_PARKED_EVERY_S)
        ]
        changed.sort(key=lambda each: each.saved)
        for session in changed:
            if self._save(session) > until:
                break
        if self._forgotten or self._changes:
            self._write_soon()

    def save_all(self, sessions: Iterable[Session]) -> None:
        """Write every session behind, and whatever could not be written before."""
        for session in sessions:
            self._save(session)
        self._write_soon()

    def _save(self, session: Session) -> float:
        """Put or forget one session; when that was done (engine clock)."""
        session.dirty, now = False, asyncio.get_running_loop().time()
        if session.is_kept:
            session.is_stored, session.saved = True, now
            self.put(session)
        elif session.is_stored:
            session.is_stored = False
            self.forget(session.key)
        return now

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_behind())

    async def _write_behind(self) -> None:
        loop = asyncio.get_running_loop()
        while self._forgotten or self._changes or self._marks:
            work = (self._forgotten, self._changes, self._marks)
            self._forgotten, self._changes, self._marks = set(), {}, []
            committed, self._committed = self._committed, None
            try:
                await loop.run_in_executor(self._thread, self._write, *work)
            except sqlite3.Error as error:
                log.exception("sessions could not be saved")
                # Publishes whose id is not on disk go unacknowledged; the rest is written with the next save.
                self._forgotten |= work[0]
                self._changes = work[1] | self._changes
                if committed is not None:
                    committed.set_exception(error)
                if not self._marks:
                    return
            else:
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
            if version == 0:
                self._db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
            elif version != SCHEMA_VERSION:
                raise StorageDamaged(f"{self._path} has schema {version}, this runtime knows {SCHEMA_VERSION}")
        except sqlite3.DatabaseError as error:
            raise StorageDamaged(f"{self._path} is no file of sessions: {error}") from error

    def _read(self) -> tuple[list[tuple[str, str, int, bytes]], list[tuple[str, str, int]]]:
        self._db.execute("DELETE FROM sessions WHERE ends <= ?", (self._clock(),))
        self._db.execute(
            "DELETE FROM received WHERE (account, client_id) NOT IN (SELECT account, client_id FROM sessions)"
        )
        rows = self._db.execute("SELECT account, client_id, ends, state FROM sessions").fetchall()
        return rows, self._db.execute("SELECT account, client_id, packet_id FROM received").fetchall()

    def _write(
        self, forgotten: set[Key], changes: dict[Key, tuple[int, bytes]], marks: list[tuple[bool, Key, int]]
    ) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for table in ("sessions", "received"):
                self._db.executemany(f"DELETE FROM {table} WHERE account = ? AND client_id = ?", forgotten)
            self._db.executemany(
                "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)",
                [(*key, ends, state) for key, (ends, state) in changes.items()],
            )
            for received, key, packet_id in marks:
                self._db.execute(_MARK if received else _UNMARK, (*key, packet_id))
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
