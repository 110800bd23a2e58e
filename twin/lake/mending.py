"""Mending: the rows of damaged parts come back from a copy of the part, or from hot rows that are still there.

A copy counts if it has the part's SHA-256. Hot rows count if they are exactly as many as the part had: of one from
which retention has taken some series since, they would bring them back. What cannot be mended is named, with the
reason.
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from things.errors import StorageDamaged
from things.lake import READINGS, SET_ASIDE, TABLES, Commit, Part, Snapshot
from twin.lake.columns import Gathering, uncollected
from twin.lake.declared import SeriesTypes
from twin.lake.manifest import Manifest
from twin.lake.parts import dataset_of, files_of, naming
from twin.lake.quarantine import forget, records
from twin.lake.rows import HotRows, Wanted
from twin.lake.tables import DAY_US, arrow_schema, day_start, write_parquet
from twin.lake.verification import fault_of

BATCH = 50_000

Copies = Callable[[Set[str]], Iterable[tuple[str, bytes]]]
"""Gives, of the paths in the lake that are asked for, those that it has."""


class Mended(NamedTuple):
    """What came back, some of it `from_copies`, and what did not: `{path, first, last, rows, detail}` each."""

    parts: int
    rows: int
    from_copies: int
    left: list[dict[str, Any]]


class Mender:
    """Mends one gateway's part of a lake. Only the one writer may."""

    def __init__(self, manifest: Manifest, hot: HotRows | None = None) -> None:
        self.manifest = manifest
        self.place = manifest.place
        self._hot = hot

    def mend(self, copies: Copies | None = None) -> Mended:
        """Read every part, and mend those that are damaged or set aside."""
        snapshot = self.manifest.snapshot()
        damaged = [part for part in snapshot.parts if fault_of(self.manifest, part) is not None]
        return self.mend_parts([*damaged, *records(self.manifest, snapshot)], copies)

    def mend_parts(self, damaged: Sequence[Part], copies: Copies | None = None) -> Mended:
        """The same of parts that are known to be damaged, live ones or set aside."""
        waiting = {part.path: part for part in damaged}
        why = dict.fromkeys(waiting, "neither a copy nor hot rows have it")
        copied = 0
        if copies is not None and waiting:
            for path, data in copies(waiting.keys()):
                copied += self._tried(waiting, why, path, lambda part, data=data: self._put_back(part, data))  # type: ignore[misc]
        done = copied
        for path in [path for path, part in waiting.items() if part.table == READINGS and self._hot is not None]:
            done += self._tried(waiting, why, path, self._made_again)
        rows = sum(part.rows for part in damaged) - sum(part.rows for part in waiting.values())
        left = [
            {"path": path, "first": part.first, "last": part.last, "rows": part.rows, "detail": why[path]}
            for path, part in waiting.items()
        ]
        return Mended(done, rows, copied, left)

    def _tried(self, waiting: dict[str, Part], why: dict[str, str], path: str, mended: Callable[[Part], None]) -> bool:
        try:
            mended(waiting[path])
        except StorageDamaged as reason:
            why[path] = reason.detail
            return False
        forget(self.manifest, waiting.pop(path))
        return True

    def _put_back(self, part: Part, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise StorageDamaged("the copy is not what was written")
        snapshot = self.manifest.snapshot()
        is_live = any(one.path == part.path for one in snapshot.parts)
        if not is_live and part.table in (READINGS, SET_ASIDE):
            row_ids = pq.read_table(io.BytesIO(data), columns=["row_id"])["row_id"]
            if self._is_there(row_ids, self._row_ids(snapshot, part)):
                return
        self.place.write(part.path, lambda file: file.write(data))
        if not is_live:
            self._commit(snapshot, part, ())

    def _made_again(self, part: Part) -> None:
        """From hot rows: a part of its own name, since its bytes may differ."""
        snapshot = self.manifest.snapshot()
        others = self._row_ids(snapshot, part)
        table = self._hot_rows(snapshot, part)
        is_live = any(one.path == part.path for one in snapshot.parts)
        if not is_live and table.num_rows == part.rows and self._is_there(table["row_id"], others):
            return
        table = table.filter(pc.invert(pc.is_in(table["row_id"], value_set=others)))
        if table.num_rows != part.rows:
            raise StorageDamaged(f"{table.num_rows} of its {part.rows} rows are still hot")
        path = f"{part.path.rpartition('-')[0]}-{snapshot.seq + 1:012d}.parquet"
        written = self.place.write(path, lambda file: write_parquet(table, file))
        again = written.part(rows=part.rows, first=part.first, last=part.last)
        self._commit(snapshot, again, (part.path,) if is_live else ())

    def _commit(self, base: Snapshot, part: Part, replaces: Sequence[str]) -> None:
        commit = Commit(
            gateway=base.gateway,
            seq=base.seq + 1,
            first=base.sealed + 1,
            last=base.sealed,
            parts=(part,),
            replaces=replaces,
        )
        self.manifest.commit(base, commit)

    def _hot_rows(self, snapshot: Snapshot, part: Part) -> pa.Table:
        assert self._hot is not None
        types = SeriesTypes(self.place)
        types.load(snapshot)
        gathered = Gathering(types, self.manifest.gateway)
        start = day_start(part.day)
        with uncollected():
            for batch in self._hot.columns(part.first, part.last, BATCH, Wanted(start=start, end=start + DAY_US)):
                gathered.add(batch)
        empty = arrow_schema(TABLES[READINGS], self.manifest.gateway).empty_table()
        return next((day.table for day in gathered.days() if day.day == part.day), empty)

    def _is_there(self, row_ids: pa.ChunkedArray, others: pa.Array) -> bool:
        """Whether rows that are set aside came back before, and only their record was left. Raises StorageDamaged if
        some did and some did not."""
        there = int(pc.sum(pc.is_in(row_ids, value_set=others)).as_py() or 0)
        if there not in (0, len(row_ids)):
            raise StorageDamaged("some of its rows are in the table already")
        return there > 0

    def _row_ids(self, snapshot: Snapshot, part: Part) -> pa.Array:
        """The rows between its first and last that other parts of its folder have. Raises StorageDamaged."""
        folder = part.path.rpartition("/")[0]
        others = [
            one
            for one in snapshot.parts
            if one.path.startswith(f"{folder}/")
            and one.path != part.path
            and one.first <= part.last
            and one.last >= part.first
        ]
        files = files_of(self.place, others)
        with naming(files, "rows beside it cannot be told"):
            table = dataset_of(files, arrow_schema(TABLES[part.table])).to_table(columns=["row_id"])
        return table["row_id"].combine_chunks()
