"""The lake's columns as Arrow schemas, and tables as the Parquet files that hold them."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from things.lake import GATEWAY_KEY, SCHEMA_KEY, SCHEMA_VERSION, TABLES, Column, ColumnType

DAY_US = 86_400_000_000
ROW_GROUP = 131_072
"""Rows in a row group: small enough that one series of a sorted file is read by itself."""

_DELTA = ("row_id", "created", "received", "source_time", "td_version", "quality", "published", "at", "updated")
ARROW_TYPES = {
    ColumnType.LONG: pa.int64(),
    ColumnType.INT: pa.int32(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.STRING: pa.string(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


def day_start(day: str) -> int:
    """µs at which a day begins, as the lake's folders are named."""
    return (date.fromisoformat(day) - date(1970, 1, 1)).days * DAY_US


def arrow_schema(columns: Sequence[Column], gateway: str = "") -> pa.Schema:
    """The Arrow schema of lake columns, with the version that every file carries."""
    metadata = {SCHEMA_KEY: str(SCHEMA_VERSION), **({GATEWAY_KEY: gateway} if gateway else {})}
    return pa.schema(
        [pa.field(c.name, ARROW_TYPES[c.type], nullable=not c.required) for c in columns], metadata=metadata
    )


def write_parquet(table: pa.Table, file: Any) -> None:
    """One table as Parquet, as all files of the lake are written."""
    with pq.ParquetWriter(
        file,
        table.schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[name for name in table.column_names if name not in _DELTA],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in table.column_names if name in _DELTA},
        # Else readers would see our dictionary codes instead of strings; the metadata then has to be added by hand.
        store_schema=False,
        write_page_index=True,
        # Ours compare whole blocks with the manifest; these are for other people's readers.
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({SCHEMA_KEY: str(SCHEMA_VERSION), **_text(table.schema.metadata)})


def table_of(name: str, rows: Sequence[Mapping[str, Any]], gateway: str) -> pa.Table:
    """Rows of one of the small tables (Thing Descriptions, presence, requests); times are µs."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(TABLES[name], gateway))


def _text(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
