"""Whatever was acknowledged can be sealed and comes back as it was: every JSON value, time and mix of types."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.twin.lake.samples import NOON, SECOND, Lake, Rows, hot_row
from things.lake import INT64_MAX, INT64_MIN, SET_ASIDE, TIME_MAX, TIME_MIN, VALUE_COLUMNS, Quality
from twin.lake.pages import json_text
from twin.lake.reader import LakeReader, Selection
from twin.lake.rows import HotColumns, HotRow
from twin.lake.sealing import Beside
from twin.lake.verification import verify

INTEGERS = st.one_of(
    st.integers(),
    st.integers(INT64_MIN - 2, INT64_MIN + 2),
    st.integers(INT64_MAX - 2, INT64_MAX + 2),
    st.integers(2**53 - 2, 2**53 + 2),
    st.integers(10**308, 10**400),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    INTEGERS,
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
TIMES = st.one_of(
    st.integers(TIME_MIN, TIME_MAX),
    st.sampled_from([TIME_MIN, TIME_MIN + 1, -1, 0, 1, NOON, TIME_MAX - 1, TIME_MAX]),
)
TYPES = st.sampled_from([None, "number", "integer", "boolean", "string", "object", "array", "null"])


def text_of(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def are_same(one: object, other: object) -> bool:
    """Equal as JSON has it: 1 is 1.0 and is not true."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def read_plainly(lake: Lake) -> list[list[tuple[Any, ...]]]:
    """Row id, time and value columns as two tools see the live files."""
    paths = [str(lake.root / part.path) for part in lake.snapshot().parts if part.table == "readings"]
    columns = ["row_id", *VALUE_COLUMNS, "quality"]
    by_arrow: list[tuple[Any, ...]] = []
    for path in paths:
        table = pq.read_table(path, partitioning=None)
        micros = table["created"].cast("int64").to_pylist()
        by_arrow += zip(micros, *(table[name].to_pylist() for name in columns), strict=True)
    query = f"SELECT epoch_us(created), {', '.join(columns)} FROM read_parquet($1, hive_partitioning=false)"
    by_duckdb = duckdb.connect().execute(query, [paths]).fetchall()
    return [sorted(found, key=lambda row: row[1]) for found in (by_arrow, by_duckdb)]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(VALUES, TIMES, TYPES, st.integers(1, 3)), min_size=1, max_size=12))
def test_every_value_at_every_time_comes_back_from_the_lake_as_it_was(
    given_rows: list[tuple[Any, int, str | None, int]],
) -> None:
    rows = [
        hot_row(number, text_of(value), created=created, received=NOON, name=f"n{series}", value_type=declared)
        for number, (value, created, declared, series) in enumerate(given_rows, 1)
    ]
    with TemporaryDirectory() as folder:
        lake = Lake(Path(folder))

        sealed = lake.sealer.seal(Rows(rows))

        assert (sealed.rows, sealed.last, sealed.set_aside) == (len(rows), len(rows), 0)
        expected = [(value, created) for value, created, _, _ in given_rows]
        found = sorted(LakeReader(lake.manifest).rows(Selection(), limit=100, sealed_only=True))
        read = [(json.loads(row[6]), row[4]) for row in found]
        assert all(are_same(was, now) and at == then for (was, at), (now, then) in zip(expected, read, strict=True))
        for plain in read_plainly(lake):
            again = [(json.loads(json_text(*row[2:8])), row[0]) for row in plain]
            assert all(
                are_same(was, now) and at == then for (was, at), (now, then) in zip(expected, again, strict=True)
            )
        assert verify(lake.manifest).problems == []


@pytest.mark.parametrize(
    ("text", "declared", "double", "long"),
    [
        (b"1767225600000000001", None, 1.767225600000000001e18, 1767225600000000001),
        (b"1767225600000000001", "number", 1.767225600000000001e18, 1767225600000000001),
        (b"21", "number", 21.0, None),
        (str(INT64_MAX).encode(), "integer", 2.0**63, INT64_MAX),
        (str(INT64_MIN).encode(), "integer", -(2.0**63), INT64_MIN),
        (b"9223372036854775808", "integer", 2.0**63, None),
    ],
)
def test_a_large_integer_is_exact_beside_its_nearest_double(
    tmp_path: Path, text: bytes, declared: str | None, double: float, long: int | None
) -> None:
    lake = Lake(tmp_path)

    lake.sealer.seal(Rows([hot_row(1, 21.5), hot_row(2, "ok"), hot_row(3, text, value_type=declared)]))

    found = lake.table().sort_by("row_id").to_pylist()[2]
    assert (found["value_double"], found["value_long"]) == (double, long)
    (row,) = LakeReader(lake.manifest).rows(Selection(after_row=2), limit=5, sealed_only=True)
    assert int(row[6].partition(".")[0]) == int(text)


