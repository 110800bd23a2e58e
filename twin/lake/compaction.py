"""Compaction: the many small files of a day become few large ones, by one commit.

Readers that hold an older snapshot keep finding the files they know: what was replaced stays for a day.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from things.errors import StorageDamaged
from things.lake import READINGS, SORT_ORDER, TABLES, Commit, Part, Snapshot
from twin.lake.manifest import Manifest
from twin.lake.parts import dataset_of, files_of, naming
from twin.lake.tables import arrow_schema, write_parquet

MAX_ROWS = 1_000_000
"""Rows of a merged file, and so what is in memory at once (about 200 MB)."""


class Compacted(NamedTuple):
    """What one compaction did."""

    commits: int
    merged: int
    written: int
    removed: int


class Swept(NamedTuple):
    """What one sweep removed."""

    files: int
    bytes: int


class Compactor:
    """Compacts one gateway's part of a lake. Only the one writer may."""

    def __init__(self, manifest: Manifest, *, max_rows: int = MAX_ROWS) -> None:
        self.manifest = manifest
        self.place = manifest.place
        self._max_rows = max_rows

    def compact(self, *, days: Sequence[str] = (), min_parts: int = 2) -> Compacted:
        """Merge every folder that holds at least `min_parts` files worth merging (only these `days`, if any are given),
        then remove what was replaced more than a day ago."""
        base = self.manifest.snapshot()
        commits = merged = 0
        for group in self._groups(base, days, max(min_parts, 2)):
            base = self.merge(base, group)
            commits, merged = commits + 1, merged + len(group)
        return Compacted(commits, merged, commits, self.sweep(base).files)

    def merge(self, base: Snapshot, group: Sequence[Part]) -> Snapshot:
        """Make one part of several of a folder, by one commit. Raises StorageDamaged if one cannot be read."""
        commit = Commit(
            gateway=base.gateway,
            seq=base.seq + 1,
            first=base.sealed + 1,
            last=base.sealed,
            parts=(self._merged(base, group),),
            replaces=tuple(old.path for old in group),
        )
        return self.manifest.commit(base, commit)

    def sweep(self, snapshot: Snapshot) -> Swept:
        """Remove files that were replaced before the grace period, then the commits that only spoke of them."""
        settled = self.manifest.now() - self.manifest.grace_us
        live = {part.path for part in snapshot.parts}
        replaced = self.manifest.replaced()
        sizes: dict[str, int] = {}
        for folder in {path.rpartition("/")[0] for path, since in replaced if since < settled}:
            sizes |= {file.path: file.size for file in self.place.walk(folder)}
        old = [path for path, since in replaced if since < settled and path not in live and path in sizes]
        for path in old:
            self.place.remove(path)
        # Even a lake that is sealed seldom has its commits folded, a day at a time.
        if self.manifest.is_long(snapshot):
            self.manifest.checkpoint(snapshot)
        self.manifest.trim()
        return Swept(len(old), sum(sizes[path] for path in old))

    def _groups(self, snapshot: Snapshot, days: Sequence[str], min_parts: int) -> Iterator[Sequence[Part]]:
        folders: dict[str, list[Part]] = {}
        for part in snapshot.parts:
            if part.table in TABLES and part.rows < self._max_rows and (not days or part.day in days):
                folders.setdefault(part.path.rpartition("/")[0], []).append(part)
        for folder in sorted(folders):
            group: list[Part] = []
            rows = 0
            for part in sorted(folders[folder], key=lambda part: part.first):
                if group and rows + part.rows > self._max_rows:
                    if len(group) >= min_parts:
                        yield group
                    group, rows = [], 0
                group.append(part)
                rows += part.rows
            if len(group) >= min_parts:
                yield group

    def _merged(self, base: Snapshot, parts: Sequence[Part]) -> Part:
        table = read_parts(self.manifest, parts)
        first, last = min(part.first for part in parts), max(part.last for part in parts)
        folder = parts[0].path.rpartition("/")[0]
        path = f"{folder}/part-{first:015d}-{last:015d}-{base.seq + 1:012d}.parquet"
        written = self.place.write(path, lambda file: write_parquet(table, file))
        return written.part(rows=table.num_rows, first=first, last=last)


def read_parts(manifest: Manifest, parts: Sequence[Part]) -> pa.Table:
    """The rows of files of one table, sorted as that table is. Raises StorageDamaged, naming them, rather than give
    fewer rows than the manifest promises."""
    name = parts[0].table
    schema = arrow_schema(TABLES[name], manifest.gateway)
    rows = sum(part.rows for part in parts)
    shown = ", ".join(f"{part.path} (rows {part.first} to {part.last})" for part in parts[:3])
    files = files_of(manifest.place, parts)
    with naming(files, f"cannot read {shown}"):
        table = dataset_of(files, schema).to_table()
    if table.num_rows != rows:
        raise StorageDamaged(f"{shown} hold {table.num_rows} rows where the manifest has {rows}")
    if name == READINGS:
        table = table.sort_by([(column, "ascending") for column in SORT_ORDER])
    return table.replace_schema_metadata(schema.metadata)
