"""What stands in the log of a Delta table, after the protocol of Delta Lake (reader version 1, writer version 2).

https://github.com/delta-io/delta/blob/master/PROTOCOL.md, sections "Actions" and "Checkpoints".
"""

import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from things.blocks import PartFile
from things.errors import StorageDamaged
from things.lake import Column, ColumnType, Part

Action = dict[str, Any]

PROTOCOL: Action = {"minReaderVersion": 1, "minWriterVersion": 2}
MEASURED = ("row_id", "thing_id", "name", "created", "window_start")
"""Columns of which the log says the bounds, so that readers open what they need."""

_TYPES = {
    ColumnType.LONG: "long",
    ColumnType.INT: "integer",
    ColumnType.DOUBLE: "double",
    ColumnType.BOOL: "boolean",
    ColumnType.STRING: "string",
    ColumnType.TIMESTAMP: "timestamp",
}
_PARTITIONS = {"gateway": "string", "day": "date"}
_MS = timedelta(milliseconds=1)

_TEXTS = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
        "remove": pa.struct(
            {"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_(), "size": pa.int64()}
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
    }
)
"""A checkpoint is a Parquet file of actions, one in each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A table's own columns, and those that its folders name."""

    name: str
    columns: Sequence[Column]
    partitions: Sequence[str]

    def fields(self) -> list[dict[str, Any]]:
        own = [
            {"name": one.name, "type": _TYPES[one.type], "nullable": not one.required, "metadata": {}}
            for one in self.columns
        ]
        folders = [{"name": one, "type": _PARTITIONS[one], "nullable": True, "metadata": {}} for one in self.partitions]
        return own + folders

    def described(self, now_ms: int, before: Action | None) -> Action | None:
        """The `metaData` that a log needs; None where what it has will do. Columns are only ever added."""
        if before is None:
            return {
                "id": str(uuid4()),
                "name": self.name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": _schema(self.fields()),
                "partitionColumns": list(self.partitions),
                "configuration": {},
                "createdTime": now_ms,
            }
        known = json.loads(before["schemaString"])["fields"]
        names = {field["name"] for field in known}
        new = [field for field in self.fields() if field["name"] not in names]
        return {**before, "schemaString": _schema([*known, *new])} if new else None


def added(part: Part, root: str, file: PartFile, now_ms: int, *, is_new: bool) -> Action:
    """The `add` of a part. A damaged or missing one is added too, without bounds: whoever reads it has to notice."""
    size, stats = 1, {"numRecords": part.rows}  # a file of no bytes would be passed over
    with suppress(OSError, pa.ArrowException, StorageDamaged):
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        stats = _stats(pq.read_metadata(pa.PythonFile(file, mode="r")), part)
    return {
        "path": quote(part.path.removeprefix(f"{root}/"), safe="/="),
        "partitionValues": partition_of(part),
        "size": size,
        "modificationTime": now_ms,
        "dataChange": is_new,
        "stats": json.dumps(stats, separators=(",", ":")),
        "tags": {"sha256": part.sha256, "first": str(part.first), "last": str(part.last)},
    }


def removed(add: Action, now_ms: int, *, is_gone: bool) -> Action:
    """The `remove` of a file that was added."""
    return {
        "path": add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": is_gone,
        "extendedFileMetadata": True,
        "partitionValues": add["partitionValues"],
        "size": add["size"],
    }


def path_of(add: Action, root: str) -> str:
    """Where the file of an `add` lies in the lake."""
    return f"{root}/{unquote(add['path'])}"


def rows_of(add: Action) -> int:
    return int(json.loads(add["stats"])["numRecords"])


def partition_of(part: Part) -> dict[str, str]:
    return {"gateway": part.gateway, **({"day": part.day} if part.day else {})}


def _stats(metadata: pq.FileMetaData, part: Part) -> dict[str, Any]:
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).name
        if name not in MEASURED:
            continue
        groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not groups or any(one is None or not one.has_min_max for one in groups):
            continue
        bounds = _bound(min(one.min for one in groups)), _bound(max(one.max for one in groups), is_upper=True)
        if None not in bounds:
            least[name], most[name] = bounds
    return {"numRecords": part.rows, "minValues": least, "maxValues": most, "nullCount": dict.fromkeys(least, 0)}


def _bound(value: Any, *, is_upper: bool = False) -> Any:
    """Times in ms, as the protocol has them, so that they still bound all µs; None where there is no later one."""
    if not isinstance(value, datetime):
        return value
    utc = value.astimezone(UTC).replace(tzinfo=None)
    whole = utc.replace(microsecond=utc.microsecond // 1_000 * 1_000)
    if is_upper and whole != utc:
        if whole > datetime.max - _MS:
            return None
        whole += _MS
    return whole.isoformat(timespec="milliseconds") + "Z"


def _schema(fields: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps({"type": "struct", "fields": list(fields)}, separators=(",", ":"))
