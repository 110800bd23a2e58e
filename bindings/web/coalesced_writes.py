"""What one turn of the loop writes, gathered: the head and the body of a reply leave together, and the replies of many
connections one after the other when the turn ends.

Each write to a socket wakes its reader, which is dear on small machines. uvicorn writes head and body apart, and
every reply as soon as it is made.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)

FLUSH_BYTES = 65_536
"""Bytes of one connection after which the socket is asked at once, so that its back-pressure is felt."""

_waiting: dict[asyncio.AbstractEventLoop, list["CoalescingTransport"]] = {}
"""Transports that have something to write in this turn of their loop."""


class CoalescingTransport(asyncio.Transport):
    """A transport in front of another, `raw`, that holds back what is written until the loop's turn ends."""

    __slots__ = ("_loop", "_parts", "_size", "raw")

    def __init__(self, raw: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.raw = raw
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: "bytes | bytearray | memoryview") -> None:
        if not self._parts:
            waiting = _waiting.get(self._loop)
            if waiting is None:
                waiting = _waiting[self._loop] = []
                self._loop.call_soon(_flush, self._loop)
            waiting.append(self)
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size > FLUSH_BYTES:
            self.flush()

    def writelines(self, list_of_data: "Iterable[bytes | bytearray | memoryview]") -> None:
        self.write(b"".join(list_of_data))

    def flush(self) -> None:
        """Hand over what is held back."""
        parts = self._parts
        if parts:
            self._parts, self._size = [], 0
            if self.raw.is_closing():  # lost since: there is no reader
                return
            self.raw.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self.flush()
        self.raw.close()

    def abort(self) -> None:
        self._parts, self._size = [], 0
        self.raw.abort()

    def write_eof(self) -> None:
        self.flush()
        self.raw.write_eof()

    def can_write_eof(self) -> bool:
        return self.raw.can_write_eof()

    def get_write_buffer_size(self) -> int:
        return self._size + self.raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.raw.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self.raw.is_closing()

    def is_reading(self) -> bool:
        return self.raw.is_reading()

    def pause_reading(self) -> None:
        self.raw.pause_reading()

    def resume_reading(self) -> None:
        self.raw.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.raw.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.raw.get_protocol()


def _flush(loop: asyncio.AbstractEventLoop) -> None:
    for transport in _waiting.pop(loop, ()):
        try:
            transport.flush()
        except Exception:
            # One connection that cannot be written must not keep the others' replies.
            log.exception("a reply could not be written")
            transport.abort()
