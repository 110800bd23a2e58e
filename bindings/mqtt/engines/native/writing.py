"""The writing side of a connection: what is sent in one turn of the loop leaves in one write."""

import asyncio
from collections.abc import Callable
from typing import Protocol

FLUSH_BYTES = 65_536
"""Bytes of one loop turn after which the socket is asked, so that its back-pressure is felt within the turn."""
MAX_UNREAD_BYTES = 4 * FLUSH_BYTES
"""Written but not read by the client, beyond which it is not read either: deliveries wait in the outbox long before, so
these are answers to a client that asks and never listens."""


class Writer(Protocol):
    """The writing side, as far as those who write packets know it."""

    paused: bool
    """The socket takes no more: what can wait does."""

    def write(self, data: bytes, packet_id: bytes = b"", tail: bytes = b"") -> None:
        """Queue a packet for the socket; a PUBLISH with a packet id comes in its three parts."""


class Flushes:
    """The connections that have something to write at the end of this turn of the loop."""

    __slots__ = ("_call_soon", "_waiting")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._waiting: list[Output] = []

    def add(self, output: "Output") -> None:
        """Flush `output` at the end of this turn."""
        if not self._waiting:
            self._call_soon(self.flush)
        self._waiting.append(output)

    def flush(self) -> None:
        """Flush everything that waits."""
        waiting, self._waiting = self._waiting, []
        for output in waiting:
            output.flush()


class Output:
    """The bytes on their way to one client (`Writer`)."""

    __slots__ = ("_bytes", "_chunks", "_flushes", "is_closed", "paused", "transport")

    def __init__(self, transport: asyncio.Transport, flushes: Flushes) -> None:
        self.transport = transport
        self.is_closed = False
        """Nothing more is written."""
        self.paused = False
        self._flushes = flushes
        self._chunks: list[bytes] | None = None
        """What this loop turn writes; idle connections hold none."""
        self._bytes = 0
        transport.set_write_buffer_limits(high=FLUSH_BYTES)

    @property
    def is_unread(self) -> bool:
        """The client takes nothing of what it asks for."""
        return self.paused and self.transport.get_write_buffer_size() > MAX_UNREAD_BYTES

    def write(self, data: bytes, packet_id: bytes = b"", tail: bytes = b"") -> None:
        if self.is_closed:
            return
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = []
            self._flushes.add(self)
        if packet_id:
            chunks += (data, packet_id, tail)
            self._bytes += len(data) + len(tail) + 2
        else:
            chunks.append(data)
            self._bytes += len(data)
        if self._bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what was queued to the socket in one write."""
        if self._chunks is not None:
            data = b"".join(self._chunks)
            self._chunks, self._bytes = None, 0
            if not self.transport.is_closing():
                self.transport.write(data)

    def close(self) -> None:
        """Close the socket behind what is queued."""
        self.is_closed = True
        self.flush()
        self.transport.close()
