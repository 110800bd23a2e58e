"""The lake's files as Python readers see them: the manifest, and parts as Arrow, on any filesystem pyarrow reaches.

This is the convenient way in, where Spark's own Parquet reader cannot go: into streams and wide tables. Bulk work goes
through `spark.lake`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from things.blocks import OpenedContent, PartFile
from things.errors import StorageDamaged, Unavailable
from things.lake import (
    MANIFEST,
    READINGS,
    READINGS_COLUMNS,
    THINGS,
    THINGS_COLUMNS,
    Column,
    ColumnType,
    Part,
    Snapshot,
)
from things.manifest import HEAD, Head, head_of, snapshot_from

_FORMAT = pads.ParquetFileFormat()
_ARROW = {
    ColumnType.LONG: pa.int64(),
    ColumnType.INT: pa.int32(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.STRING: pa.string(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


class Selection(NamedTuple):
    """Which readings; empty means any. `days` are the first and the last, inclusive."""

    things: Sequence[str] = ()
    names: Sequence[str] = ()
    kinds: Sequence[str] = ()
    gateways: Sequence[str] = ()
    days: tuple[str, str] | None = None

    def takes(self, part: Part) -> bool:
        """Whether a file can hold readings of this selection."""
        return part.table == READINGS and (self.days is None or self.days[0] <= part.day <= self.days[1])

    def expression(self) -> pads.Expression:
        """What a row must be."""
        wanted = pads.scalar(True)
        for column, values in (("thing_id", self.things), ("name", self.names), ("kind", self.kinds)):
            if values:
                wanted = wanted & pads.field(column).isin(list(values))
        return wanted


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Lake columns as Arrow has them in files."""
    return pa.schema([(column.name, _ARROW[column.type]) for column in columns])


class LakeFiles:
    """One lake; cheap to make, so that every task makes its own."""

    def __init__(self, lake: str) -> None:
        self.lake = lake
        try:
            if "://" in lake:
                base, path = pafs.FileSystem.from_uri(lake)
            else:
                base, path = pafs.LocalFileSystem(), lake
        except (pa.ArrowException, OSError) as error:
            raise Unavailable(f"cannot open the lake {lake}: {error}") from error
        self._filesystem = pafs.SubTreeFileSystem(path, base)

    def snapshots(self, gateways: Sequence[str] = ()) -> list[Snapshot]:
        """What each gateway's manifest amounts to now, by gateway. Raises StorageDamaged where there is no lake."""
        selector = pafs.FileSelector(MANIFEST, recursive=True, allow_not_found=True)
        found: set[str] = set()
        for info in self._filesystem.get_file_info(selector):
            steps = info.path.split("/")
            if len(steps) == 3 and steps[1].startswith("gateway="):
                found.add(steps[1][8:])
        missing = set(gateways) - found
        if missing or not found:
            raise StorageDamaged(f"the lake {self.lake} has no manifest {', '.join(sorted(missing))}".rstrip())
        return [self._snapshot(name) for name in sorted(found) if not gateways or name in gateways]

    def batches(self, parts: Sequence[Part], wanted: pads.Expression) -> Iterator[pa.RecordBatch]:
        """Rows of files of readings, with `gateway` and `day` beside the lake's columns."""
        for part in parts:
            schema = arrow_schema(READINGS_COLUMNS)
            try:
                for batch in _dataset([self._file(part)], schema).to_batches(filter=wanted):
                    if batch.num_rows:
                        yield _placed(batch, part)
            except (OSError, pa.ArrowException) as error:
                raise StorageDamaged(
                    f"{part.path}, rows {part.first} to {part.last}, cannot be read: {error}"
                ) from error

    def descriptions(self, gateways: Sequence[str] = ()) -> list[tuple[str, str, str]]:
        """(gateway, Thing, text of the newest Thing Description)."""
        newest: dict[tuple[str, str], tuple[int, str]] = {}
        for snapshot in self.snapshots(gateways):
            files = [self._file(part) for part in snapshot.parts if part.table == THINGS]
            if not files:
                continue
            dataset = _dataset(files, arrow_schema(THINGS_COLUMNS))
            for row in dataset.to_table(columns=["thing_id", "td_version", "td"]).to_pylist():
                key = (snapshot.gateway, row["thing_id"])
                if row["td_version"] >= newest.get(key, (-1, ""))[0]:
                    newest[key] = (row["td_version"], row["td"])
        return [(gateway, thing, td) for (gateway, thing), (_, td) in sorted(newest.items())]

    def _snapshot(self, gateway: str) -> Snapshot:
        folder = f"{MANIFEST}/gateway={gateway}"
        # The head first: it cannot be beyond what is listed afterwards.
        head = self._head(gateway)
        found = self._filesystem.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        return snapshot_from(gateway, [info.base_name for info in found], head, lambda name: self._read(folder, name))

    def _head(self, gateway: str) -> Head | None:
        folder = f"{MANIFEST}/gateway={gateway}"
        if self._filesystem.get_file_info(f"{folder}/{HEAD}").type != pafs.FileType.File:
            return None
        return head_of(self._read(folder, HEAD), gateway)

    def _read(self, folder: str, name: str) -> bytes:
        try:
            with self._filesystem.open_input_stream(f"{folder}/{name}") as stream:
                return stream.read()  # type: ignore[no-any-return]
        except OSError as error:
            raise StorageDamaged(f"{folder}/{name} cannot be read: {error}") from error

    def _file(self, part: Part) -> PartFile:
        return PartFile(part, lambda: OpenedContent(self._filesystem.open_input_file(part.path)))


def _dataset(files: Sequence[PartFile], schema: pa.Schema) -> pads.Dataset:
    fragments = [_FORMAT.make_fragment(pa.PythonFile(file, mode="r")) for file in files]
    for fragment in fragments:
        # See `twin.lake.parts.dataset_of`: what fails must not fail while a scan begins.
        fragment.ensure_complete_metadata()
    return pads.FileSystemDataset(fragments, schema, _FORMAT)


def _placed(batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
    rows = batch.num_rows
    gateway = pa.repeat(pa.scalar(part.gateway), rows)
    day = pc.cast(pa.repeat(pa.scalar(part.day), rows), pa.date32())
    names = [*batch.schema.names, "gateway", "day"]
    return pa.RecordBatch.from_arrays([*batch.columns, gateway, day], names=names)
