"""MQTT over WebSocket (MQTT 5.0, section 6): an ASGI socket that looks like a transport to a connection.

A WebSocket message may hold part of a packet or several; the connection's framer does not care. Only binary messages
of the subprotocol `mqtt` are MQTT.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

SUBPROTOCOL = "mqtt"


class WebSocketTransport(asyncio.Transport):
    """The writing side of one WebSocket, with the flow control a connection expects of a transport."""

    def __init__(self, scope: Scope) -> None:
        super().__init__({"peername": scope.get("client"), "sockname": scope.get("server"), "sslcontext": None})
        self._protocol: asyncio.Protocol
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._high = 65_536
        self._full = False
        self._closing = False
        self._wake = asyncio.Event()
        self._readable = asyncio.Event()
        self._readable.set()
        self._cut = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._wake.set()
        if self._unsent_bytes > self._high and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self._wake.set()
        self._readable.set()

    def abort(self) -> None:
        self._unsent.clear()
        self._cut.set()
        self.close()

    def pause_reading(self) -> None:
        self._readable.clear()

    def resume_reading(self) -> None:
        self._readable.set()

    async def run(self, protocol: asyncio.Protocol, receive: Receive, send: Send) -> None:
        """Carry bytes both ways until either side ends."""
        self._protocol = protocol
        protocol.connection_made(self)
        error: Exception | None = None
        tasks = {
            asyncio.ensure_future(self._read(receive)),
            asyncio.ensure_future(self._write_out(send)),
            asyncio.ensure_future(self._cut.wait()),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            error = next((failed for each in done if isinstance(failed := each.exception(), Exception)), None)
        finally:
            self._closing = True
            for task in tasks:
                task.cancel()
            protocol.connection_lost(error)
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, receive: Receive) -> None:
        while True:
            await self._readable.wait()
            event = await receive()
            if event["type"] != "websocket.receive":
                return
            data = event.get("bytes")
            if data is None:
                # [MQTT-6.0.0-1] anything but binary ends the connection.
                self.close()
            elif not self._closing:
                self._protocol.data_received(data)

    async def _write_out(self, send: Send) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsent:
                data = b"".join(self._unsent)
                self._unsent.clear()
                await send({"type": "websocket.send", "bytes": data})
                self._unsent_bytes -= len(data)
                if self._full and self._unsent_bytes <= self._high // 4:
                    self._full = False
                    self._protocol.resume_writing()
            if self._closing:
                await send({"type": "websocket.close", "code": 1000})
                return


async def serve_websocket(
    connection: Callable[[str | None], asyncio.Protocol], scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one WebSocket as ASGI hands it over; `connection` makes its protocol."""
    if scope["type"] != "websocket":
        raise ValueError(f"MQTT is served over WebSocket, not {scope['type']}")
    event = await receive()
    assert event["type"] == "websocket.connect"
    if SUBPROTOCOL not in scope.get("subprotocols", ()):
        # [MQTT-6.0.0-3] the client offers the subprotocol; one that does not speaks something else.
        await send({"type": "websocket.close", "code": 1002})
        return
    await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
    client = scope.get("client")
    await WebSocketTransport(scope).run(connection(client[0] if client else None), receive, send)
