"""Transforms on frames of a few rows, each worked out by hand."""

import math
import random
import statistics
import sys

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.schemas import PRESENCE
from spark.transforms.anomalies import flat_lines, mad_scores, stuck_clocks, z_scores
from spark.transforms.grids import gaps, resample
from spark.transforms.integrals import counter_deltas, integrals
from spark.transforms.presence import availability
from spark.transforms.rollups import rollup
from spark.transforms.states import as_of, difference, latest
from spark.transforms.units import converted
from tests.spark.samples import MACHINE, after, collected, readings_of, recording, series
from tests.twin.lake.samples import NOON, SECOND, hot_row
from things.errors import Invalid
from things.lake import Quality

pytestmark = pytest.mark.spark


def test_steps_without_a_reading_take_the_last_value(spark: SparkSession) -> None:
    frame = readings_of(spark, series((1, 1.0), (9, 2.0), (31, 3.0)))

    found = resample(frame, 10, limit_s=10).orderBy("at")

    assert collected(found, "at", "value", "is_filled") == [
        (after(0), 2.0, False),
        (after(10), 2.0, True),
        (after(20), None, True),
        (after(30), 3.0, False),
    ]


@pytest.mark.parametrize(
    ("how", "value"),
    [("first", 1.0), ("last", 3.0), ("mean", 2.0), ("min", 1.0), ("max", 3.0), ("sum", 6.0), ("count", 3.0)],
)
def test_a_step_is_summed_up_as_asked(spark: SparkSession, how: str, value: float) -> None:
    frame = readings_of(spark, series((1, 1.0), (2, 2.0), (3, 3.0)))

    assert collected(resample(frame, 10, how=how), "value") == [(value,)]  # type: ignore[arg-type]


def test_an_unknown_way_to_resample_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Invalid, match="no way to resample"):
        resample(readings_of(spark, series((0, 1.0))), 10, how="best")  # type: ignore[arg-type]


def test_gaps_are_found_by_the_median_interval(spark: SparkSession) -> None:
    frame = readings_of(spark, series((0, 1.0), (10, 1.0), (20, 1.0), (50, 1.0), (60, 1.0)))

    found = collected(gaps(frame), "gap_start", "gap_end", "seconds", "missing")

    assert found == [(after(20), after(50), 30.0, 2)]


def test_integrals_split_intervals_at_window_borders(spark: SparkSession) -> None:
    frame = readings_of(spark, series((30, 2.0), (150, 4.0)))

    found = collected(integrals(frame, 60).orderBy("window_start"), "window_start", "integral", "covered_s", "mean_tw")

    assert found == [
        (after(0), 60.0, 30.0, 2.0),
        (after(60), 120.0, 60.0, 2.0),
        (after(120), 2.0 * 30 + 4.0 * 30, 60.0, 3.0),
    ]


def test_no_value_holds_longer_than_the_longest_gap(spark: SparkSession) -> None:
    frame = readings_of(spark, series((0, 2.0), (150, 4.0)))

    found = collected(integrals(frame, 60, max_gap_s=40).orderBy("window_start"), "window_start", "covered_s")

    assert found == [(after(0), 40.0), (after(120), 30.0)]


def test_a_counter_that_falls_was_reset(spark: SparkSession) -> None:
    frame = readings_of(spark, series((0, 5), (10, 8), (20, 2), (30, 2)))

    found = collected(counter_deltas(frame).orderBy("at"), "value", "delta", "is_reset")

    assert found == [(5.0, None, False), (8.0, 3.0, False), (2.0, 2.0, True), (2.0, 0.0, False)]


def test_availability_counts_from_the_first_word_of_an_agent(spark: SparkSession) -> None:
    rows = [("a", True, after(30)), ("a", False, after(90)), ("a", False, after(90)), ("a", True, after(150))]
    frame = spark.createDataFrame([(*row, "gw") for row in rows], PRESENCE)

    found = availability(frame, 60, NOON + 180 * SECOND).orderBy("window_start")

    assert collected(found, "window_start", "online_s", "known_s", "availability", "changes") == [
        (after(0), 30.0, 30.0, 1.0, 0),
        (after(60), 30.0, 60.0, 0.5, 1),
        (after(120), 30.0, 60.0, 0.5, 1),
    ]


