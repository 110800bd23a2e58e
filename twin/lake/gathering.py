"""Hot readings to Arrow: taken in batch by batch, given out as sorted tables of one day each.

A batch becomes Arrow as soon as it is taken, so that its Python values live no longer than they must. Strings that
repeat (Thing, name, kind, unit) go in as dictionary codes, and rows are ordered by integers, so that the cost of a row
does not depend on the length of its Thing's id.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from things.declared import Declared
from things.lake import (
    INT64_MAX,
    INT64_MIN,
    READINGS_COLUMNS,
    VALUE_COLUMNS,
    ColumnType,
    Placed,
    Quality,
    agent_of,
    day_of,
    placed,
)
from twin.lake.rows import HotColumns
from twin.lake.tables import ARROW_TYPES, DAY_US, arrow_schema

Describe = Callable[[str, str, str, int], Declared]
"""(Thing, kind, name, TD version) → what the TD declares."""


class DayTable(NamedTuple):
    """The rows of one day, sorted."""

    day: str
    table: pa.Table
    first: int
    last: int


class Gathering:
    """Readings that are sealed or read together; batches come in order of row id."""

    def __init__(self, describe: Describe, gateway: str) -> None:
        self._describe = describe
        self._gateway = gateway
        self._codes: dict[tuple[str, str, str, int], int] = {}
        self._series: list[_Series] = []
        self._taken: list[pa.RecordBatch] = []
        self.rows = 0
        self.last = 0
        """The highest row id."""

    def add(self, batch: HotColumns) -> None:
        """Take a batch that is not empty."""
        codes = self._coded(batch)
        declared = [one.declared.value_type for one in self._series]
        kinds = {declared[code] for code in set(codes)}
        values = _parsed(batch.values)
        spread = None if batch.value_types else _uniform(values, kinds)
        flags: Any = batch.qualities
        if spread is None:
            own = batch.value_types or [None] * len(codes)
            per_row = [mine or declared[code] for mine, code in zip(own, codes, strict=True)]
            spread, flags = _spread(values, batch.values, per_row, batch.qualities)
        columns = {
            "code": pa.array(codes, pa.int32()),
            "row_id": pa.array(batch.row_ids, pa.int64()),
            "created": pa.array(batch.created, pa.int64()),
            "received": pa.array(batch.received, pa.int64()),
            **dict(zip(VALUE_COLUMNS, spread, strict=True)),
            "own_unit": pa.array(batch.units or [None] * len(codes), pa.string()),
            "quality": pa.array(flags, pa.int32()),
            "td_version": pa.array(batch.td_versions, pa.int64()),
            "source_time": pa.array(batch.source_times, pa.int64()),
        }
        self._taken.append(pa.record_batch(list(columns.values()), list(columns)))
        self.rows += len(codes)
        self.last = batch.row_ids[-1]

    def days(self) -> Iterator[DayTable]:
        """The rows by day of creation, each sorted by (Thing, name, created, row id)."""
        if not self._taken:
            return
        found = pa.Table.from_batches(self._taken).combine_chunks()
        columns = {name: found[name].chunk(0) for name in found.column_names}
        codes, created = columns["code"], columns["created"]
        days = pc.cast(pc.floor(pc.divide(pc.cast(created, pa.float64()), float(DAY_US))), pa.int64())
        keys = pa.table({"day": days, "rank": pc.take(pa.array(self._ranks(), pa.int32()), codes), "created": created})
        # The rows came in order of row id and the sort is stable, so ties stay in that order.
        order = pc.sort_indices(keys, sort_keys=[("day", "ascending"), ("rank", "ascending"), ("created", "ascending")])
        whole = self._named(columns, codes).take(order)
        schema = arrow_schema(READINGS_COLUMNS, self._gateway)
        fields = [schema.field(c.name).with_type(whole.schema.field(c.name).type) for c in READINGS_COLUMNS]
        typed = pa.table(whole.columns, schema=pa.schema(fields, metadata=schema.metadata))
        start = 0
        for item in sorted(pc.value_counts(days).to_pylist(), key=lambda item: item["values"]):
            part = typed.slice(start, item["counts"])
            start += item["counts"]
            bounds = pc.min_max(part["row_id"]).as_py()
            yield DayTable(day_of(item["values"] * DAY_US), part, bounds["min"], bounds["max"])

    def _named(self, columns: Mapping[str, pa.Array], codes: pa.Array) -> pa.Table:
        """The lake's columns, with what the codes stand for."""
        unit = _dictionary([one.declared.unit for one in self._series], codes)
        own_unit = columns["own_unit"]
        if own_unit.null_count < len(own_unit):
            unit = pc.if_else(pc.is_valid(own_unit), own_unit, pc.cast(unit, pa.string()))
        texts = {
            "agent_id": _dictionary([agent_of(one.thing_id) for one in self._series], codes),
            "thing_id": _dictionary([one.thing_id for one in self._series], codes),
            "name": _dictionary([one.name for one in self._series], codes),
            "kind": _dictionary([one.kind for one in self._series], codes),
            "unit": unit,
        }
        times = {
            c.name: pc.cast(columns[c.name], ARROW_TYPES[c.type])
            for c in READINGS_COLUMNS
            if c.type is ColumnType.TIMESTAMP
        }
        return pa.table({c.name: (texts.get(c.name) or times.get(c.name) or columns[c.name]) for c in READINGS_COLUMNS})

    def _coded(self, batch: HotColumns) -> list[int]:
        """Which series, at which of its TD versions, each row belongs to."""
        # Keys are the batch's own: the same number means another series in another file.
        found: dict[tuple[Any, int], int] = {}
        pairs = list(zip(batch.keys, batch.td_versions, strict=True))
        for pair in dict.fromkeys(pairs):
            thing_id, kind, name = batch.series[pair[0]]
            whole = (thing_id, kind, name, pair[1])
            if whole not in self._codes:
                self._codes[whole] = len(self._series)
                self._series.append(_Series(thing_id, kind, name, self._describe(*whole)))
            found[pair] = self._codes[whole]
        return list(map(found.__getitem__, pairs))

    def _ranks(self) -> list[int]:
        order = {pair: rank for rank, pair in enumerate(sorted({(one.thing_id, one.name) for one in self._series}))}
        return [order[one.thing_id, one.name] for one in self._series]


