"""What only the disk of a data folder can say: how much is in it, and what was set aside.

It is looked at in a thread, when somebody asks and the last look is some seconds old. A disk that hangs keeps that
thread and nobody else: until it answers, what was seen last is told, and that it hangs.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from gateway.inventory import HISTORY, Note, read_notes

AGAIN_S = 2.0
PATIENCE_S = 1.0
"""How long one who asks waits for a look."""
HANGS_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one look has seen."""

    notes: Sequence[Note] = ()
    history_bytes: int = 0
    database_bytes: int = 0
    free_bytes: int | None = None


class FolderFigures:
    """The figures of one data folder; `clock` gives seconds that only rise."""

    def __init__(self, home: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._began: float | None = None
        self._looked: float | None = None
        self._limiter = anyio.CapacityLimiter(1)
        self.last = Figures()

    @property
    def problem(self) -> str | None:
        """What is wrong with the disk: a look at it does not come to its end."""
        if self._began is None or (waited_s := self._clock() - self._began) < HANGS_S:
            return None
        return f"the disk of {self._home} has not answered for {waited_s:.0f} s"

    async def refresh(self) -> None:
        """Look, unless that was done a moment ago or is being done; returns after PATIENCE_S in any case."""
        now = self._clock()
        if self._began is not None or (self._looked is not None and now - self._looked < AGAIN_S):
            return
        self._began, is_begun = now, False

        def look() -> None:
            nonlocal is_begun
            is_begun = True
            try:
                self.last = _seen(self._home)
            finally:
                self._looked, self._began = self._clock(), None

        try:
            with anyio.move_on_after(PATIENCE_S):
                await anyio.to_thread.run_sync(look, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            if not is_begun:
                self._began = None


def _seen(home: Path) -> Figures:
    free: int | None = None
    with suppress(OSError):
        free = shutil.disk_usage(home).free
    return Figures(
        notes=read_notes(home),
        history_bytes=_bytes_of(home / HISTORY),
        database_bytes=_bytes_of(home),
        free_bytes=free,
    )


def _bytes_of(folder: Path) -> int:
    """Of the files in a folder, those of folders in it apart: one file a day, and a few."""
    total = 0
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):
                if file.is_file():
                    total += file.stat().st_size
    return total
