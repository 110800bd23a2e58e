"""Export: selected readings, hot and sealed, as one file that other tools open; there when complete, or not at all."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as pacsv
from pydantic_core import to_json

from things.errors import Invalid, StorageFailed
from things.whole_files import written_whole
from twin.lake.reader import LakeReader, Selection
from twin.lake.tables import write_parquet


class Exported(NamedTuple):
    """The file, and what is in it."""

    path: str
    rows: int
    bytes: int


def export(reader: LakeReader, selection: Selection, path: Path, format: str) -> Exported:
    """Write the selection to `path` as csv, jsonl, arrow (a stream) or parquet. Replaces what was there."""
    write = FORMATS.get(format)
    if write is None:
        raise Invalid(f"{format[:20]!r} is no format to export to; there are {', '.join(sorted(FORMATS))}")
    table = reader.arrow(selection)
    try:
        with written_whole(path) as file:
            write(table, file)
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
    return Exported(str(path), table.num_rows, path.stat().st_size)


def _arrow(table: pa.Table, file: Any) -> None:
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _jsonl(table: pa.Table, file: Any) -> None:
    for batch in table.to_batches(max_chunksize=10_000):
        file.write(b"".join(to_json(row, inf_nan_mode="null") + b"\n" for row in batch.to_pylist()))


def _csv(table: pa.Table, file: Any) -> None:
    pacsv.write_csv(table, file)


FORMATS: Mapping[str, Callable[[pa.Table, Any], None]] = {
    "arrow": _arrow,
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": write_parquet,
}
