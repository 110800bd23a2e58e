"""What a lake needs done from time to time: small parts merged, replaced files removed, the manifest kept short.

How many parts and commits there are then follows days and size and not how often is sealed. Each run is bounded by
time; what is left is done by the next one. A part is merged only with others that are not much larger together, so
that a row is written a few times and not once for each sealing.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from things.errors import StorageDamaged
from things.lake import READINGS, TABLES, Part, Snapshot, day_of
from twin.lake.compaction import MAX_ROWS, Compactor
from twin.lake.manifest import Manifest
from twin.lake.mending import Mender
from twin.lake.quarantine import records
from twin.lake.rows import HotRows
from twin.lake.tables import DAY_US, ROW_GROUP
from twin.lake.verification import fault_of

FAN = 3
"""So many parts of a folder are merged at least. A day that is over does with fewer."""
SHARE = 3
"""A day that is over is merged into one when the small parts make up this fraction of the largest."""
FEW_ROWS = ROW_GROUP
"""So many are written again for any late row."""


class Kept(NamedTuple):
    """What one run did, and how the lake stands after it."""

    merged: int
    written: int
    removed: int
    """Files that were replaced before the grace period, and files left by killed writers."""
    freed_bytes: int
    parts: int
    live_bytes: int
    waiting_bytes: int
    """In replaced files whose grace period is not over."""
    commits: int
    """Files of the manifest."""
    due: bool
    """Whether there is more to merge than there was time for."""
    problems: list[str]
    """Damage that keeps parts from being merged."""
    mended: int
    """Damaged parts that were made again from hot rows."""
    aside: int
    """Rows of parts that are set aside as damaged."""


class Upkeep:
    """Keeps one gateway's part of a lake. Only the one writer may."""

    def __init__(
        self,
        manifest: Manifest,
        hot: HotRows | None = None,
        *,
        max_rows: int = MAX_ROWS,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`hot` are the rows that damaged parts may be made again from."""
        self.manifest = manifest
        self._mender = Mender(manifest, hot)
        self._compactor = Compactor(manifest, max_rows=max_rows)
        self._max_rows = max_rows
        self._steady = steady

    def keep(self, budget_s: float) -> Kept:
        """Do what is due; no merge begins after `budget_s`. Raises SkepError where the manifest cannot be read or
        written; parts that are damaged are made again, or left as they are and named."""
        until = self._steady() + budget_s
        base = self.manifest.snapshot()
        merged = written = mended = 0
        due = False
        problems = []
        for group in list(self._groups(base)):
            if self._steady() >= until:
                due = True
                break
            try:
                base = self._compactor.merge(base, group)
            except StorageDamaged as damage:
                again = self._mender.mend_parts([one for one in group if fault_of(self.manifest, one) is not None])
                mended += again.parts
                base = self.manifest.snapshot()
                # What was mended is merged by the next run.
                due = due or again.parts > 0
                if again.left or not again.parts:
                    problems.append(damage.detail)
            else:
                merged, written = merged + len(group), written + 1
        swept = self._compactor.sweep(base)
        mine = f"/gateway={self.manifest.gateway}/"
        found = (file for table in TABLES for file in self.manifest.place.walk(table) if mine in file.path)
        sizes = {file.path: file.size for file in found}
        live = sum(sizes.get(part.path, 0) for part in base.parts)
        waiting = sum(sizes.get(path, 0) for path, _ in self.manifest.replaced())
        return Kept(
            merged=merged,
            written=written,
            removed=swept.files,
            freed_bytes=swept.bytes,
            parts=len(base.parts),
            live_bytes=live,
            waiting_bytes=waiting,
            commits=len(self.manifest.numbers()),
            due=due,
            problems=problems,
            mended=mended,
            aside=sum(part.rows for part in records(self.manifest, base)),
        )

    def _groups(self, snapshot: Snapshot) -> Iterator[Sequence[Part]]:
        """What is worth merging, each group the parts of one folder, oldest folder first."""
        today = day_of(self.manifest.now())
        folders: dict[str, list[Part]] = {}
        for part in snapshot.parts:
            if part.table in TABLES and part.rows < self._max_rows:
                folders.setdefault(part.path.rpartition("/")[0], []).append(part)
        for folder in sorted(folders):
            parts = sorted(folders[folder], key=lambda part: part.rows)
            is_over = parts[0].table == READINGS and parts[0].day < today
            group = self._chosen(parts, is_over=is_over)
            if not group and is_over and self._is_quiet(parts):
                group = self._fitting(parts)
            if len(group) >= 2:
                yield sorted(group, key=lambda part: part.first)

    def _chosen(self, parts: Sequence[Part], *, is_over: bool) -> Sequence[Part]:
        """The parts of a folder to merge, of those ordered by rising size; none if it does not pay yet."""
        fitting = self._fitting(parts)
        rows = sum(part.rows for part in fitting)
        if is_over and len(fitting) >= 2 and (rows <= FEW_ROWS or rows - fitting[-1].rows >= fitting[-1].rows / SHARE):
            return fitting
        while len(fitting) >= FAN and fitting[-1].rows > SHARE * sum(part.rows for part in fitting[:-1]):
            # So much larger than all before it that writing it again does not pay.
            fitting.pop()
        return fitting if len(fitting) >= FAN else ()

    def _fitting(self, parts: Sequence[Part]) -> list[Part]:
        """As many, from the smallest on, as one part may hold."""
        fitting: list[Part] = []
        rows = 0
        for part in parts:
            rows += part.rows
            if rows > self._max_rows:
                break
            fitting.append(part)
        return fitting

    def _is_quiet(self, parts: Sequence[Part]) -> bool:
        """Whether nothing has come into a folder for a day."""
        # The name of a part ends with the number of its commit; one that is trimmed away is old.
        newest = max(int(part.path.rpartition("-")[2].partition(".")[0]) for part in parts)
        is_there = newest in self.manifest.numbers()
        return not is_there or self.manifest.commit_at(newest).at < self.manifest.now() - DAY_US
