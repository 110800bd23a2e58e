"""One page of readings: the first rows, in an order, of however many there are, in bounded memory.

Arrow filters and sorts by itself. A DuckDB for each page would take longer to start than most pages take to read.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
from pydantic_core import to_json

from things.lake import VALUE_COLUMNS, Quality
from twin.lake.columns import NUMBER

SPARE_ROWS = 100_000
"""Rows beyond a page that are held before all but the first ones are let go."""
FEW = 16
"""So many values are compared one by one, which lets Parquet pass over row groups that hold none of them."""
COLUMNS = (
    *("row_id", "thing_id", "kind", "name", "created", "received"),
    *VALUE_COLUMNS,
    *("quality", "td_version", "source_time"),
)
_TIME = pa.timestamp("us", tz="UTC")


def one_of(column: str, values: Sequence[str]) -> pads.Expression:
    """Whether a column holds one of these values; true for none given."""
    if not values:
        return pads.scalar(True)
    if len(values) > FEW:
        return pads.field(column).isin(list(values))
    found = pads.field(column) == values[0]
    for value in values[1:]:
        found = found | (pads.field(column) == value)
    return found


def at(micros: int) -> pa.Scalar:
    """A time as the lake's columns have it."""
    return pa.scalar(micros, _TIME)


def beyond(after: tuple[int, int] | None, after_row: int | None, *, descending: bool) -> pads.Expression:
    """Whether a row comes after a cursor: (created, row id), or the row id alone."""
    created, row_id = pads.field("created"), pads.field("row_id")
    if after_row is not None:
        return row_id < after_row if descending else row_id > after_row
    if after is None:
        return pads.scalar(True)
    time, row = at(after[0]), after[1]
    if descending:
        return (created < time) | ((created == time) & (row_id < row))
    return (created > time) | ((created == time) & (row_id > row))


def first_rows(batches: Iterable[pa.RecordBatch], order: Sequence[str], limit: int, *, descending: bool) -> pa.Table:
    """The first `limit` rows in the order of these columns; `batches` may come in any."""
    keys = [(name, "descending" if descending else "ascending") for name in order]
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            rows += batch.num_rows
        if rows > limit + SPARE_ROWS:
            held = _first(held, keys, limit).to_batches()
            rows = limit
    return _first(held, keys, limit) if held else pa.table({name: [] for name in COLUMNS})


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows as `things.records.Row` lists them."""
    if not table.num_rows:
        return []
    created, received, source_times = (
        table[name].cast(pa.int64()).to_pylist() for name in ("created", "received", "source_time")
    )
    ids, things, kinds, names, qualities, versions = (
        table[name].to_pylist() for name in ("row_id", "thing_id", "kind", "name", "quality", "td_version")
    )
    spread = [table[name].to_pylist() for name in VALUE_COLUMNS]
    values = [json_text(*one) for one in zip(*spread, qualities, strict=True)]
    # That no column holds the number is the lake's own affair: the row as it was stored said nothing of it.
    kept = ~Quality.HUGE.value
    said = [quality & kept for quality in qualities]
    return list(zip(ids, things, kinds, names, created, received, values, said, versions, source_times, strict=True))


def json_text(
    double: float | None, long: int | None, flag: bool | None, text: str | None, json: str | None, quality: int
) -> str:
    """The JSON text of a value that was spread over the value columns."""
    if long is not None:
        return str(long)
    if flag is not None:
        return "true" if flag else "false"
    if text is not None:
        return text if quality & Quality.HUGE and NUMBER.fullmatch(text) else to_json(text).decode()
    if json is not None:
        return json
    return "null" if double is None else to_json(double).decode()


def _first(batches: Sequence[pa.RecordBatch], keys: Sequence[tuple[str, str]], limit: int) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return table.take(pc.sort_indices(table, sort_keys=keys).slice(0, limit)).combine_chunks()
