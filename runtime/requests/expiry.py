"""The clocks of requests: what was not delivered by `expires` ends, as expired if nothing of it can have left the
process and else as timed out; what an agent did not finish by its deadline ends as timed out; exact to the moment,
without anybody reconnecting.

One task sleeps until the earliest of all clocks, and asks the ledger only then: it finds what is due by index, and
requests that come and end meanwhile cost it nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.ports import Ledger, LedgerRow
from runtime.requests.deliveries import Deliveries
from things.delivery import Reason, State
from things.errors import IllegalStatus, SkepError, UnknownRequest

log = logging.getLogger(__name__)

_PAGE = 500
_LONGEST_SLEEP_S = 60.0
_RETRY_S = 1.0


@dataclass(slots=True)
class Expiry:
    """Ends requests whose time is up. `steady` is the clock that never jumps."""

    ledger: Ledger
    deliveries: Deliveries
    steady: Callable[[], int]
    keep_s: float
    """How long final requests are kept."""
    _next: int | None = None
    """The earliest time at which something may expire; it may have ended since."""
    _wakes: int = 0
    """When the sleeper wakes by itself."""
    _earlier: asyncio.Event = field(default_factory=asyncio.Event)

    def due_changed(self, at: int | None) -> None:
        """Something may expire at this time; called on the loop."""
        if at is not None and (self._next is None or at < self._next):
            self._next = at
            if at < self._wakes:
                self._earlier.set()

    async def serve(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self._sweep()
                self._next = None  # what is due by requests that come meanwhile may be missing in what is read
                self.due_changed(await self.ledger.next_due())
            except SkepError as error:
                log.error("expiry paused", extra={"code": error.code})
                self._next = self.steady() + int(_RETRY_S * 1_000_000)
            await self._sleep()

    async def _sleep(self) -> None:
        """Until something may expire, or it is time to look all the same."""
        latest = self.steady() + int(_LONGEST_SLEEP_S * 1_000_000)
        while True:
            self._wakes = latest if self._next is None else min(self._next, latest)
            self._earlier.clear()
            try:
                async with asyncio.timeout(max((self._wakes - self.steady()) / 1_000_000, 0.0) + 0.001):
                    await self._earlier.wait()
            except TimeoutError:
                return

    async def _sweep(self) -> None:
        while rows := await self.ledger.due(self.steady(), limit=_PAGE):
            # Together, so that they share a commit: after a start there may be many. All are waited for, whatever
            # becomes of one.
            for outcome in await asyncio.gather(*map(self._end, rows), return_exceptions=True):
                if outcome is not None:
                    raise outcome
            if len(rows) < _PAGE:
                return

    async def _end(self, row: LedgerRow) -> None:
        if row.deadline is not None:
            reason, error = Reason.TIMEOUT, "no answer within the deadline; the device may have acted"
        elif self.deliveries.has_been_handed(row):
            reason, error = Reason.TIMEOUT, "handed over and never acknowledged; the device may have acted"
        else:
            reason, error = Reason.EXPIRED, "expired before it was handed to the agent"
        try:
            await self.deliveries.advance(row.request_id, State.FAILED, reason=reason, error=error)
        except (IllegalStatus, UnknownRequest):
            return  # its agent, or its caller, was faster

    async def purge(self, every_s: float = 60.0) -> None:
        """Forget final requests in small steps, for ever."""
        while True:
            forgotten = 0
            try:
                forgotten = await self.ledger.purge(self.steady() - int(self.keep_s * 1_000_000), limit=_PAGE)
            except SkepError as error:
                log.error("purge paused", extra={"code": error.code})
            # A full step means there is more; writers go in between.
            await asyncio.sleep(0.05 if forgotten == _PAGE else every_s)
