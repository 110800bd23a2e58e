"""The native wire engine: listeners, admission, sessions and take-over, one write per connection and loop turn.

It owns every task it starts: they end with `serve`. It decides nothing: who may come in, what a filter yields and what
becomes of a publish is the gate's.
"""

import asyncio
import logging
import secrets
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.abc import TaskStatus

from bindings.mqtt.seam import Closed, Gate, Hello, Limits, Link, Listener, Listening, Outcome, Publish
from bindings.mqtt.server.connection import CLOSE_TIMEOUT_S, Connection
from bindings.mqtt.server.encoding import Encoded, encode_publish
from bindings.mqtt.server.listening import listen
from bindings.mqtt.server.packets import Connect
from bindings.mqtt.server.properties import Property
from bindings.mqtt.server.reasons import Reason
from bindings.mqtt.server.sessions import DepartedLink, ParkedLink, Session, Sessions, Will
from bindings.mqtt.server.store import SessionStore
from bindings.mqtt.server.ticker import SLOT_S, Ticker
from bindings.mqtt.server.websocket import Receive, Scope, Send, serve_websocket
from things.identity import Principal

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
"""How long commits in flight may take when the engine stops."""
SAVE_EVERY_S = 0.5
"""How often changed sessions are written behind."""
SAVE_PARKED_EVERY_S = 5.0
"""How often those are whose client is away: each is written whole, with all that waits."""
SAVE_S = 0.02
"""How long one round of saving may keep the loop; the rest has its turn in the next."""


