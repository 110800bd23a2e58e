"""When hot history is sealed into the lake: by time, by number of rows, or on demand; and how it goes.

Sealing that fails is tried again for ever and holds nothing else up, so it has to be seen: `warnings` and `metrics` say
whether it stands still, since when, and what waits.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client.core import Metric

from runtime.clocks import wall_clock
from runtime.metrics import counter, gauge
from things.errors import SkepError
from things.times import rfc3339

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
        """`{gateway, seq, sealed, parts, rows, marks, set_aside}`."""
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
    now: Callable[[], int] = wall_clock
    failures: int = 0
    set_aside: int = 0
    """Rows in the lake's table of those that no column could hold."""
    _failed: tuple[int, str] | None = None
    """Since when sealing fails, and why."""
    _one: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def seal(self) -> Mapping[str, Any]:
        """Seal now; raises SkepError. One at a time: a second call finds nothing left to do."""
        async with self._one:
            with self._noted():
                status = await self.lake.status()
                committed = self.last_row()
                report = await self.lake.seal(await self.beside(status["marks"]))
            # Ids that were left out, after a crash or a restore, are never sealed and must not be waited for.
            self.mark = max(self.mark, int(report["last"]), committed)
            self.set_aside = int(status["set_aside"]) + int(report["set_aside"])
            return report

    async def look(self) -> None:
        """Learn what is sealed already, and whether the lake can be read at all; raises SkepError."""
        async with self._one:
            with self._noted():
                status = await self.lake.status()
            self.mark = max(self.mark, int(status["sealed"]))
            self.set_aside = int(status["set_aside"])

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failures += 1
            since = self._failed[0] if self._failed else self.now()
            self._failed = since, error.detail if isinstance(error, SkepError) else repr(error)
            raise
        self._failed = None

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know of sealing, by name; nothing if all is well."""
        found = {}
        if self._failed is not None:
            since, detail = self._failed
            found["sealing"] = f"nothing has been sealed since {rfc3339(since)}: {detail}"
        if self.set_aside:
            found["set-aside"] = (
                f"{self.set_aside} readings could not be stored in any column; they are in the lake's table 'setaside'"
            )
        return found

    def metrics(self) -> Iterator[Metric]:
        """For Prometheus."""
        yield gauge("skep_unsealed_rows", "Rows of history that are not sealed yet.", self.last_row() - self.mark)
        yield gauge("skep_sealing_stalled", "1 while the last sealing failed.", self._failed is not None)
        yield counter("skep_sealing_failures_total", "Sealings that failed.", self.failures)
        yield gauge("skep_rows_set_aside", "Readings that no column of the lake could hold.", self.set_aside)

    async def serve(self) -> None:
        """Seal whenever it is time, until cancelled."""
        waited_s = 0.0
        is_known = False
        while True:
            await asyncio.sleep(_CHECK_S)
            waited_s += _CHECK_S
            if not is_known:
                # Not an hour later: what keeps the lake from being read or written should be seen at the start.
                is_known = True
                with suppress(Exception):
                    await self.look()
            waiting = self.last_row() - self.mark
            if waiting <= 0 or (waited_s < self.interval_s and waiting < self.rows):
                continue
            waited_s = 0.0
            try:
                report = await self.seal()
            except SkepError as error:
                log.error("sealing put off", extra={"code": error.code, "detail": error.detail})
            except Exception:
                # History goes on without the lake; the runtime must not end with its sealing.
                log.exception("sealing put off")
            else:
                log.info("sealed", extra={"rows": report["rows"], "parts": report["parts"], "to": report["last"]})
