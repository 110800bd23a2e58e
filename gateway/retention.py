"""When old readings go: hot files by housekeeping, sealed ones by the configured rules, neither by a clock that jumped.

A clock that was set while the runtime ran says nothing reliable about age; nothing goes until it agrees again with the
time that has passed, or until the next start. Nor does one that is earlier than in former runs.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.core import Clocks
from runtime.services.lake import LakeKeeper
from things.errors import SkepError

log = logging.getLogger(__name__)

MAX_DRIFT_US = 5 * 60 * 1_000_000
"""What the wall clock may differ from the time that has passed; more is a jump."""


@dataclass(slots=True)
class Retention:
    """Keeps one gateway's history within its budgets; `keep` is called every now and then."""

    trim: Callable[[], Awaitable[object]]
    """Lets hot files go that are beyond their budget and sealed."""
    lake: LakeKeeper
    rules: Sequence[Mapping[str, Any]]
    interval_s: float
    clocks: Clocks
    is_trusted: Callable[[], bool] = lambda: True
    """Whether the clock may be right: it is not earlier than in former runs."""
    _failed: str | None = None
    _next: int = 0
    is_paused: bool = False
    """Since the clock jumped."""
    _apart: int = field(init=False)
    """Between the clocks at the start."""

    def __post_init__(self) -> None:
        self._apart = self.clocks.now() - self.clocks.steady()

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know, by name."""
        if self._failed is None:
            return {}
        return {"retention": f"readings beyond their limits stay: {self._failed}"}

    async def keep(self) -> None:
        """Let go what is due. Raises SkepError; the next call tries again."""
        drift = abs(self.clocks.now() - self.clocks.steady() - self._apart)
        if drift > MAX_DRIFT_US or not self.is_trusted():
            if not self.is_paused:
                log.warning("retention is paused: the clock is not trusted", extra={"seconds": drift / 1_000_000})
            self.is_paused = True
            return
        self.is_paused = False
        await self.trim()
        now = self.clocks.steady()
        if not self.rules or now < self._next:
            return
        try:
            report = await self.lake.retain(self.rules)
        except SkepError as error:
            self._failed = error.detail
            raise
        self._failed = None
        self._next = now + round(self.interval_s * 1_000_000)
        if report["rows"]:
            log.info("old readings are gone", extra={"rows": report["rows"], "days": len(report["days"])})
