"""Hot readings to Arrow: taken in batch by batch, given out as sorted tables of one day each.

A batch becomes Arrow as soon as it is taken, so that its Python values live no longer than they must. Strings that
repeat (Thing, name, kind, unit) go in as dictionary codes, and rows are ordered by integers, so that the cost of a row
does not depend on the length of its Thing's id.
"""

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json, to_json

from things.declared import Declared
from things.lake import (
    INT64_MAX,
    INT64_MIN,
    READINGS_COLUMNS,
    SET_ASIDE_COLUMNS,
    TIME_MAX,
    TIME_MIN,
    VALUE_COLUMNS,
    ColumnType,
    Placed,
    Quality,
    agent_of,
    day_of,
    placed,
)
from twin.lake.rows import HotColumns, Series
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
        self._aside: list[dict[str, Any]] = []
        self.rows = 0
        self.last = 0
        """The highest row id."""
        self.bytes = 0
        """Of the values' text."""

    @property
    def set_aside(self) -> int:
        """How many rows no column could hold."""
        return len(self._aside)

    def add(self, batch: HotColumns) -> None:
        """Take a batch that is not empty. Rows that cannot be taken are found by halving and set aside; all others are
        taken."""
        try:
            self._take(batch)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
            half = len(batch.row_ids) // 2
            if half:
                self.add(batch.between(0, half))
                self.add(batch.between(half, len(batch.row_ids)))
            else:
                row = {name: getattr(batch, column)[0] for name, column in _ROW.items()}
                series = batch.series[batch.keys[0]]
                self.put_aside(row_id=batch.row_ids[0], series=series, row=row, why=reason)
        self.last = batch.row_ids[-1]

    def aside(self) -> pa.Table:
        """The rows that were set aside, as `things.lake.SET_ASIDE` has them."""
        return pa.Table.from_pylist(self._aside, schema=arrow_schema(SET_ASIDE_COLUMNS, self._gateway))

    def put_aside(self, *, row_id: int, series: Series, row: Mapping[str, Any], why: Exception) -> None:
        """Keep a row whole, as text, with the reason."""
        thing_id, kind, name = series
        binary = any(isinstance(one, bytes) and not _is_utf8(one) for one in row.values())
        text = to_json(row, inf_nan_mode="strings", fallback=repr, bytes_mode="base64" if binary else "utf8")
        self._aside.append(
            {
                "row_id": row_id,
                "thing_id": thing_id,
                "name": name,
                "kind": kind,
                "reason": f"{type(why).__name__}: {why}"[:500],
                "row": text.decode(),
            }
        )

    def _take(self, batch: HotColumns) -> None:
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
            "created": _times("created", batch.created),
            "received": _times("received", batch.received),
            **dict(zip(VALUE_COLUMNS, spread, strict=True)),
            "own_unit": pa.array(batch.units or [None] * len(codes), pa.string()),
            "quality": pa.array(flags, pa.int32()),
            "td_version": pa.array(batch.td_versions, pa.int64()),
            "source_time": _times("source_time", batch.source_times, required=False),
        }
        if any(columns[name].null_count for name in ("quality", "td_version")):
            raise ValueError("quality or td_version is missing")
        self._taken.append(pa.record_batch(list(columns.values()), list(columns)))
        self.rows += len(codes)
        self.bytes += sum(map(len, batch.values))

    def days(self) -> Iterator[DayTable]:
        """The rows by day of creation, each sorted by (Thing, name, created, row id)."""
        if not self._taken:
            return
        found = pa.Table.from_batches(self._taken).combine_chunks()
        columns = {name: found[name].chunk(0) for name in found.column_names}
        codes, created = columns["code"], columns["created"]
        days = _days(created)
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


def _times(name: str, micros: Sequence[int | None], *, required: bool = True) -> pa.Array:
    """A column of times. Raises ValueError for one that no day and no tool could name."""
    found = pa.array(micros, pa.int64())
    bounds = pc.min_max(found).as_py()
    if required and found.null_count:
        raise ValueError(f"{name} is missing")
    if bounds["min"] is not None and (bounds["min"] < TIME_MIN or bounds["max"] > TIME_MAX):
        raise ValueError(f"{name} lies outside the years 1 to 9999")
    return found


def _days(micros: pa.Array) -> pa.Array:
    """Days since 1970, rounded down: in whole numbers, since a double cannot tell µs of far years apart."""
    whole = pc.divide(micros, DAY_US)  # rounds towards zero
    before = pc.less(pc.subtract(micros, pc.multiply(whole, DAY_US)), 0)
    return pc.subtract(whole, pc.cast(before, pa.int64()))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


_ROW = {
    "created": "created",
    "received": "received",
    "value": "values",
    "quality": "qualities",
    "td_version": "td_versions",
    "source_time": "source_times",
}
"""The members of a row that is set aside, and where a batch has them."""
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
            doubles[index] = float(value)
            longs[index] = value
            continue
        if value is _UNREADABLE or value in infinite:
            text = texts[index]
            shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
            # JSON bounds no number; the text of one that Python does not take is as good as any.
            is_number = NUMBER.fullmatch(shown) is not None
            spread = Placed(value_string=shown, quality=int(Quality.HUGE if is_number else Quality.UNREADABLE))
        else:
            spread = placed(value, wanted)
            if spread.value_json is not None:
                # As it was acknowledged: a value that is written anew may come out otherwise.
                text = texts[index]
                spread = spread._replace(value_json=text if isinstance(text, str) else text.decode())
        doubles[index], longs[index], bools[index], strings[index], jsons[index], doubt = spread
        flags[index] |= doubt
    columns = (doubles, longs, bools, strings, jsons)
    return [pa.array(column, kind) for column, kind in zip(columns, _COLUMN_TYPES, strict=True)], flags


NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
"""A number as JSON writes it."""
_NUMBERS = (None, "number")
_INTEGERS = (None, "integer")
