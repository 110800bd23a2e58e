"""When hot history is sealed into the lake: by time, by number of rows, or on demand."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from things.errors import SkepError

log = logging.getLogger(__name__)

_CHECK_S = 10.0

Beside = Callable[[Mapping[str, int]], Awaitable[Sequence[Mapping[str, Any]]]]
"""What is sealed with the readings, above the marks of each table: TD versions, presence, finished requests."""


class Lake(Protocol):
    """The lake's writer, which lives in a process of its own."""

    async def seal(self, beside: Sequence[Mapping[str, Any]] = (), *, up_to: int | None = None) -> Mapping[str, Any]:
        """Seal everything above the sealed mark; `{first, last, rows, parts, bytes, commits}`."""
        ...

    async def status(self) -> Mapping[str, Any]:
        """`{gateway, seq, sealed, parts, rows, marks}`."""
        ...


@dataclass(slots=True)
class Sealing:
    """Seals one gateway's history."""

    lake: Lake
    last_row: Callable[[], int]
    beside: Beside
    interval_s: float
    rows: int
    mark: int = 0
    """The last row id known to be sealed: hot files up to it may go."""
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def seal(self) -> Mapping[str, Any]:
        """Seal now; raises SkepError. One at a time: a second call finds nothing left to do."""
        async with self._one:
            status = await self.lake.status()
            report = await self.lake.seal(await self.beside(status["marks"]))
            self.mark = max(self.mark, int(report["last"]))
            return report

    async def serve(self) -> None:
        """Seal whenever it is time, until cancelled."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(_CHECK_S)
            waited_s += _CHECK_S
            waiting = self.last_row() - self.mark
            if waiting <= 0 or (waited_s < self.interval_s and waiting < self.rows):
                continue
            waited_s = 0.0
            try:
                report = await self.seal()
            except SkepError as error:
                log.error("sealing put off", extra={"code": error.code, "detail": error.detail})
            else:
                log.info("sealed", extra={"rows": report["rows"], "parts": report["parts"], "to": report["last"]})
