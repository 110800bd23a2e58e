"""Rows to Arrow: the lake's columns as Arrow schemas, and hot rows as sorted tables of one day each.

Strings that repeat (Thing, name, kind, unit) go in as dictionary codes, and rows are ordered by integers, so that the
cost of a row does not depend on the length of its Thing's id.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic_core import from_json

from things.lake import (
    INT64_MAX,
    INT64_MIN,
    READINGS_COLUMNS,
    SCHEMA_KEY,
    SCHEMA_VERSION,
    TABLES,
    Column,
    ColumnType,
    Placed,
    Quality,
    agent_of,
    day_of,
    placed,
)
from twin.lake.declared import Declared
from twin.lake.rows import HotColumns, HotRow, columns_of

DAY_US = 86_400_000_000
ROW_GROUP = 131_072
"""Rows in a row group: small enough that one series of a sorted file is read by itself."""

_DELTA = ("row_id", "created", "received", "source_time", "td_version", "quality", "published", "at", "updated")
_TYPES = {
    ColumnType.LONG: pa.int64(),
    ColumnType.INT: pa.int32(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.STRING: pa.string(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
}


Describe = Callable[[str, str, str, int], Declared]
"""(Thing, kind, name, TD version) → what the TD declares."""


class DayTable(NamedTuple):
    """The rows of one day, sorted."""

    day: str
    table: pa.Table
    first: int
    last: int


def arrow_schema(columns: Sequence[Column], gateway: str = "") -> pa.Schema:
    """The Arrow schema of lake columns, with the version that every file carries."""
    metadata = {SCHEMA_KEY: str(SCHEMA_VERSION), **({"skep.gateway": gateway} if gateway else {})}
    return pa.schema([pa.field(c.name, _TYPES[c.type], nullable=not c.required) for c in columns], metadata=metadata)


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
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata({SCHEMA_KEY: str(SCHEMA_VERSION), **_text(table.schema.metadata)})


def table_of(name: str, rows: Sequence[Mapping[str, Any]], gateway: str) -> pa.Table:
    """Rows of one of the small tables (Thing Descriptions, presence, requests); times are µs."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(TABLES[name], gateway))


def day_tables(rows: Sequence[HotRow], describe: Describe, gateway: str) -> Iterator[DayTable]:
    """The rows by day of creation, each sorted by (Thing, name, created, row id)."""
    return tables_of([columns_of(rows)], describe, gateway)


def tables_of(batches: Sequence[HotColumns], describe: Describe, gateway: str) -> Iterator[DayTable]:
    """The same of readings by column; the batches follow each other in order of row id."""
    series, codes = _coded(batches, describe)
    row_ids, created, received, texts, quality, td_versions, source_times = (
        list(chain.from_iterable(columns)) for columns in zip(*(batch[2:9] for batch in batches), strict=True)
    )
    units, types = (
        list(chain.from_iterable(batch[column] or [None] * len(batch.keys) for batch in batches))
        if any(batch[column] for batch in batches)
        else []
        for column in (9, 10)
    )
    declared = [item.declared.value_type for item in series]
    if types:
        per_row: Sequence[str | None] = [own or declared[code] for own, code in zip(types, codes, strict=True)]
    else:
        per_row = [declared[code] for code in codes]
    doubles, longs, bools, strings, jsons, flags = _spread(_parsed(texts), texts, per_row, quality)

    code_array = pa.array(codes, pa.int32())
    ranks = _ranks(series)
    created_array = pa.array(created, pa.int64())
    row_id_array = pa.array(row_ids, pa.int64())
    days = pc.cast(pc.floor(pc.divide(pc.cast(created_array, pa.float64()), float(DAY_US))), pa.int64())
    unit_array = _dictionary([item.declared.unit for item in series], code_array)
    if units:
        own_units = pa.array(units, pa.string())
        unit_array = pc.if_else(pc.is_valid(own_units), own_units, pc.cast(unit_array, pa.string()))
    columns = {
        "row_id": row_id_array,
        "agent_id": _dictionary([agent_of(item.thing_id) for item in series], code_array),
        "thing_id": _dictionary([item.thing_id for item in series], code_array),
        "name": _dictionary([item.name for item in series], code_array),
        "kind": _dictionary([item.kind for item in series], code_array),
        "created": pc.cast(created_array, _TYPES[ColumnType.TIMESTAMP]),
        "received": pa.array(received, _TYPES[ColumnType.TIMESTAMP]),
        "value_double": pa.array(doubles, pa.float64()),
        "value_long": pa.array(longs, pa.int64()),
        "value_bool": pa.array(bools, pa.bool_()),
        "value_string": pa.array(strings, pa.string()),
        "value_json": pa.array(jsons, pa.string()),
        "unit": unit_array,
        "quality": pa.array(flags, pa.int32()),
        "td_version": pa.array(td_versions, pa.int64()),
        "source_time": pa.array(source_times, _TYPES[ColumnType.TIMESTAMP]),
    }
    schema = arrow_schema(READINGS_COLUMNS, gateway)
    keys = pa.table({"day": days, "rank": pc.take(pa.array(ranks, pa.int32()), code_array), "created": created_array})
    # The rows came in order of row id and the sort is stable, so ties stay in that order.
    order = pc.sort_indices(keys, sort_keys=[("day", "ascending"), ("rank", "ascending"), ("created", "ascending")])
    whole = pa.table({c.name: columns[c.name] for c in READINGS_COLUMNS}).take(order)
    counts = pc.value_counts(days).to_pylist()
    start = 0
    for item in sorted(counts, key=lambda item: item["values"]):
        part = whole.slice(start, item["counts"])
        start += item["counts"]
        bounds = pc.min_max(part["row_id"]).as_py()
        fields = [schema.field(c.name).with_type(part.schema.field(c.name).type) for c in READINGS_COLUMNS]
        typed = pa.table(part.columns, schema=pa.schema(fields, metadata=schema.metadata))
        yield DayTable(day_of(item["values"] * DAY_US), typed, bounds["min"], bounds["max"])


