"""The native wire engine: listeners, connections and their timer, one write per connection and loop turn.

It owns every task it starts: they end with `serve`. It decides nothing: who may come in, what a filter yields and what
becomes of a publish is the gate's.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskStatus

from bindings.mqtt.engines.native.admission import Admission
from bindings.mqtt.engines.native.connection import Connection, Server
from bindings.mqtt.engines.native.encodings import Encodings
from bindings.mqtt.engines.native.lifetimes import Lifetimes
from bindings.mqtt.engines.native.listening import listen
from bindings.mqtt.engines.native.sessions import Sessions
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.native.store import SessionStore
from bindings.mqtt.engines.native.ticker import SLOT_S, Ticker
from bindings.mqtt.engines.native.turns import Turns
from bindings.mqtt.engines.native.websocket import Receive, Scope, Send, serve_websocket
from bindings.mqtt.engines.native.writing import Flushes
from bindings.mqtt.engines.open_connections import OpenConnections
from bindings.mqtt.engines.seam import Closed, Gate, Limits, Listener, Listening
from bindings.mqtt.topics import own_inbox
from things.identity import Principal

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_TIMEOUT_S = 5.0
"""How long commits in flight may take when the engine stops."""
SAVE_EVERY_S = 0.5
"""How often changed sessions are written behind."""


class NativeEngine:
    """An MQTT 3.1.1 and 5 server on asyncio; `serve` once."""

    name = "native"
    connections: OpenConnections[Connection]
    _loop: asyncio.AbstractEventLoop
    _server: Server

    def __init__(
        self,
        listeners: Sequence[Listener],
        limits: Limits,
        store: SessionStore | None = None,
        response_information: Callable[[Principal], str] = own_inbox,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`response_information`: what a client is told if it asks where answers may go (MQTT 5). `clock`: monotonic
        seconds; the loop's own if none is given."""
        self.counts: Counter[str] = Counter()
        """What was refused, dropped or broken, by kind."""
        self.sessions = Sessions()
        self._limits = limits
        self._store = store
        self._response_information = response_information
        self._listeners = tuple(listeners)
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, gate: Gate, *, task_status: TaskStatus[Listening]) -> None:
        """Serve until cancelled; reports the addresses once every listener is up."""
        self._loop = asyncio.get_running_loop()
        self._server = server = self._assembled(gate)
        self.connections = server.connections
        async with AsyncExitStack() as stack:
            if self._store is not None:
                await stack.enter_async_context(self._store)
                server.lifetimes.restore(await self._store.load())
            stack.push_async_callback(self._stop)
            addresses = [
                await stack.enter_async_context(listen(listener, self._connection, self._limits.connect_timeout_s))
                for listener in self._listeners
            ]
            task_status.started(Listening(addresses=tuple(addresses)))
            await self._run()

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """MQTT over WebSocket, as an ASGI application to be mounted at `/mqtt`."""
        await serve_websocket(self._connection, scope, receive, send)

    def _connection(self, source: str | None = None) -> Connection:
        return Connection(self._server, source)

    def _assembled(self, gate: Gate) -> Server:
        loop = self._loop
        now = self._clock or loop.time
        shared = Shared(
            limits=self._limits,
            gate=gate,
            store=self._store,
            counts=self.counts,
            now=now,
            start=self._start,
            later=loop.call_later,
            encode=Encodings().encode,
            turns=Turns(loop.call_soon),
            flushes=Flushes(loop.call_soon),
        )
        connections = OpenConnections[Connection](self._limits, self.counts, now)
        lifetimes = Lifetimes(shared, self.sessions)
        return Server(
            shared=shared,
            connections=connections,
            ticker=Ticker(now()),
            lifetimes=lifetimes,
            admission=Admission(
                shared, self.sessions, lifetimes, self._response_information, lambda: connections.is_stopping
            ),
        )

    async def _run(self) -> None:
        """The one timer: deadlines, session ends and delayed wills, and the sessions that are to be written."""
        server, clock = self._server, self._server.shared.now
        saved = clock()
        while True:
            await anyio.sleep(SLOT_S)
            now = clock()
            server.ticker.tick(now)
            server.lifetimes.tick(now)
            if self._store is not None and now - saved >= SAVE_EVERY_S:
                saved = now
                self._store.save(self.sessions, server.shared.gate.published_row)

    async def _stop(self) -> None:
        """Read nothing more, finish and acknowledge what was read, say good-bye, keep the sessions."""
        connections = self.connections
        connections.is_stopping = True
        with anyio.CancelScope(shield=True):
            for connection in connections:
                connection.stop_reading()
            with anyio.move_on_after(STOP_TIMEOUT_S):
                await asyncio.gather(*(connection.settled() for connection in connections))
            for connection in connections:
                connection.close(Closed.SHUTDOWN)
            self._server.shared.flushes.flush()
            with anyio.move_on_after(STOP_TIMEOUT_S):
                while self._tasks:
                    await asyncio.wait(self._tasks)
            for task in self._tasks:
                task.cancel()
            if self._store is not None:
                self._store.save_all(self.sessions, self._server.shared.gate.published_row)
            for session in self.sessions:
                self._server.lifetimes.unpark(session, Closed.SHUTDOWN)
            with anyio.move_on_after(1.0):
                await connections.closed()
            for connection in connections:
                connection.abort()

    def _start(self, work: Coroutine[Any, Any, T], /) -> "asyncio.Task[T]":
        """Run a task that ends before the engine does; whoever takes its answer reads its exception."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
