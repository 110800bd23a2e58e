"""What a connection has received and not parsed yet.

One read of a socket brings up to 256 KiB, which may be thousands of requests or chunks: parsed in one go they hold the
loop for a tenth of a second, whoever sent them. So they are parsed in slices, one a turn of the loop, and no further
while earlier requests of the connection wait for their answer.
"""

import asyncio
from collections.abc import Callable, Sized

from uvicorn.protocols.http.flow_control import FlowControl

SLICE_BYTES = 8_192
"""Parsed in one turn: some 250 of the smallest requests, or 1,300 of the smallest chunks."""


class Intake(FlowControl):
    """uvicorn's flow control of one connection, with the bytes that wait for their turn; `parse` takes a slice.
    `behind` are requests that were parsed and wait for the answers before them."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        parse: Callable[[bytes], None],
        behind: Sized,
    ) -> None:
        super().__init__(transport)
        self._loop = loop
        self._parse = parse
        self._behind = behind
        self._waiting = bytearray()
        self._turn: asyncio.Handle | None = None

    def take(self, data: bytes) -> None:
        """Parse what was read, at once if it is little and nothing waits before it."""
        if not self._waiting and len(data) <= SLICE_BYTES:
            self._parse(data)
            return
        self._waiting += data
        self._transport.pause_reading()
        if self._turn is None and not self.read_paused:
            self._go_on()

    def drop(self) -> None:
        """Forget what waits: the connection is gone, or speaks another protocol now."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def resume_reading(self) -> None:
        # Whoever asks for the body of one request asks for more to be read: all of it is here if others came behind it.
        if not self.read_paused or self._behind:
            return
        self.read_paused = False
        if not self._waiting:
            self._transport.resume_reading()
        elif self._turn is None:
            self._turn = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        if self._transport.is_closing():
            self._waiting.clear()
            return
        data = bytes(self._waiting[:SLICE_BYTES])
        del self._waiting[:SLICE_BYTES]
        self._parse(data)
        if self._waiting:
            if not self.read_paused and self._turn is None:
                self._turn = self._loop.call_soon(self._go_on)
        elif not self.read_paused and not self._transport.is_closing():
            self._transport.resume_reading()
