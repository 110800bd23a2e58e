"""Time and ids of one runtime.

Stamps come from the wall clock. What expires is measured on a steady clock that starts at wall time, or goes on where
the last run left it (`gateway.timekeeping`), and never jumps: setting the clock of a gateway neither expires a queue at
once nor keeps it for ever.
"""

import os
import time
from threading import Lock


def wall_clock() -> int:
    """Now, µs UTC."""
    return time.time_ns() // 1_000


class SteadyClock:
    """µs UTC that only ever moves forward with elapsed time; anchored once, to the wall clock if not told otherwise."""

    def __init__(self, start: int | None = None) -> None:
        self._offset = (time.time_ns() if start is None else start * 1_000) - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self._offset) // 1_000


class IDs:
    """UUIDv7 texts (RFC 9562 section 5.7) that rise strictly within a process, so that they sort by creation."""

    def __init__(self) -> None:
        self._last = 0
        self._random = memoryview(b"")
        self._lock = Lock()

    def __call__(self) -> str:
        with self._lock:
            # 48 bits of milliseconds and 26 bits that count on within them; a clock set back keeps counting.
            stamp = (time.time_ns() // 1_000_000) << 26
            self._last = stamp if stamp > self._last else self._last + 1
            ordered = self._last
            if not self._random:
                # Many at once: a call to the system for each would cost more than all the rest.
                self._random = memoryview(os.urandom(6 * 512))
            tail = int.from_bytes(self._random[:6], "big")
            self._random = self._random[6:]
        milliseconds, count = ordered >> 26, ordered & 0x3FF_FFFF
        value = (
            (milliseconds & 0xFFFF_FFFF_FFFF) << 80
            | 0x7 << 76
            | (count >> 14) << 64
            | 0x2 << 62
            | (count & 0x3FFF) << 48
            | tail
        )
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
