"""Reading the lake: pages, hot and sealed rows as one series, and roll-ups checked against plain Python."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.twin.lake.rollups import plain_rollups
from tests.twin.lake.samples import DAY, NOON, SECOND, Lake, Rows, hot_row
from things.errors import StorageDamaged
from twin.lake.reader import LakeReader, Selection
from twin.lake.rows import HotRow


def reader_of(root: Path, rows: Sequence[HotRow], sealed: int) -> LakeReader:
    """The first `sealed` rows in the lake, the rest hot."""
    lake = Lake(root)
    lake.sealer.seal(Rows(rows), up_to=sealed)
    return LakeReader(lake.manifest, Rows(rows))


def test_hot_and_sealed_rows_are_one_series(tmp_path: Path) -> None:
    rows = [hot_row(row_id, row_id / 2, created=NOON - row_id * SECOND) for row_id in range(1, 7)]
    reader = reader_of(tmp_path, rows, sealed=3)

    found = reader.rows(Selection(), limit=10)

    assert [row[0] for row in found] == [6, 5, 4, 3, 2, 1]
    assert [float(row[6]) for row in found] == [3.0, 2.5, 2.0, 1.5, 1.0, 0.5]
    assert [row[0] for row in reader.rows(Selection(), limit=10, sealed_only=True)] == [3, 2, 1]


def test_pages_by_time_and_by_row_fit_together(tmp_path: Path) -> None:
    rows = [hot_row(row_id, row_id, created=NOON + (row_id % 3) * SECOND) for row_id in range(1, 11)]
    reader = reader_of(tmp_path, rows, sealed=5)
    whole = reader.rows(Selection(), limit=100)

    for descending in (False, True):
        pages: list[tuple[object, ...]] = []
        after = None
        while page := reader.rows(Selection(), limit=3, after=after, descending=descending):
            pages.extend(page)
            after = (page[-1][4], page[-1][0])
        assert pages == (whole[::-1] if descending else whole)

    assert [row[0] for row in reader.rows(Selection(), limit=4, after_row=3)] == [4, 5, 6, 7]


@pytest.mark.parametrize("value", ["1.5", "3", "true", "null", '"text"', '{"a":[1,null]}', str(2**80), '"12"', "-0.25"])
def test_a_value_comes_back_as_the_json_it_was(tmp_path: Path, value: str) -> None:
    reader = reader_of(tmp_path, [hot_row(1, value.encode())], sealed=1)

    assert reader.rows(Selection(), limit=1)[0][6] == value


def test_selections_narrow_by_thing_name_kind_and_time(tmp_path: Path) -> None:
    rows = [
        hot_row(1, 1),
        hot_row(2, 2, name="other"),
        hot_row(3, 3, kind="event"),
        hot_row(4, 4, thing_id="dtw:a:b"),
        hot_row(5, 5, created=NOON + 2 * DAY),
    ]
    reader = reader_of(tmp_path, rows, sealed=5)

    def ids(selection: Selection) -> list[int]:
        return [row[0] for row in reader.rows(selection, limit=10)]

    assert ids(Selection(names=["other"])) == [2]
    assert ids(Selection(kind="event")) == [3]
    assert ids(Selection(things=["dtw:a:b"])) == [4]
    assert ids(Selection(start=NOON + DAY)) == [5]
    assert ids(Selection(end=NOON + 2 * SECOND)) == [1]


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.sealer.seal(Rows([hot_row(1, 1.0)]))
    path = lake.snapshot().parts[0].path
    (tmp_path / path).unlink()

    with pytest.raises(StorageDamaged, match=r"part-000000000000001"):
        LakeReader(lake.manifest).rows(Selection(), limit=1)


def test_rollups_equal_a_plain_computation(tmp_path: Path) -> None:
    choice = random.Random(7)
    rows, at = [], NOON
    for row_id in range(1, 400):
        at += choice.choice((0, 30, 60, 60, 60, 900)) * SECOND
        created = at - choice.choice((0, 0, 0, 4000)) * SECOND
        value = choice.choice((choice.uniform(-50, 50), choice.randrange(9), "text", None))
        kind, name = choice.choice((("property", "a"), ("property", "b"), ("event", "b")))
        rows.append(hot_row(row_id, value, created=created, name=name, kind=kind))
    reader = reader_of(tmp_path, rows, sealed=200)
    window = 300 * SECOND

    found = reader.rollup(Selection(), window)
    tail = reader.rollup(Selection(start=NOON + 100 * window, end=NOON + 140 * window), window)

    expected = plain_rollups(rows, window)
    assert_same(found, expected)
    # What comes in from before the start counts; the median interval is that of the selection.
    late = [row for row in expected if NOON + 100 * window <= row["window_start"] < NOON + 140 * window]
    assert_same(tail, late, without=("completeness",))


def test_a_declared_interval_tells_completeness(tmp_path: Path) -> None:
    reader = reader_of(tmp_path, [hot_row(1, 1.0), hot_row(2, 1.0)], sealed=2)

    found = reader.rollup(Selection(), 300 * SECOND, expected_us={"temperature": 10 * SECOND})

    assert found[0]["completeness"] == 2 / 30


def assert_same(
    found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]], without: Sequence[str] = ()
) -> None:
    assert [(row["name"], row["kind"], row["window_start"]) for row in found] == [
        (row["name"], row["kind"], row["window_start"]) for row in expected
    ]
    for one, other in zip(found, expected, strict=True):
        for name in set(one) - set(without):
            if isinstance(one[name], float) and isinstance(other[name], float):
                assert math.isclose(one[name], other[name], rel_tol=1e-9, abs_tol=1e-9), (name, one, other)
            else:
                assert one[name] == other[name], name


def test_pages_of_a_long_lake_are_whole_in_every_order_and_open_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    chance = random.Random(3)
    rows = [
        hot_row(row_id, row_id, created=NOON + (row_id // 4) * DAY - chance.choice([0, 0, 3 * DAY, 30 * DAY]))
        for row_id in range(1, 161)
    ]
    for first in range(0, 160, 16):
        lake.sealer.seal(Rows(rows[: first + 16]))
    reader = LakeReader(lake.manifest)
    opened: list[int] = []
    sources = LakeReader._datasets

    def counted(self: LakeReader, snapshot: Any, parts: Any, *rest: Any, **more: Any) -> Any:
        opened.append(len(parts))
        return sources(self, snapshot, parts, *rest, **more)

    monkeypatch.setattr(LakeReader, "_datasets", counted)
    by_time = sorted((row.created, row.row_id) for row in rows)

    for descending in (False, True):
        seen: list[tuple[int, int]] = []
        after = None
        while page := reader.rows(Selection(), limit=9, after=after, descending=descending, sealed_only=True):
            seen += [(row[4], row[0]) for row in page]
            after = seen[-1]
        assert seen == sorted(by_time, reverse=descending)
    ids: list[int] = []
    while page := reader.rows(Selection(before_row=150), limit=11, after_row=ids[-1] if ids else 0, sealed_only=True):
        ids += [row[0] for row in page]
    assert ids == list(range(1, 150))

    opened.clear()
    reader.rows(Selection(), limit=3, descending=True, sealed_only=True)
    assert sum(opened) <= 8
    assert len(lake.snapshot().parts) > 40
