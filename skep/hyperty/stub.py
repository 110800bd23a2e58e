"""The stub to a skep messaging node: one WebSocket that opens a session, and takes it up again when it was lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from skep.backoff import Backoff
from skep.tls import client_context
from things.bus import Listener
from things.envelopes import Document, Envelope, read
from things.errors import SkepError, Unauthenticated, Unavailable
from things.jsontext import decode, encode

log = logging.getLogger(__name__)

SESSION = "mn:/session"
OPEN_S = 5.0
MAX_BYTES = 16_777_216

Renewed = Callable[[], Awaitable[None]]
"""Called when the node knows nothing of us any more: what was set up there has to be set up again."""


class NodeStub:
    """Messages to and from one node. Sending before the first `connected` waits for it."""

    def __init__(
        self,
        url: str,
        runtime_url: str,
        *,
        token: str | None,
        ca: str | Path | None,
        renewed: Renewed,
    ) -> None:
        self._url = url
        self._runtime_url = runtime_url
        self._token = token
        self._ca = ca
        self._arrived: Listener = _nowhere
        self._renewed = renewed
        self._session: str | None = None
        self._socket: ClientConnection | None = None
        self._unsent: asyncio.Queue[bytes] = asyncio.Queue(maxsize=10_000)
        self._failure: SkepError | None = None
        self._connected_before = False
        self.connected = asyncio.Event()
        """Set while a session is open."""

    def arriving(self, runtime_url: str, arrived: Listener) -> "NodeStub":
        """Hand what arrives to `arrived` from now on; the factory of itself (`stubs.StubFactory`)."""
        assert runtime_url == self._runtime_url
        self._arrived = arrived
        return self

    def send(self, envelope: Envelope) -> None:
        """Queue one message; raises Unavailable when too many wait for a connection."""
        try:
            self._unsent.put_nowait(encode(envelope.document))
        except asyncio.QueueFull:
            raise Unavailable("the messaging node cannot be reached, and too many messages wait for it") from None

    async def ready(self) -> None:
        """Returns when connected; raises what the node refused us with."""
        await self.connected.wait()
        if self._failure is not None:
            raise self._failure

    async def serve(self) -> None:
        """Connect, and connect again, until cancelled or refused; then the session is closed."""
        backoff = Backoff()
        try:
            while True:
                try:
                    await self._once(backoff)
                except Unauthenticated as error:
                    self._failure = error
                    self.connected.set()
                    return
                except (OSError, WebSocketException, TimeoutError, SkepError) as error:
                    if isinstance(error, InvalidHandshake) and "401" in str(error):
                        self._failure = Unauthenticated()
                        self.connected.set()
                        return
                    log.info("messaging node not reached", extra={"url": self._url, "why": type(error).__name__})
                self.connected.clear()
                await asyncio.sleep(backoff.delay_s())
        finally:
            self._socket = None

    async def close(self) -> None:
        """Tell the node that we leave; what waits is sent first."""
        socket = self._socket
        if socket is None:
            return
        with suppress(OSError, WebSocketException, TimeoutError):
            async with asyncio.timeout(OPEN_S):
                while not self._unsent.empty():
                    await socket.send(self._unsent.get_nowait(), text=True)
                await self._write(socket, {"id": 1, "type": "close", "from": self._runtime_url, "to": SESSION})
                await socket.wait_closed()

    async def _once(self, backoff: Backoff) -> None:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        options: dict[str, Any] = {"ssl": client_context(self._ca)} if self._url.startswith("wss:") else {}
        async with connect(
            self._url, additional_headers=headers, max_size=MAX_BYTES, compression=None, max_queue=1_024, **options
        ) as socket:
            async with asyncio.timeout(OPEN_S):
                is_new = await self._opened(socket)
            backoff.reset()
            self._socket = socket
            # Both end with this connection, whatever ends it.
            tasks = [asyncio.create_task(self._send_all(socket))]
            if is_new and self._connected_before:
                tasks.append(asyncio.create_task(_quietly(self._renewed())))
            self._connected_before = True
            self.connected.set()
            try:
                async for text in socket:
                    self._take(text)
            finally:
                self._socket = None
                self.connected.clear()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _opened(self, socket: ClientConnection) -> bool:
        """Take up our session, or open one; True for a new one."""
        if self._session is not None:
            answer = await self._asked(socket, "re-open", self._session)
            if answer.body.get("code") == 200:
                return False
            self._session = None
        answer = await self._asked(socket, "open", self._runtime_url)
        if answer.body.get("code") == 401:
            raise Unauthenticated(str(answer.body.get("description")))
        if answer.body.get("code") != 200:
            raise Unavailable(f"the node opens no session: {answer.body.get('description')}")
        self._session = f"{self._runtime_url}/{answer.body.get('runtimeToken')}"
        return True

    async def _asked(self, socket: ClientConnection, type_: str, sender: str) -> Envelope:
        await self._write(socket, {"id": 1, "type": type_, "from": sender, "to": SESSION})
        while True:
            envelope = read(decode(await socket.recv(), max_bytes=MAX_BYTES))
            if envelope.sender == SESSION:
                return envelope
            self._arrived(envelope)

    async def _write(self, socket: ClientConnection, document: Document) -> None:
        await socket.send(encode(document), text=True)

    async def _send_all(self, socket: ClientConnection) -> None:
        while True:
            text = await self._unsent.get()
            try:
                await socket.send(text, text=True)
            except WebSocketException:
                # The next connection sends it; order with what came later is kept by asking again, not here.
                with suppress(asyncio.QueueFull):
                    self._unsent.put_nowait(text)
                return

    def _take(self, text: str | bytes) -> None:
        try:
            envelope = read(decode(text, max_bytes=MAX_BYTES))
        except SkepError as error:
            log.warning("unreadable message from the node", extra={"detail": error.detail})
            return
        self._arrived(envelope)


def _nowhere(envelope: Envelope) -> None:
    """Nobody listens yet."""


async def _quietly(work: Awaitable[None]) -> None:
    try:
        await work
    except SkepError as error:
        log.warning("not set up again", extra={"code": error.code, "detail": error.detail})
