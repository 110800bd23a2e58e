"""The native wire engine: listeners, connections and their timer, one write per connection and loop turn.

It owns every task it starts: they end with `serve`. It decides nothing: who may come in, what a filter yields and what
becomes of a publish is the gate's.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus

from bindings.mqtt.seam import Closed, Gate, Limits, Listener, Listening, Outcome, Publish
from bindings.mqtt.server.connection import CLOSE_TIMEOUT_S, Connection
from bindings.mqtt.server.encoding import Encoded, encode_publish
from bindings.mqtt.server.lifetimes import Lifetimes
from bindings.mqtt.server.listening import listen
from bindings.mqtt.server.sessions import Sessions
from bindings.mqtt.server.store import SessionStore
from bindings.mqtt.server.ticker import SLOT_S, Ticker
from bindings.mqtt.server.websocket import Receive, Scope, Send, serve_websocket
from bindings.mqtt.topics import own_inbox
from things.identity import Principal

T = TypeVar("T")

STOP_TIMEOUT_S = 5.0
"""How long commits in flight may take when the engine stops."""
SAVE_EVERY_S = 0.5
"""How often changed sessions are written behind."""


class NativeEngine:
    """An MQTT 3.1.1 and 5 server on asyncio; `serve` once."""

    name = "native"
    gate: Gate
    lifetimes: Lifetimes

    def __init__(
        self,
        listeners: Sequence[Listener],
        limits: Limits,
        store: SessionStore | None = None,
        response_information: Callable[[Principal], str] = own_inbox,
    ) -> None:
        """`response_information`: what a client is told if it asks where answers may go (MQTT 5)."""
        self.limits = limits
        self.store = store
        self.response_information = response_information
        self.counts: Counter[str] = Counter()
        """What was refused, dropped or broken, by kind."""
        self.sessions = Sessions()
        self.is_stopping = False
        self._listeners = tuple(listeners)
        self._connections: dict[Connection, None] = {}
        self._unflushed: list[Connection] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._encoded: dict[int, tuple[Publish, Encoded]] = {}
        self._emptied = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._ticker: Ticker

    # -- serving ------------------------------------------------------------------------------------------------------

    async def serve(self, gate: Gate, *, task_status: TaskStatus[Listening]) -> None:
        """Serve until cancelled; reports the addresses once every listener is up."""
        self.gate = gate
        self._loop = asyncio.get_running_loop()
        self._ticker = Ticker(self.now())
        self.lifetimes = Lifetimes(self.sessions, gate, self.limits, store=self.store, now=self.now, start=self.start)
        async with AsyncExitStack() as stack:
            if self.store is not None:
                await stack.enter_async_context(self.store)
                self.lifetimes.restore(await self.store.load())
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
            self.lifetimes.tick(now)
            if self.store is not None and now - saved >= SAVE_EVERY_S:
                saved = now
                self.store.save(self.sessions)

    async def _stop(self) -> None:
        """Read nothing more, finish and acknowledge what was read, say good-bye, keep the sessions."""
        self.is_stopping = True
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
            if self.store is not None:
                self.store.save_all(self.sessions)
            for session in self.sessions:
                self.lifetimes.unpark(session, Closed.SHUTDOWN)
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
        if len(self._connections) >= self.limits.max_connections or self.is_stopping:
            self.counts["too-many-connections"] += 1
            return False
        self._connections[connection] = None
        self._ticker.add(connection, connection.heard + self.limits.connect_timeout_s)
        return True

    def disconnected(self, connection: Connection) -> None:
        """Forget a connection whose socket is gone."""
        self._connections.pop(connection, None)
        self._ticker.remove(connection)
        if self.is_stopping and not self._connections:
            self._emptied.set()

    def watch(self, connection: Connection) -> None:
        """Replace the CONNECT deadline by the keep-alive of an open link."""
        self._ticker.remove(connection)
        if connection in self._connections:
            self._ticker.add(connection, connection.keep_alive_deadline())

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

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a task that ends before the engine does; whoever takes its answer reads its exception."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def answered(self, outcome: Outcome) -> "asyncio.Future[Outcome]":
        """An answer that is already there."""
        future = self._loop.create_future()
        future.set_result(outcome)
        return future
