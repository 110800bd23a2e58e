"""Sealing: the next range of hot rows becomes Parquet files, visible all together or not at all.

A range goes through four steps: files under hidden names, synced, renamed, and one manifest commit. Killed before the
commit, nothing happened and the same rows are sealed again; killed after it, they are sealed.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from things.lake import PRESENCE, READINGS, REQUESTS, THINGS, Commit, Part, Snapshot, agent_of
from twin.lake.declared import SeriesTypes
from twin.lake.manifest import Manifest
from twin.lake.rows import HotColumns, HotRows
from twin.lake.tables import table_of, tables_of, write_parquet

ROWS_PER_COMMIT = 500_000
"""Rows that are in memory at once (about 200 MB), and the most that one commit adds."""
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
        # Half a million tuples live for a second; looking for cycles among them costs a third of the time.
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            return self._seal(hot, beside, up_to)
        finally:
            if was_collecting:
                gc.enable()

    def _seal(self, hot: HotRows, beside: Sequence[Beside], up_to: int | None) -> Sealed:
        base = self.manifest.snapshot()
        self.types.load(base)
        start = base.sealed + 1
        last = hot.last() if up_to is None else min(up_to, hot.last())
        rows = parts = size = commits = 0
        fresh = [batch for batch in beside if batch.rows and batch.mark > base.marks.get(batch.table, 0)]
        waiting: list[HotColumns] = []
        count = 0
        for batch in hot.columns(start, last, BATCH):
            waiting.append(batch)
            count += len(batch.row_ids)
            if count >= ROWS_PER_COMMIT:
                base, written, more = self._commit(base, waiting, fresh)
                rows, parts, size, commits = rows + count, parts + written, size + more, commits + 1
                waiting, fresh, count = [], [], 0
        if waiting or fresh:
            base, written, more = self._commit(base, waiting, fresh)
            rows, parts, size, commits = rows + count, parts + written, size + more, commits + 1
        return Sealed(start, base.sealed, rows, parts, size, commits)

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

    def _commit(
        self, base: Snapshot, rows: Sequence[HotColumns], beside: Sequence[Beside]
    ) -> tuple[Snapshot, int, int]:
        gateway, seq = self.manifest.gateway, base.seq + 1
        parts: list[Part] = []
        size = 0
        for batch in beside:
            whole = [{"agent_id": agent_of(str(row.get("thing_id", ""))), **row} for row in batch.rows]
            table = table_of(batch.table, whole, gateway)
            path = f"{batch.table}/gateway={gateway}/part-{batch.mark:012d}-{seq:012d}.parquet"
            written = self.place.write(path, lambda file, table=table: write_parquet(table, file))  # type: ignore[misc]
            parts.append(Part(path=path, rows=table.num_rows, sha256=written.sha256, first=0, last=0))
            size += written.size
            if batch.table == THINGS:
                self.types.add(batch.rows)
        if rows:
            for day in tables_of(rows, self.types, gateway):
                path = readings_path(gateway, day.day, day.first, day.last, seq)
                written = self.place.write(path, lambda file, day=day: write_parquet(day.table, file))  # type: ignore[misc]
                parts.append(
                    Part(path=path, rows=day.table.num_rows, sha256=written.sha256, first=day.first, last=day.last)
                )
                size += written.size
        last = rows[-1].row_ids[-1] if rows else base.sealed
        commit = Commit(
            gateway=gateway,
            seq=seq,
            first=base.sealed + 1,
            last=last,
            parts=parts,
            marks={batch.table: batch.mark for batch in beside},
        )
        return self.manifest.commit(base, commit), len(parts), size


def readings_path(gateway: str, day: str, first: int, last: int, seq: int) -> str:
    """Where a file of readings lies. The commit's number keeps a merged file apart from those it replaces."""
    return f"{READINGS}/gateway={gateway}/day={day}/part-{first:015d}-{last:015d}-{seq:012d}.parquet"