@contextmanager
def uncollected() -> Iterator[None]:
    """While readings are taken in: tens of thousands of tuples live for a moment, and looking for cycles among them
    costs a third of the time."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


class _Series(NamedTuple):
    thing_id: str
    kind: str
    name: str
    declared: Declared


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


_COLUMN_TYPES = (pa.float64(), pa.int64(), pa.bool_(), pa.string(), pa.string())


def _uniform(values: Sequence[Any], declared: set[str | None]) -> list[pa.Array] | None:
    """The value columns of nothing but numbers as declared, which most batches are; None for others."""
    nulls = [pa.nulls(len(values), one) for one in _COLUMN_TYPES]
    kinds = set(map(type, values))
    if kinds == {float} and declared <= {None, "number"}:
        doubles = pa.array(values, pa.float64())
        return [doubles, *nulls[1:]] if pc.all(pc.is_finite(doubles)).as_py() else None
    if kinds == {int} and declared <= {None, "integer"}:
        try:
            longs = pa.array(values, pa.int64())
        except (pa.ArrowInvalid, OverflowError):
            return None
        return [pa.array(map(float, values), pa.float64()), longs, *nulls[2:]]
    return None


def _spread(
    values: Sequence[Any], texts: Sequence[bytes | str], declared: Sequence[str | None], quality: Sequence[int]
) -> tuple[list[pa.Array], list[int]]:
    """The value columns, and the flags with what is doubtful about the values."""
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
    columns = (doubles, longs, bools, strings, jsons)
    return [pa.array(column, kind) for column, kind in zip(columns, _COLUMN_TYPES, strict=True)], flags


_NUMBERS = (None, "number")
_INTEGERS = (None, "integer")
