"""Sealing: the next range of hot rows becomes Parquet files, visible all together or not at all.

A range goes through four steps: files under hidden names, synced, renamed, and one manifest commit. Killed before the
commit, nothing happened and the same rows are sealed again; killed after it, they are sealed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from things.errors import StorageDamaged
from things.lake import PRESENCE, READINGS, REQUESTS, SET_ASIDE, THINGS, Commit, Snapshot, agent_of
from twin.lake.columns import Gathering, uncollected
from twin.lake.declared import SeriesTypes
from twin.lake.manifest import Manifest
from twin.lake.rows import HotRows
from twin.lake.tables import table_of, write_parquet

ROWS_PER_COMMIT = 500_000
"""The most that one commit adds. Two such ranges are in memory at once, as Arrow (about 100 bytes a row)."""
BYTES_PER_COMMIT = 256 * 1024 * 1024
"""The same for the text of values, so that long ones neither fill the memory nor an Arrow column."""
BATCH = 50_000

_PART_NAME = re.compile(r"part-(?:(?P<first>\d{15})-(?P<last>\d{15})|\d{12})-(?P<seq>\d{12})\.parquet")
_TEMPORARY = re.compile(r"/\.[^/]+\.tmp$")


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
    set_aside: int
    """Rows that no column could hold: they are in the table `setaside`, with the reason."""


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
                if gathered.rows or gathered.set_aside or fresh:
                    running = committing.submit(self._commit, base, gathered, fresh)
            if running is not None:
                done.append(running.result())
                base = done[-1].snapshot
        rows, parts, size = (
            sum(one.rows for one in done),
            sum(one.parts for one in done),
            sum(one.size for one in done),
        )
        aside = sum(one.set_aside for one in done)
        return Sealed(start, base.sealed, rows, parts, size, len(done), aside)

    def _ranges(self, hot: HotRows, first: int, last: int) -> Iterator[Gathering]:
        """The rows of one commit after the other; the last one may be empty."""
        gathered = Gathering(self.types, self.manifest.gateway)
        for batch in hot.columns(first, last, BATCH):
            gathered.add(batch)
            if gathered.rows + gathered.set_aside >= ROWS_PER_COMMIT or gathered.bytes >= BYTES_PER_COMMIT:
                yield gathered
                gathered = Gathering(self.types, self.manifest.gateway)
        yield gathered

    def clear_unlisted(self, hot: HotRows | None = None) -> int:
        """Remove what a killed sealing left behind: temporary files, and files of this gateway with the number of a
        commit that is there and does not name them; how many went. All others stay, since they may be all that is left
        of a commit that was lost. Only the one writer may do this, and only while it writes nothing.

        Raises StorageDamaged if there are readings beyond the manifest's last row that `hot` holds no more: then the
        manifest is older than the lake, and sealing on would give their numbers to others.
        """
        snapshot = self.manifest.snapshot()
        known = {part.path for part in snapshot.parts}
        known.update(path for path, _ in self.manifest.replaced())
        commits = self.manifest.numbers()
        first_hot = None if hot is None else hot.first()
        gone = 0
        for table in (READINGS, THINGS, PRESENCE, REQUESTS, SET_ASIDE):
            for file in list(self.place.walk(f"{table}/gateway={self.manifest.gateway}")):
                if file.path in known:
                    continue
                name = _PART_NAME.fullmatch(file.path.rpartition("/")[2])
                if _TEMPORARY.search(file.path) or (name is not None and int(name["seq"]) in commits):
                    self.place.remove(file.path)
                    gone += 1
                elif table == READINGS and name is not None and hot is not None:
                    is_beyond = int(name["last"]) > snapshot.sealed
                    if is_beyond and (first_hot is None or int(name["first"]) < first_hot):
                        raise StorageDamaged(
                            f"the manifest of gateway {snapshot.gateway!r} ends at row {snapshot.sealed}, but"
                            f" {file.path} is there: it lacks commit {int(name['seq'])}"
                        )
        return gone

    def _commit(self, base: Snapshot, gathered: Gathering, beside: Sequence[Beside]) -> "_Committed":
        gateway, seq = self.manifest.gateway, base.seq + 1
        files: list[_File] = []
        for batch in beside:
            table = _beside_table(batch, gathered, gateway)
            if table.num_rows:
                path = f"{batch.table}/gateway={gateway}/part-{batch.mark:012d}-{seq:012d}.parquet"
                files.append(_File(path, table, 0, 0))
        for day in gathered.days():
            files.append(
                _File(readings_path(gateway, day.day, day.first, day.last, seq), day.table, day.first, day.last)
            )
        if gathered.set_aside:
            first, last = base.sealed + 1, gathered.last or base.sealed
            path = f"{SET_ASIDE}/gateway={gateway}/part-{first:015d}-{last:015d}-{seq:012d}.parquet"
            files.append(_File(path, gathered.aside(), first, last))
        written = self.place.write_all([(file.path, partial(write_parquet, file.table)) for file in files])
        parts = [
            one.part(rows=file.table.num_rows, first=file.first, last=file.last)
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
        after = self.manifest.commit(base, commit)
        return _Committed(after, gathered.rows, len(parts), size, gathered.set_aside)


def _beside_table(batch: Beside, gathered: Gathering, gateway: str) -> pa.Table:
    """The rows of a small table, without those that its columns cannot hold: these are set aside with the readings."""
    rows = [{"agent_id": agent_of(str(row.get("thing_id", ""))), **row} for row in batch.rows]
    try:
        return table_of(batch.table, rows, gateway)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        good = []
        for row in rows:
            try:
                table_of(batch.table, [row], gateway)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
                gathered.put_aside(
                    row_id=0, series=(str(row.get("thing_id", "")), batch.table, ""), row=row, why=reason
                )
            else:
                good.append(row)
        return table_of(batch.table, good, gateway)


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
    set_aside: int


def readings_path(gateway: str, day: str, first: int, last: int, seq: int) -> str:
    """Where a file of readings lies. The commit's number keeps a merged file apart from those it replaces."""
    return f"{READINGS}/gateway={gateway}/day={day}/part-{first:015d}-{last:015d}-{seq:012d}.parquet"
