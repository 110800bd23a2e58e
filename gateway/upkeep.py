"""The lake keeps itself: merging, sweeping and checkpoints, in the lake's own process, a share of the time.

Merging goes on while rows are taken in and sealed. A clock that is not trusted says nothing about the age of replaced
files, so nothing is removed then.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client.core import Metric

from runtime.metrics import counter, gauge
from things.errors import SkepError

log = logging.getLogger(__name__)

BUDGET_S = 6.0
"""After this much merging a run ends; with more due the next comes at the next call, so about a tenth of one core."""


class Keeper(Protocol):
    async def keep(self, *, budget_s: float) -> Mapping[str, Any]:
        """The members of `twin.lake.upkeep.Kept`."""
        ...


@dataclass(slots=True)
class Upkeep:
    """Keeps one gateway's lake; `keep` is called every now and then."""

    lake: Keeper
    interval_s: float
    steady: Callable[[], int]
    """µs."""
    is_trusted: Callable[[], bool] = lambda: True
    failures: int = 0
    _next: int = 0
    _last: Mapping[str, Any] = field(default_factory=dict)
    _failed: str | None = None
    _freed: int = 0
    _merged: int = 0
    _mended: int = 0

    async def keep(self) -> None:
        """Do what is due, if it is time. Raises SkepError; the next call tries again."""
        if self.steady() < self._next or not self.is_trusted():
            return
        try:
            report = await self.lake.keep(budget_s=BUDGET_S)
        except SkepError as error:
            self.failures += 1
            self._failed = error.detail
            raise
        self._failed = None
        self._last = report
        self._freed += int(report["freed_bytes"])
        self._merged += int(report["merged"])
        self._mended += int(report["mended"])
        self._next = 0 if report["due"] else self.steady() + round(self.interval_s * 1_000_000)
        if report["merged"] or report["removed"] or report["mended"]:
            told = {key: report[key] for key in ("merged", "written", "removed", "freed_bytes", "mended", "parts")}
            log.info("the lake was kept", extra=told)

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know, by name."""
        found = {}
        if self._failed is not None:
            found["lake-upkeep"] = (
                f"the upkeep of the lake fails, so that it may not be compacted or free space: {self._failed}"
            )
        problems = self._last.get("problems") or ()
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            found["lake-damage"] = f"{problems[0]}{more}: see `skep lake verify` and `skep lake mend`"
        if aside := int(self._last.get("aside", 0)):
            found["lake-quarantine"] = f"{aside} sealed rows are set aside as damaged: see `skep lake mend`"
        return found

    def metrics(self) -> Iterator[Metric]:
        """For Prometheus; sizes are those of the last run."""
        last = self._last
        yield gauge("skep_lake_parts", "Files that make up the lake.", int(last.get("parts", 0)))
        yield gauge("skep_lake_bytes", "Bytes of these files.", int(last.get("live_bytes", 0)))
        yield gauge("skep_lake_waiting_bytes", "Bytes of replaced files.", int(last.get("waiting_bytes", 0)))
        yield gauge("skep_lake_commits", "Commits in the manifest.", int(last.get("commits", 0)))
        yield gauge("skep_lake_rows_damaged", "Sealed rows that are set aside as damaged.", int(last.get("aside", 0)))
        due_s = max(0, self._next - self.steady()) / 1_000_000
        yield gauge("skep_lake_upkeep_due_seconds", "Until the lake is kept again.", due_s)
        yield counter("skep_lake_mended_parts_total", "Damaged parts that were made again.", self._mended)
        yield counter("skep_lake_merged_parts_total", "Parts that were merged into others.", self._merged)
        yield counter("skep_lake_freed_bytes_total", "Bytes of files that were removed.", self._freed)
        yield counter("skep_lake_upkeep_failures_total", "Runs of the upkeep that failed.", self.failures)
