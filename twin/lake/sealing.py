"""Sealing: the next range of hot rows becomes Parquet files, visible all together or not at all.

A range goes through four steps: files under hidden names, synced, renamed, and one manifest commit. Killed before the
commit, nothing happened and the same rows are sealed again; killed after it, they are sealed.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from things.lake import PRESENCE, READINGS, REQUESTS, THINGS, Commit, Part, Snapshot, agent_of
from twin.lake.declared import SeriesTypes
from twin.lake.gathering import Gathering, uncollected
from twin.lake.manifest import Manifest
from twin.lake.rows import HotRows
from twin.lake.tables import table_of, write_parquet

ROWS_PER_COMMIT = 500_000
"""The most that one commit adds. Two such ranges are in memory at once, as Arrow (about 100 bytes a row)."""
BATCH = 50_000


class Beside(NamedTuple):
    """Rows of a small table (things, presence, requests) sealed in the same commit. `mark` numbers the last of them in
    the writer's own counting; rows of a batch whose mark is not above the manifest's are there already."""

    table: str
    mark: int
    rows: Sequence[Mapping[str, Any]]


class Sealed(NamedTuple):
    """What one sealing did."""

    first: int
    last: int
    rows: int
    parts: int
    bytes: int
    commits: int


class Sealer:
    """Seals into one gateway's part of a lake. One at a time: the worker process is the only writer."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.place = manifest.place
        self.types = SeriesTypes(manifest.place)

    def seal(self, hot: HotRows, beside: Sequence[Beside] = (), *, up_to: int | None = None) -> Sealed:
        """Seal everything above the sealed mark, `up_to` a row id (inclusive). Idempotent: nothing new, nothing done.
        Raises Conflict if another writer seals the same gateway."""
        with uncollected():
            return self._seal(hot, beside, up_to)

    def _seal(self, hot: HotRows, beside: Sequence[Beside], up_to: int | None) -> Sealed:
        base = self.manifest.snapshot()
        self.types.load(base)
        start = base.sealed + 1
        last = hot.last() if up_to is None else min(up_to, hot.last())
        fresh = [batch for batch in beside if batch.rows and batch.mark > base.marks.get(batch.table, 0)]
        for batch in fresh:
            if batch.table == THINGS:
                self.types.add(batch.rows)
        done: list[_Committed] = []
        # While one range is written and synced, the next one is read.
        with ThreadPoolExecutor(1, "commit") as committing:
            running: Future[_Committed] | None = None
            for gathered in self._ranges(hot, start, last):
                if running is not None:
                    done.append(running.result())
                    base, fresh, running = done[-1].snapshot, [], None
                if gathered.rows or fresh:
                    running = committing.submit(self._commit, base, gathered, fresh)
            if running is not None:
                done.append(running.result())
                base = done[-1].snapshot
        rows, parts, size = (
            sum(one.rows for one in done),
            sum(one.parts for one in done),
            sum(one.size for one in done),
        )
        return Sealed(start, base.sealed, rows, parts, size, len(done))

    def _ranges(self, hot: HotRows, first: int, last: int) -> Iterator[Gathering]:
        """The rows of one commit after the other; the last one may be empty."""
        gathered = Gathering(self.types, self.manifest.gateway)
        for batch in hot.columns(first, last, BATCH):
            gathered.add(batch)
            if gathered.rows >= ROWS_PER_COMMIT:
                yield gathered
                gathered = Gathering(self.types, self.manifest.gateway)
        yield gathered

    def clear_unlisted(self) -> int:
        """Remove what a killed sealing left behind: this gateway's files that no commit names. Only the one writer may
        do this, and only while it writes nothing; how many went."""
        known = {part.path for part in self.manifest.snapshot().parts}
        known.update(path for path, _ in self.manifest.replaced())
        gone = 0
        for table in (READINGS, THINGS, PRESENCE, REQUESTS):
            for file in list(self.place.walk(f"{table}/gateway={self.manifest.gateway}")):
                if file.path not in known:
                    self.place.remove(file.path)
                    gone += 1
        return gone

    def _commit(self, base: Snapshot, gathered: Gathering, beside: Sequence[Beside]) -> "_Committed":
        gateway, seq = self.manifest.gateway, base.seq + 1
        files: list[_File] = []
        for batch in beside:
            whole = [{"agent_id": agent_of(str(row.get("thing_id", ""))), **row} for row in batch.rows]
            path = f"{batch.table}/gateway={gateway}/part-{batch.mark:012d}-{seq:012d}.parquet"
            files.append(_File(path, table_of(batch.table, whole, gateway), 0, 0))
        for day in gathered.days():
            files.append(
                _File(readings_path(gateway, day.day, day.first, day.last, seq), day.table, day.first, day.last)
            )
        written = self.place.write_all([(file.path, partial(write_parquet, file.table)) for file in files])
        parts = [
            Part(path=file.path, rows=file.table.num_rows, sha256=one.sha256, first=file.first, last=file.last)
            for file, one in zip(files, written, strict=True)
        ]
        commit = Commit(
            gateway=gateway,
            seq=seq,
            first=base.sealed + 1,
            last=gathered.last or base.sealed,
            parts=parts,
            marks={batch.table: batch.mark for batch in beside},
        )
        size = sum(one.size for one in written)
        return _Committed(self.manifest.commit(base, commit), gathered.rows, len(parts), size)


class _File(NamedTuple):
    path: str
    table: pa.Table
    first: int
    last: int


class _Committed(NamedTuple):
    snapshot: Snapshot
    rows: int
    parts: int
    size: int


def readings_path(gateway: str, day: str, first: int, last: int, seq: int) -> str:
    """Where a file of readings lies. The commit's number keeps a merged file apart from those it replaces."""
    return f"{READINGS}/gateway={gateway}/day={day}/part-{first:015d}-{last:015d}-{seq:012d}.parquet"