class _Series(NamedTuple):
    thing_id: str
    kind: str
    name: str
    declared: Declared


def _coded(batches: Sequence[HotColumns], describe: Describe) -> tuple[list[_Series], list[int]]:
    """Every series at each of its TD versions, and which of them each row belongs to."""
    codes: dict[tuple[str, str, str, int], int] = {}
    series: list[_Series] = []
    coded: list[int] = []
    for batch in batches:
        # Keys are the batch's own: the same number means another series in another file.
        found: dict[tuple[Any, int], int] = {}
        pairs = list(zip(batch.keys, batch.td_versions, strict=True))
        for pair in dict.fromkeys(pairs):
            thing_id, kind, name = batch.series[pair[0]]
            whole = (thing_id, kind, name, pair[1])
            if whole not in codes:
                codes[whole] = len(series)
                series.append(_Series(thing_id, kind, name, describe(*whole)))
            found[pair] = codes[whole]
        coded.extend(map(found.__getitem__, pairs))
    return series, coded


def _ranks(series: Sequence[_Series]) -> list[int]:
    order = {pair: rank for rank, pair in enumerate(sorted({(item.thing_id, item.name) for item in series}))}
    return [order[item.thing_id, item.name] for item in series]


def _dictionary(values: Sequence[str | None], codes: pa.Array) -> pa.Array:
    distinct = {value: index for index, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
    remapped = pa.array([None if value is None else distinct[value] for value in values], pa.int32())
    return pa.DictionaryArray.from_arrays(pc.take(remapped, codes), pa.array(list(distinct), pa.string()))


_UNREADABLE = object()


def _parsed(texts: Sequence[bytes | str]) -> Sequence[Any]:
    """All values at once where all are JSON; one by one where some are not."""
    if isinstance(texts[0], str):
        joined: bytes | str = f"[{','.join(texts)}]"  # type: ignore[arg-type]
    else:
        joined = b"[" + b",".join(texts) + b"]"  # type: ignore[arg-type]
    try:
        values: list[Any] = from_json(joined, allow_inf_nan=False)
        if len(values) == len(texts):
            return values
    except ValueError:
        pass
    return [_parsed_one(text) for text in texts]


def _parsed_one(text: bytes | str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return _UNREADABLE


def _spread(
    values: Sequence[Any], texts: Sequence[bytes | str], declared: Sequence[str | None], quality: Sequence[int]
) -> tuple[list[Any], list[Any], list[Any], list[Any], list[Any], list[int]]:
    count = len(values)
    doubles: list[Any] = [None] * count
    longs: list[Any] = [None] * count
    bools: list[Any] = [None] * count
    strings: list[Any] = [None] * count
    jsons: list[Any] = [None] * count
    flags = list(quality)
    infinite = (float("inf"), float("-inf"))
    for index, value in enumerate(values):
        kind = type(value)
        wanted = declared[index]
        # The two commonest cases by hand; everything else by the rule in `things.lake`.
        if kind is float and wanted in _NUMBERS and value not in infinite:
            doubles[index] = value
            continue
        if kind is int and wanted in _INTEGERS and INT64_MIN <= value <= INT64_MAX:
            doubles[index] = value
            longs[index] = value
            continue
        if value is _UNREADABLE:
            text = texts[index]
            shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
            spread = Placed(value_string=shown, quality=int(Quality.UNREADABLE))
        else:
            spread = placed(value, wanted)
        doubles[index], longs[index], bools[index], strings[index], jsons[index], doubt = spread
        flags[index] |= doubt
    return doubles, longs, bools, strings, jsons, flags


_NUMBERS = (None, "number")
_INTEGERS = (None, "integer")


def _text(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
