"""Sessions on disk: what a restart of the runtime must not lose of a persistent session.

One SQLite file of the engine's own, written by one thread. Sessions are written behind, each whole; only the id of a
received QoS 2 publish is on disk before its PUBREC, since without it a publish sent again would be routed twice.
After a crash a session is one save older than it was (half a second; of a client that is away, some seconds):
deliveries of that time are repeated or, for events, lost; the history has them.
"""

import asyncio
import base64
import logging
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
from pydantic_core import from_json, to_json

from bindings.mqtt.outbox import Outbox
from bindings.mqtt.seam import Flow, Limits, Link, Publish, SubscribeOptions
from bindings.mqtt.server.sessions import DepartedLink, InFlight, Key, Session, Step, Will
from things.errors import StorageDamaged
from things.identity import AccountType, Principal

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
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

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self._path = path
        self._limits = limits or Limits()
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
        loop = asyncio.get_running_loop()
        rows, received = await loop.run_in_executor(self._thread, self._read)
        sessions = []
        for account, client_id, ends, state in rows:
            session = _session((account, client_id), from_json(state), self._limits, loop.time())
            session.is_stored = True
            session.ends = loop.time() + max(0.0, ends / 1e6 - time.time())
            sessions.append(session)
        by_key = {session.key: session for session in sessions}
        for account, client_id, packet_id in received:
            if (each := by_key.get((account, client_id))) is not None:
                each.incoming[packet_id] = None
        return sessions

    def put(self, session: Session) -> None:
        """Write the session behind, as it is now."""
        loop_now = asyncio.get_running_loop().time()
        left_s = session.expiry_s if session.ends is None else session.ends - loop_now
        ends = int((time.time() + left_s) * 1e6)
        self._changes[session.key] = (ends, to_json(_state(session, loop_now)))
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

    def save(self) -> None:
        """Write what waits, if anything does."""
        if self._forgotten or self._changes:
            self._write_soon()

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
        now = int(time.time() * 1e6)
        self._db.execute("DELETE FROM sessions WHERE ends <= ?", (now,))
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


# -- the state of a session as JSON -----------------------------------------------------------------------------------


def _state(session: Session, now: float) -> dict[str, Any]:
    flight = [
        [packet_id, int(entry.step), entry.size, None if entry.message is None else _message(entry.message)]
        for packet_id, entry in session.in_flight.items()
        if entry.message is None or entry.message.flow is not Flow.LEDGER
    ]
    waiting = [] if session.outbox is None else list(session.outbox)
    will, link = session.will, session.link or session.parked
    return {
        "client": None if link is None else _client(link),
        "expirySeconds": session.expiry_s,
        "filters": [
            [text, each.qos, each.no_local, each.retain_as_published, each.retain_handling, each.subscription_id]
            for text, each in session.filters.items()
        ],
        "inFlight": flight,
        "waiting": [_message(each.message) for each in waiting if each.message.flow is not Flow.LEDGER],
        "will": None
        if will is None
        else {
            "message": _message(will.message),
            "due": int((time.time() + will.due - now) * 1e6),
            **_client(will.link),
        },
    }


def _client(link: Link) -> dict[str, Any]:
    principal = link.principal
    return {
        "account": principal.account,
        "type": str(principal.type),
        "role": str(principal.role),
        "token": principal.token_id,
        "login": principal.login_id,
        "source": link.source,
        "level": link.protocol_level,
    }


def _departed(key: Key, client: dict[str, Any]) -> DepartedLink:
    return DepartedLink(
        principal=Principal(
            account=client["account"],
            type=AccountType(client["type"]),
            role=client["role"],
            token_id=client.get("token"),
            login_id=client.get("login"),
        ),
        client_id=key[1],
        source=client["source"],
        protocol_level=client["level"],
    )


def _session(key: Key, state: dict[str, Any], limits: Limits, now: float) -> Session:
    session = Session(key, state["expirySeconds"])
    for text, qos, no_local, as_published, handling, subscription_id in state["filters"]:
        session.filters[text] = SubscribeOptions(
            qos=qos,
            no_local=no_local,
            retain_as_published=as_published,
            retain_handling=handling,
            subscription_id=subscription_id,
        )
    for packet_id, step, size, message in state["inFlight"]:
        session.in_flight[packet_id] = InFlight(None if message is None else _publish(message), Step(step), size)
        session.in_flight_bytes += size
    if state["waiting"]:
        session.outbox = Outbox(limits.max_queued, limits.max_queued_bytes)
        for message in state["waiting"]:
            session.outbox.offer(_publish(message), None, now)
    if (will := state["will"]) is not None:
        session.will = Will(
            message=_publish(will["message"]),
            link=_departed(key, will),
            due=now + will["due"] / 1e6 - time.time(),
        )
    # Files of earlier versions do not say whose the session was; what it asked for waits after its next connection.
    if (client := state.get("client")) is not None:
        session.last = _departed(key, client)
    return session


def _message(message: Publish) -> list[Any]:
    return [
        message.topic,
        base64.b64encode(message.payload).decode(),
        message.qos,
        message.retain,
        str(message.flow),
        [list(pair) for pair in message.user_properties],
        message.expiry_s,
        message.response_topic,
        None if message.correlation is None else base64.b64encode(message.correlation).decode(),
        message.content_type,
        message.payload_is_text,
        list(message.subscription_ids),
    ]


def _publish(stored: list[Any]) -> Publish:
    topic, payload, qos, retain, flow, properties, expiry_s, response_topic, correlation, content_type, is_text, ids = (
        stored
    )
    return Publish(
        topic=topic,
        payload=base64.b64decode(payload),
        qos=qos,
        retain=retain,
        flow=Flow(flow),
        user_properties=[(name, value) for name, value in properties],
        expiry_s=expiry_s,
        response_topic=response_topic,
        correlation=None if correlation is None else base64.b64decode(correlation),
        content_type=content_type,
        payload_is_text=is_text,
        subscription_ids=ids,
    )