def test_a_z_score_compares_with_the_readings_before(spark: SparkSession) -> None:
    frame = readings_of(spark, series((0, 1.0), (1, 3.0), (2, 2.0), (3, 8.0), (4, 8.0)))

    found = collected(z_scores(frame, 3).orderBy("at"), "value", "score")

    assert [value for value, _ in found] == [1.0, 3.0, 2.0, 8.0, 8.0]
    scores = [score for _, score in found]
    assert scores[:2] == [None, None]
    assert scores[2] == pytest.approx(0.0)
    assert scores[3] == pytest.approx((8 - 2) / statistics.stdev([1, 3, 2]))
    assert scores[4] == pytest.approx((8 - 13 / 3) / statistics.stdev([3, 2, 8]))


def _hostile() -> dict[str, list[float]]:
    choice = random.Random(3)
    noise = [choice.gauss(0, 1) for _ in range(400)]
    offset = [0.0, *(1e7 + one for one in noise)]
    offset[350] += 50
    return {
        "runs of one value": [1e6 + one if index % 50 < 40 else 1e6 for index, one in enumerate(noise)],
        "a first value far away": offset,
        "values far away in between": [1e14 if index in (100, 237) else one for index, one in enumerate(noise)],
        "a flat line and a spike": [0.1] * 100 + [500.0] + [0.1] * 30,
        "shorter than a block": noise[:7],
        "a block and one": noise[:13],
        "small values": [one * 1e-150 for one in noise],
        "large values": [one * 1e150 for one in noise],
        "steps": [float(index // 40) * 1e7 + one for index, one in enumerate(noise)],
    }


def test_fast_z_scores_equal_the_plain_ones_whatever_the_values(spark: SparkSession) -> None:
    rows = [
        hot_row(10_000 * number + index, value, name=name)
        for number, (name, values) in enumerate(_hostile().items())
        for index, value in enumerate(values)
    ]
    frame = readings_of(spark, rows)

    fast = collected(z_scores(frame, 12).orderBy("row_id"), "name", "row_id", "score")
    plain = collected(z_scores(frame, 12, fast=False).orderBy("row_id"), "name", "row_id", "score")

    differing = [
        (one, other)
        for one, other in zip(fast, plain, strict=True)
        if (one[2] is None) != (other[2] is None)
        or (one[2] is not None and not math.isclose(one[2], other[2], rel_tol=1e-6, abs_tol=1e-6))
    ]
    assert differing == []
    assert len(plain) == len(rows)
    far = {row_id % 10_000: score for name, row_id, score in fast if name == "a first value far away"}
    assert [index for index, score in far.items() if score is not None and score > 15] == [350]


def test_a_value_that_leaves_a_flat_line_scores_above_every_threshold(spark: SparkSession) -> None:
    frame = readings_of(spark, series(*((index, 5.0) for index in range(30)), (30, 500.0), (31, 4.0)))

    scores = collected(z_scores(frame, 10).orderBy("at"), "score")
    (spike,) = (score for score, value in collected(mad_scores(frame, 3600), "score", "value") if value == 500.0)

    assert scores[2:30] == [(0.0,)] * 28
    assert scores[30] == (sys.float_info.max,)
    assert -1 < scores[31][0] < 0
    assert spike > 10
    level = readings_of(spark, series(*((index, 5.0) for index in range(30))))
    assert set(collected(mad_scores(level, 3600), "score")) == {(0.0,)}


def test_a_mad_score_is_not_moved_by_the_outlier_itself(spark: SparkSession) -> None:
    frame = readings_of(spark, series((0, 1.0), (1, 2.0), (2, 3.0), (3, 4.0), (4, 100.0)))

    found = dict(collected(mad_scores(frame, 3600), "value", "score"))

    assert found[3.0] == 0.0
    assert found[100.0] == pytest.approx(97 * 0.6745)


def test_flat_lines_are_runs_of_equal_values(spark: SparkSession) -> None:
    frame = readings_of(spark, series((0, 1.0), (10, 2.0), (20, 2.0), (30, 2.0), (40, 1.0), (50, 1.0)))

    assert collected(flat_lines(frame, 3), "start", "end", "count", "value") == [(after(10), after(30), 3, 2.0)]
    assert collected(flat_lines(frame, 2, 15), "count") == [(3,)]


def test_a_stuck_clock_repeats_its_time_as_rows_arrive(spark: SparkSession) -> None:
    rows = series((0, 1.0), (5, 2.0), (5, 3.0), (5, 4.0), (6, 5.0))

    assert collected(stuck_clocks(readings_of(spark, rows), 3), "at", "first_row", "last_row", "count") == [
        (after(5), 2, 4, 3)
    ]


def test_units_are_converted_and_what_cannot_be_is_flagged(spark: SparkSession) -> None:
    rows = [
        hot_row(1, 100, unit="Cel"),
        hot_row(2, 32.0, unit="°F"),
        hot_row(3, 5.0, unit="kg"),
        hot_row(4, 5.0),
        hot_row(5, 7, unit="Cel", name="other"),
    ]

    found = converted(readings_of(spark, rows), {"temperature": "K"}).orderBy("row_id")

    flagged = int(Quality.UNIT)
    rounded = [
        (round(value, 9), *rest) for value, *rest in collected(found, "value_double", "unit", "quality", "value_long")
    ]
    assert rounded == [
        (373.15, "K", 0, None),
        (273.15, "K", 0, None),
        (5.0, "kg", flagged, None),
        (5.0, None, flagged, None),
        (7.0, "Cel", 0, 7),
    ]


def test_an_unknown_unit_is_refused(spark: SparkSession) -> None:
    with pytest.raises(Invalid, match="not a unit"):
        converted(readings_of(spark, series((0, 1.0))), {"temperature": "furlong"})


def test_the_latest_value_is_the_newest_created_then_the_last_received(spark: SparkSession) -> None:
    rows = [*series((10, 1.0), (10, 2.0), (5, 3.0)), hot_row(9, "on", name="state")]

    found = collected(
        latest(readings_of(spark, rows)).orderBy("name"), "name", "row_id", "value_double", "value_string"
    )

    assert found == [("state", 9, None, "on"), ("temperature", 2, 2.0, None)]


def test_two_instants_differ_by_what_was_added_changed_or_removed(spark: SparkSession) -> None:
    rows = [*series((0, 1), (10, 4)), hot_row(3, "a", name="state", created=NOON), hot_row(4, 1, name="new")]
    frame = readings_of(spark, rows)
    before, later = as_of(frame, NOON), as_of(frame, NOON + 60 * SECOND)

    forward = collected(difference(before, later).orderBy("name"), "name", "change", "before", "after", "delta")
    backward = collected(difference(later, before).orderBy("name"), "name", "change")

    assert forward == [("new", "added", None, "1", None), ("temperature", "changed", "1", "4", 3.0)]
    assert backward == [("new", "removed"), ("temperature", "changed")]


def test_integrals_and_rollups_agree_on_a_recording(spark: SparkSession) -> None:
    frame = readings_of(spark, recording(MACHINE))
    means = integrals(frame, 3600).select("thing_id", "name", "window_start", "mean_tw")
    rolled = rollup(frame, 3600).select("thing_id", "name", "window_start", "mean_tw")

    shared = means.join(rolled.drop("mean_tw"), on=["thing_id", "name", "window_start"], how="inner")

    assertDataFrameEqual(shared, rolled, rtol=1e-9)


def test_the_fast_z_score_of_a_recording_equals_the_plain_one(spark: SparkSession) -> None:
    frame = readings_of(spark, recording(MACHINE))
    columns = ("row_id", "score")

    assertDataFrameEqual(
        z_scores(frame, 288).select(*columns), z_scores(frame, 288, fast=False).select(*columns), rtol=1e-6
    )
