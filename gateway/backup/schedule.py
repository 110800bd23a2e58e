"""Backups that the gateway takes by itself, one after the other, each in a process of its own (`gateway.backup`).

A backup takes minutes and the rest of housekeeping must not wait for it, so `keep` only begins one when it is due and
looks at how the last one ended. When the runtime ends, so does the process; what it had written is no backup.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
from prometheus_client.core import Metric

from gateway.backup.taken import Taken, last_taken
from runtime.metrics import counter, gauge

log = logging.getLogger(__name__)

FIRST_S = 120
"""Until a backup that is due at the start begins: those that come back have the machine for themselves first."""
AGAIN_S = 3_600
"""After a failure, or sooner where backups are taken more often."""


@dataclass(slots=True)
class Schedule:
    """The backups of one home; `keep` is called every now and then, `serve` runs what it asked for."""

    home: Path
    to: str | None
    every_s: float
    clock: Callable[[], int]
    """µs UTC."""
    steady: Callable[[], int]
    """µs, never set back."""
    record: Callable[[str], None]
    """Tells the audit log of a backup that was finished."""
    command: Sequence[str] = (sys.executable, "-m", "gateway.backup")
    first_s: float = FIRST_S
    failures: int = 0
    _failed: str | None = None
    _last: Taken | None = None
    _next: int | None = None
    _due: anyio.Event = field(default_factory=anyio.Event)
    _is_running: bool = False

    def __post_init__(self) -> None:
        self._last = last_taken(self.home)

    async def keep(self) -> None:
        """Take note of backups that were finished, by whomever, and begin one that is due."""
        self._take_note(await anyio.to_thread.run_sync(last_taken, self.home))
        if self.to is None or self._is_running:
            return
        now = self.steady()
        if self._next is None:
            # How long ago the last one was taken is known only by the clock on the wall.
            wait_s = self.every_s if self._last is None else self.every_s - (self.clock() - self._last.at) / 1e6
            wait_s = 0.0 if self._last is None else min(wait_s, self.every_s)
            self._next = now + round(max(wait_s, self.first_s) * 1e6)
        if now >= self._next:
            self._is_running = True
            self._due.set()

    def _take_note(self, found: Taken | None) -> None:
        if found is not None and found != self._last:
            self._last = found
            self._failed = None
            where = f"{found.to} {found.name}, {'with' if found.has_keys else 'without'} keys"
            self.record(where)
            log.info("a backup was taken", extra={"to": found.to, "name_": found.name, "bytes": found.bytes})

    async def serve(self) -> None:
        """Run what is due, until cancelled; then take note of what was finished since the last look, such as the one
        by hand for which a folder was opened."""
        try:
            await self._run_due()
        finally:
            self._take_note(last_taken(self.home))

    async def _run_due(self) -> None:
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            try:
                self._failed = await self._ran()
            finally:
                self._is_running = False
            wait_s = self.every_s
            if self._failed is not None:
                self.failures += 1
                wait_s = min(AGAIN_S, self.every_s)
                log.error("no backup was taken", extra={"detail": self._failed})
            self._next = self.steady() + round(wait_s * 1e6)

    async def _ran(self) -> str | None:
        """Take one; what kept it from being taken."""
        try:
            done = await anyio.run_process(
                [*self.command, str(self.home)], check=False, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        except OSError as error:
            return f"its process cannot be started: {error}"
        if done.returncode == 0:
            return None
        try:
            told = json.loads(done.stdout)["error"]
            return f"{told['code']}: {told['detail']}"
        except (ValueError, KeyError, TypeError):
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            return f"its process ended with {done.returncode}{f': {said[-1]}' if said else ''}"

    def warnings(self) -> Mapping[str, str]:
        """What an owner should know, by name."""
        if self.to is None:
            return {}
        if self._failed is not None:
            return {"backup": f"the last backup by schedule failed: {self._failed}"}
        age_s = self._age_s
        if age_s is not None and age_s > 2 * self.every_s:
            return {"backup": f"the last backup was taken {age_s / 3600:.0f} hours ago"}
        return {}

    @property
    def _age_s(self) -> float | None:
        return None if self._last is None else max(0.0, (self.clock() - self._last.at) / 1e6)

    def metrics(self) -> Iterator[Metric]:
        """For Prometheus; no age where there is no backup."""
        age_s = self._age_s
        if age_s is not None:
            yield gauge("skep_backup_age_seconds", "Since the last backup was finished.", round(age_s))
        yield counter("skep_backup_failures_total", "Backups by schedule that failed.", self.failures)