@pytest.mark.parametrize("text", [b"1e400", b"-1" + b"0" * 5_000, b"1" * 4_301])
def test_a_number_that_nothing_can_hold_keeps_its_digits(tmp_path: Path, text: bytes) -> None:
    lake = Lake(tmp_path)

    lake.sealer.seal(Rows([hot_row(1, 1.5), hot_row(2, text)]))

    assert lake.table().sort_by("row_id")["quality"].to_pylist() == [0, Quality.HUGE]
    found = LakeReader(lake.manifest).rows(Selection(), limit=5, sealed_only=True)
    assert found[1][6].encode() == text


@pytest.mark.parametrize("text", [b"NaN", b"-Infinity", b'"\\ud800"', b"\xff\xfe", b"", b"[" * 300 + b"]" * 300])
def test_what_is_not_json_is_kept_as_it_was_found(tmp_path: Path, text: bytes) -> None:
    lake = Lake(tmp_path)

    lake.sealer.seal(Rows([hot_row(1, 1.5), hot_row(2, text)]))

    found = lake.table().sort_by("row_id").to_pylist()
    assert (found[0]["value_double"], found[0]["quality"]) == (1.5, 0)
    assert (found[1]["value_string"], found[1]["quality"]) == (text.decode("utf-8", "replace"), Quality.UNREADABLE)


@pytest.mark.parametrize(
    "bad",
    [
        {"created": TIME_MIN - 1},
        {"created": TIME_MAX + 1},
        {"received": 2**63 - 1},
        {"source_time": -(2**63)},
        {"value": 5},
        {"quality": 2**40},
        {"td_version": "one"},
    ],
)
def test_a_row_that_no_column_can_hold_is_set_aside_and_the_others_go_on(tmp_path: Path, bad: dict[str, Any]) -> None:
    lake = Lake(tmp_path)
    rows = [hot_row(number, number / 2) for number in range(1, 101)]
    rows[41] = rows[41]._replace(**bad)
    hot = Damaged(rows)

    sealed = lake.sealer.seal(hot)
    again = lake.sealer.seal(hot)

    assert (sealed.rows, sealed.last, sealed.set_aside) == (99, 100, 1)
    assert (again.rows, again.commits, again.set_aside) == (0, 0, 0)
    assert [row_id for row_id, _ in lake.values()] == [*range(1, 42), *range(43, 101)]
    (aside,) = lake.table(SET_ASIDE).to_pylist()
    assert (aside["row_id"], aside["thing_id"], aside["name"]) == (42, rows[41].thing_id, "temperature")
    assert aside["reason"]
    kept = json.loads(aside["row"])
    assert all(kept[name] == value for name, value in bad.items())
    assert verify(lake.manifest).problems == []


def test_a_range_of_nothing_but_rows_that_are_set_aside_is_sealed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)

    sealed = lake.sealer.seal(Damaged([hot_row(1, 1.5, created=TIME_MAX + SECOND)]))

    assert (sealed.rows, sealed.last, sealed.set_aside) == (0, 1, 1)
    assert lake.snapshot().sealed == 1


class Damaged(Rows):
    """Rows whose members may be of any type, as SQLite gives them from a damaged page."""

    def columns(self, first: int, last: int, size: int, wanted: Any = None) -> Any:
        yield from columns_of_any([row for row in self.rows if first <= row.row_id <= last])


def columns_of_any(rows: Sequence[HotRow]) -> Sequence[HotColumns]:
    if not rows:
        return []
    ids, things, kinds, names, *others = zip(*rows, strict=True)
    series = list(zip(things, kinds, names, strict=True))
    return [HotColumns({key: key for key in series}, series, ids, *others)]


def test_a_row_of_a_small_table_that_no_column_can_hold_is_set_aside(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [{"agent_id": "a", "online": True, "at": NOON}, {"agent_id": "b", "online": "maybe", "at": 2**70}]

    sealed = lake.sealer.seal(Rows([hot_row(1, 1.5)]), [Beside("presence", 2, rows)])

    assert (sealed.rows, sealed.set_aside) == (1, 1)
    assert lake.table("presence")["agent_id"].to_pylist() == ["a"]
    assert lake.table(SET_ASIDE)["kind"].to_pylist() == ["presence"]
    assert lake.snapshot().marks == {"presence": 2}