class NativeEngine:
    """An MQTT 3.1.1 and 5 server on asyncio; `serve` once."""

    name = "native"
    gate: Gate

    def __init__(self, listeners: Sequence[Listener], limits: Limits, store: SessionStore | None = None) -> None:
        self.limits = limits
        self.counts: Counter[str] = Counter()
        """What was refused, dropped or broken, by kind."""
        self.sessions = Sessions()
        self._listeners = tuple(listeners)
        self._store = store
        self._connections: set[Connection] = set()
        self._unflushed: list[Connection] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._encoded: dict[int, tuple[Publish, Encoded]] = {}
        self._stopping = False
        self._emptied = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ticker: Ticker

    # -- serving ------------------------------------------------------------------------------------------------------

    async def serve(self, gate: Gate, *, task_status: TaskStatus[Listening]) -> None:
        """Serve until cancelled; reports the addresses once every listener is up."""
        self.gate = gate
        self._loop = asyncio.get_running_loop()
        self._ticker = Ticker(self.now())
        async with AsyncExitStack() as stack:
            if self._store is not None:
                await stack.enter_async_context(self._store)
                self._restore(await self._store.load())
            stack.push_async_callback(self._stop)
            addresses = [
                await stack.enter_async_context(listen(listener, self._connection, self.limits.connect_timeout_s))
                for listener in self._listeners
            ]
            task_status.started(Listening(addresses=tuple(addresses)))
            await self._run()

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """MQTT over WebSocket, as an ASGI application to be mounted at `/mqtt`."""
        await serve_websocket(self._connection, scope, receive, send)

    @property
    def connections(self) -> int:
        """Open connections, those before CONNECT included."""
        return len(self._connections)

    def now(self) -> float:
        """The engine's clock: monotonic seconds."""
        return self._loop.time()

    async def _run(self) -> None:
        """The one timer: deadlines, session ends and delayed wills, and the sessions that are to be written."""
        saved = self.now()
        while True:
            await anyio.sleep(SLOT_S)
            now = self.now()
            self._ticker.tick(now)
            for session in self.sessions.due(now):
                self._parted(session, now)
            if self._store is not None and now - saved >= SAVE_EVERY_S:
                saved = now
                self._save(self._store)

    async def _stop(self) -> None:
        """Read nothing more, finish and acknowledge what was read, say good-bye, keep the sessions."""
        self._stopping = True
        with anyio.CancelScope(shield=True):
            for connection in list(self._connections):
                connection.stop_reading()
            with anyio.move_on_after(STOP_TIMEOUT_S):
                await asyncio.gather(*(connection.settled() for connection in list(self._connections)))
            for connection in list(self._connections):
                connection.close(Closed.SHUTDOWN)
            self._flush()
            with anyio.move_on_after(STOP_TIMEOUT_S):
                while self._tasks:
                    await asyncio.wait(self._tasks)
            for task in self._tasks:
                task.cancel()
            if self._store is not None:
                for session in self.sessions:
                    session.dirty = True
                self._save(self._store, whole=True)
            for session in self.sessions:
                self._unpark(session, Closed.SHUTDOWN)
            if self._connections:
                with anyio.move_on_after(1.0):
                    await self._emptied.wait()
            for connection in list(self._connections):
                connection.abort()

    # -- connections --------------------------------------------------------------------------------------------------

    def _connection(self, source: str | None = None) -> Connection:
        return Connection(self, source)

    def connected(self, connection: Connection) -> bool:
        """Take a new connection under its CONNECT deadline; False if there are too many."""
        if len(self._connections) >= self.limits.max_connections or self._stopping:
            self.counts["too-many-connections"] += 1
            return False
        self._connections.add(connection)
        self._ticker.add(connection, connection.heard + self.limits.connect_timeout_s)
        return True

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection whose socket is gone."""
        self._connections.discard(connection)
        self._ticker.remove(connection)
        if self._stopping and not self._connections:
            self._emptied.set()

    def watch(self, connection: Connection) -> None:
        """Replace the CONNECT deadline by the keep-alive of an open link."""
        self._ticker.remove(connection)
        if connection in self._connections and (at := connection.keep_alive_deadline()) is not None:
            self._ticker.add(connection, at)

    def closing(self, connection: Connection) -> None:
        """Cut the connection off if it does not close in time."""
        self._ticker.remove(connection)
        if connection in self._connections:
            self._ticker.add(connection, self.now() + CLOSE_TIMEOUT_S)

    def flush_soon(self, connection: Connection) -> None:
        """Write what the connection has queued at the end of this loop turn."""
        if not self._unflushed:
            self._loop.call_soon(self._flush)
        self._unflushed.append(connection)

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    def encoded(self, message: Publish, level: int) -> Encoded:
        """`message` encoded; a fan-out pushes the same message to many links and is encoded once."""
        key = level << 2 | message.qos
        last = self._encoded.get(key)
        if last is not None and (
            last[0] is message
            or (last[0].payload is message.payload and last[0].topic == message.topic and last[0] == message)
        ):
            return last[1]
        encoded = encode_publish(message, level, qos=message.qos, expiry_s=message.expiry_s)
        self._encoded[key] = (message, encoded)
        return encoded

    # -- tasks --------------------------------------------------------------------------------------------------------

    def start(self, work: Coroutine[Any, Any, Outcome]) -> "asyncio.Task[Outcome]":
        """Run a commit as a task of this engine; whoever takes the answer reads its exception."""
        return self._start(work)

    def _start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def answered(self, outcome: Outcome) -> "asyncio.Future[Outcome]":
        """An answer that is already there."""
        future = self._loop.create_future()
        future.set_result(outcome)
        return future

    def stored(self, session: Session, packet_id: int, answer: Awaitable[Outcome]) -> "asyncio.Future[Outcome]":
        """The answer to a QoS 2 publish, after its id is on disk if the session is kept."""
        if self._store is not None and session.is_kept:
            return self.start(_stored(self._store, session, packet_id, answer))
        return answer if isinstance(answer, asyncio.Future) else self.start(_answer(answer))

    def released(self, connection: Connection, packet_id: int) -> bool:
        """Finish a QoS 2 publish of a kept session once that is on disk; False if there is nothing to write."""
        session = connection.session
        if self._store is None or not session.is_kept:
            return False
        self._start(self._released(self._store, connection, packet_id))
        return True

    async def _released(self, store: SessionStore, connection: Connection, packet_id: int) -> None:
        try:
            await store.mark(connection.session.key, packet_id, received=False)
        except sqlite3.Error:
            # Not finished: the client sends PUBREL again on its next connection.
            connection.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)
        else:
            connection.complete(packet_id)

    # -- CONNECT ------------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection, connect: Connect) -> None:
        """Ask the gate who this is; nothing is looked up before it has answered."""
        self._start(self._admit(connection, connect))

    async def _admit(self, connection: Connection, connect: Connect) -> None:
        given = connect.properties
        client_id = connect.client_id or f"auto-{secrets.token_urlsafe(12)}"
        expiry_s = self._expiry(connect)
        hello = Hello(
            client_id=client_id,
            user_name=connect.user_name,
            password=connect.password,
            protocol_level=connect.level,
            clean_start=connect.clean_start,
            session_expiry_s=expiry_s,
            will=connect.will,
            source=connection.source,
            certificate_name=connection.certificate_name,
            auth_method=given.get(Property.AUTH_METHOD),
            auth_data=given.get(Property.AUTH_DATA),
        )
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                principal = await self.gate.admit(hello)
        except TimeoutError:
            connection.refuse(Reason.SERVER_BUSY, connect.level)
            return
        except Exception:
            log.exception("admitting a client failed", extra={"source": connection.source})
            connection.refuse(Reason.SERVER_UNAVAILABLE, connect.level)
            return
        if not connection.is_waiting:
            return
        if self._stopping:
            connection.refuse(Reason.SERVER_SHUTTING_DOWN, connect.level)
        elif principal is None:
            connection.refuse(Reason.NOT_AUTHORIZED, connect.level)
        else:
            self._open(connection, connect, principal, client_id, expiry_s)

    def _expiry(self, connect: Connect) -> int:
        if connect.level == 4:
            return 0 if connect.clean_start else self.limits.max_session_expiry_s
        asked: int = connect.properties.get(Property.SESSION_EXPIRY, 0)
        return min(asked, self.limits.max_session_expiry_s)

    def _open(
        self, connection: Connection, connect: Connect, principal: Principal, client_id: str, expiry_s: int
    ) -> None:
        """Find or make the session, in one step: take-over ends the older link first."""
        key = (principal.account, client_id)
        session = self.sessions.get(key)
        if session is not None and session.link is not None:
            self.counts["taken-over"] += 1
            session.link.close(Closed.TAKEN_OVER)
            session = self.sessions.get(key)
        if session is not None and connect.clean_start:
            self._end_session(session)
            session = None
        resumed = session is not None
        if session is None:
            if not self._has_room(principal.account):
                self.counts["too-many-links"] += 1
                connection.refuse(Reason.QUOTA_EXCEEDED, connect.level)
                return
            session = Session(key, expiry_s)
            self.sessions.add(session)
        self._unpark(session, Closed.TAKEN_OVER)
        session.expiry_s = expiry_s
        session.will = None
        session.dirty = True
        try:
            connection.open(
                principal, connect, session, resumed=resumed, assigned=not connect.client_id and connect.level == 5
            )
        except Exception:
            log.exception("opening a link failed", extra={"client": client_id})
            connection.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)

    def _has_room(self, account: str) -> bool:
        if self.sessions.held(account) < self.limits.max_links_per_account:
            return True
        # A client that makes up ids would lock its account out with what it left behind.
        oldest = self.sessions.oldest_parted(account)
        if oldest is None:
            return False
        self._end_session(oldest)
        return True

    def reauthenticate(self, connection: Connection, data: bytes) -> None:
        """Ask the gate for the principal of a fresh token."""
        self._start(self._reauthenticate(connection, data))

    async def _reauthenticate(self, connection: Connection, data: bytes) -> None:
        principal = None
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                principal = await self.gate.reauthenticate(connection, data)
        except TimeoutError:
            log.warning("re-authentication took too long", extra={"client": connection.client_id})
        except Exception:
            log.exception("re-authentication failed", extra={"client": connection.client_id})
        connection.reauthenticated(principal)

    # -- the end of a link and of a session ---------------------------------------------------------------------------

    def ended(self, connection: Connection, reason: Closed, will: Publish | None, will_delay_s: int) -> None:
        """A link ended: its will, then `Gate.closed`; its session ends too, or waits."""
        session = connection.session
        session.link = None
        session.part()
        now = self.now()
        if will is not None:
            if will_delay_s and session.is_kept:
                departed = DepartedLink(
                    principal=connection.principal,
                    client_id=connection.client_id,
                    source=connection.source,
                    protocol_level=connection.protocol_level,
                )
                session.will = Will(message=will, link=departed, due=now + min(will_delay_s, session.expiry_s))
                self.sessions.watch(session, session.will.due)
            elif reason is not Closed.SHUTDOWN:
                self._fire(connection, will)
        self._closed(connection, reason)
        if session.is_kept:
            session.ends = now + session.expiry_s
            session.dirty = True
            self.sessions.watch(session, session.ends)
            session.parked = self._parked(session, connection)
            if reason not in (Closed.TAKEN_OVER, Closed.SHUTDOWN):
                self._park(session)
        else:
            self._end_session(session)

    def _parked(self, session: Session, last: Link) -> ParkedLink:
        return ParkedLink(
            session=session,
            principal=last.principal,
            client_id=last.client_id,
            source=last.source,
            protocol_level=last.protocol_level,
            limits=self.limits,
            now=self.now,
            ended=self._end_session,
        )

    def _park(self, session: Session) -> None:
        """Let what the session asked for wait in it; it ends if its account is gone."""
        parked = session.parked
        if parked is None or not session.filters:
            return
        try:
            parked.is_known = self.gate.away(parked, session.filters)
        except Exception:
            log.exception("what a client asked for does not wait for it", extra={"client": parked.client_id})
            return
        if not parked.is_known:
            self._end_session(session)

    def _unpark(self, session: Session, reason: Closed) -> None:
        parked, session.parked = session.parked, None
        if parked is not None and parked.is_known:
            self._closed(parked, reason)

    def _parted(self, session: Session, now: float) -> None:
        if session.will is not None and session.will.due <= now:
            session.dirty = True
            self._fire_delayed(session)
        if session.ends is not None and session.ends <= now:
            self._end_session(session)

    def _end_session(self, session: Session) -> None:
        """[MQTT-3.1.2-10] a delayed will fires when its session ends."""
        self.sessions.remove(session)
        self._unpark(session, Closed.REFUSED)
        self._fire_delayed(session)
        if self._store is not None and session.is_stored:
            session.is_stored = False
            self._store.forget(session.key)

    def _fire_delayed(self, session: Session) -> None:
        """A publish comes from an open link, so one stands in for the client while its will is routed."""
        will, session.will = session.will, None
        if will is not None:
            try:
                self.gate.opened(will.link, resumed=False)
            except Exception:
                log.exception("a delayed will was lost", extra={"client": will.link.client_id})
                return
            self._fire(will.link, will.message)
            self._closed(will.link, Closed.LOST)

    def _fire(self, link: Link, will: Publish) -> None:
        try:
            answer = self.gate.received(link, will)
        except Exception:
            log.exception("a will was lost", extra={"client": link.client_id, "topic": will.topic})
        else:
            self._start(self._received(link, will, answer))

    async def _received(self, link: Link, will: Publish, answer: Awaitable[Outcome]) -> None:
        try:
            await answer
        except Exception:
            log.exception("a will could not be committed", extra={"client": link.client_id, "topic": will.topic})

    def _closed(self, link: Link, reason: Closed) -> None:
        """Tell the gate; what breaks there must not end the engine's own clean-up, nor its timer."""
        try:
            self.gate.closed(link, reason)
        except Exception:
            log.exception("the end of a link was not taken", extra={"client": link.client_id})

    # -- sessions on disk ---------------------------------------------------------------------------------------------

    def _restore(self, restored: Sequence[Session]) -> None:
        now = self.now()
        for session in restored:
            self.sessions.add(session)
            if session.ends is not None:
                self.sessions.watch(session, session.ends)
            if session.will is not None:
                self.sessions.watch(session, max(session.will.due, now))
            if session.last is not None:
                session.parked, session.last = self._parked(session, session.last), None
                self._park(session)

    def _save(self, store: SessionStore, *, whole: bool = False) -> None:
        now = self.now()
        dirty = [
            each
            for each in self.sessions
            if each.dirty and (whole or each.parked is None or now - each.saved >= SAVE_PARKED_EVERY_S)
        ]
        dirty.sort(key=lambda each: each.saved)
        for session in dirty:
            session.dirty, session.saved = False, now
            if session.is_kept:
                session.is_stored = True
                store.put(session)
            elif session.is_stored:
                session.is_stored = False
                store.forget(session.key)
            if not whole and self.now() - now > SAVE_S:
                break
        store.save()


async def _answer(answer: Awaitable[Outcome]) -> Outcome:
    return await answer


async def _stored(store: SessionStore, session: Session, packet_id: int, answer: Awaitable[Outcome]) -> Outcome:
    outcome = await answer
    if outcome.reason_code < 0x80:
        session.is_stored = True
        await store.mark(session.key, packet_id, received=True)
    return outcome
