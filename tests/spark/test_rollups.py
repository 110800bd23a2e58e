"""Roll-ups: a table worked out by hand, the same result as plain Python and as DuckDB, and repair of late data."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark.descriptions import INTERVALS, declared_intervals
from spark.transforms.repairs import repaired
from spark.transforms.rollups import rollup
from tests.spark.samples import AMBIENT, MACHINE, after, collected, readings_of, recording, series
from tests.twin.lake.rollups import plain_rollups
from tests.twin.lake.samples import LAMP, NOON, SECOND, Lake, Rows, hot_row
from twin.lake.reader import LakeReader, Selection
from twin.lake.rows import HotRow

pytestmark = pytest.mark.spark


def lines_of(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.withColumn("window_start", F.unix_micros("window_start")).drop("gateway").collect()
    return sorted((row.asDict() for row in rows), key=lambda row: (row["thing_id"], row["name"], row["window_start"]))


def assert_same(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            if isinstance(value, float) and isinstance(other[name], float):
                assert math.isclose(value, other[name], rel_tol=1e-9, abs_tol=1e-9), (name, one, other)
            else:
                assert value == other[name], (name, one, other)


def test_a_value_counts_until_the_next_one_across_windows(spark: SparkSession) -> None:
    rows = series((60, 10.0), (120, 20.0), (240, 30.0), (450, 40.0))

    found = collected(
        rollup(readings_of(spark, rows), 300).orderBy("window_start"),
        "window_start", "count", "sum", "sum_sq", "min", "max", "first", "last", "mean_tw", "completeness",
    )  # fmt: skip

    # Median interval 120 s: 2.5 readings expected in 300 s. The second window carries 30 in for 150 s.
    first = (10.0 * 60 + 20.0 * 120 + 30.0 * 60) / 240
    second = (30.0 * 150 + 40.0 * 150) / 300
    assert found == [
        (after(0), 3, 60.0, 1400.0, 10.0, 30.0, 10.0, 30.0, first, 3 / 2.5),
        (after(300), 1, 40.0, 1600.0, 40.0, 40.0, 40.0, 40.0, second, 1 / 2.5),
    ]


def test_ties_go_to_the_higher_row_and_other_types_do_not_count(spark: SparkSession) -> None:
    rows = series((0, 1), (0, 2), (10, "text"), (20, True), (30, None))

    found = collected(rollup(readings_of(spark, rows), 60), "count", "first", "last", "mean_tw", "completeness")

    assert found == [(2, 1.0, 2.0, 2.0, None)]


def test_an_event_and_a_property_of_one_name_are_told_apart(spark: SparkSession) -> None:
    rows = [hot_row(1, 1.0), hot_row(2, 2.0, kind="event"), hot_row(3, 3.0)]

    found = collected(rollup(readings_of(spark, rows), 60).orderBy("kind"), "name", "kind", "sum")

    assert found == [("temperature", "event", 2.0), ("temperature", "property", 4.0)]


def test_series_of_one_name_are_apart_by_thing_and_gateway(spark: SparkSession) -> None:
    rows = [hot_row(1, 1.0), hot_row(2, 2.0, thing_id="dtw:agent1:bulb")]
    both = readings_of(spark, rows).union(readings_of(spark, rows[:1], gateway="other"))

    found = collected(rollup(both, 60).orderBy("gateway", "thing_id"), "gateway", "thing_id", "sum")

    assert found == [("gw", "dtw:agent1:bulb", 2.0), ("gw", LAMP, 1.0), ("other", LAMP, 1.0)]


def test_a_declared_interval_comes_before_the_median(spark: SparkSession) -> None:
    intervals = spark.createDataFrame([("gw", LAMP, "property", "temperature", 10 * SECOND)], INTERVALS)

    found = collected(rollup(readings_of(spark, series((0, 1.0), (1, 1.0))), 60, intervals), "completeness")

    assert found == [(2 / 6,)]


@pytest.mark.parametrize(
    ("td", "expected"),
    [
        ('{"properties": {"t": {"skep:interval": "PT5M"}, "u": {}}}', [("property", "t", 300_000_000)]),
        ('{"skep:interval": 2, "events": {"e": {}}}', [("event", "e", 2_000_000)]),
        ('{"properties": {"t": {"skep:interval": "soon"}, "u": {"skep:interval": 0}}}', []),
        ("[]", []),
    ],
)
def test_intervals_are_read_from_thing_descriptions(td: str, expected: list[tuple[str, str, int]]) -> None:
    assert list(declared_intervals(td)) == expected


def test_rollups_equal_plain_python_on_disordered_rows(spark: SparkSession) -> None:
    choice = random.Random(11)
    rows = [
        hot_row(
            row_id,
            choice.choice((choice.uniform(-9, 9), choice.randrange(5))),
            created=NOON - choice.randrange(5000) * SECOND,
            name=choice.choice("ab"),
        )
        for row_id in range(1, 300)
    ]

    assert_same(lines_of(rollup(readings_of(spark, rows), 300)), plain_rollups(rows, 300 * SECOND))


def test_repaired_rollups_equal_rolling_everything_up_again(spark: SparkSession) -> None:
    early = series((0, 1.0), (100, 2.0), (400, 3.0)) + series((0, 5.0), name="other", first=10)
    late_rows = series((50, 9.0), (299, 7.0), first=20)
    old = rollup(readings_of(spark, early), 300)
    everything = readings_of(spark, [*early, *late_rows])

    found = repaired(old, everything, 300, {"gw": 19})

    assert_same(lines_of(found), lines_of(rollup(everything, 300)))
    assert lines_of(found) != lines_of(old)


@pytest.mark.parametrize(("name", "window"), [(MACHINE, 3600), (AMBIENT, 86_400)])
def test_rollups_of_a_recording_equal_plain_python_and_duckdb(
    spark: SparkSession, tmp_path: Path, name: str, window: int
) -> None:
    rows: list[HotRow] = recording(name)
    lake = Lake(tmp_path)
    lake.sealer.seal(Rows(rows))

    found = lines_of(rollup(readings_of(spark, rows), window))

    assert_same(found, plain_rollups(rows, window * SECOND))
    assert_same(found, LakeReader(lake.manifest).rollup(Selection(), window * SECOND))
