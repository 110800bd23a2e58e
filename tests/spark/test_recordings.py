"""Transforms over real recordings, against the same things computed in plain Python from their definitions."""

import math
import random
from itertools import groupby, pairwise
from pathlib import Path
from statistics import mean, median, stdev

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark.jobs import follow, runs
from spark.transforms.anomalies import MAD_TO_SIGMA, flat_lines, mad_scores, stuck_clocks, z_scores
from spark.transforms.grids import gaps, resample
from spark.transforms.integrals import counter_deltas
from spark.transforms.states import as_of
from tests.spark.samples import AMBIENT, MACHINE, readings_of, recording
from tests.twin.lake.rollups import plain_rollups
from tests.twin.lake.samples import SECOND, Lake, Rows
from twin.lake.rows import HotRow

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("name", [MACHINE, AMBIENT])]

HOUR = 3600 * SECOND


def loaded(spark: SparkSession, name: str) -> tuple[DataFrame, list[tuple[int, int, float]]]:
    """A recording as a frame, and as (time, row id, value) in order of time."""
    rows: list[HotRow] = recording(name)
    return readings_of(spark, rows), sorted((row.created, row.row_id, float(row.value)) for row in rows)


def micros(frame: DataFrame, *columns: str) -> list[tuple[object, ...]]:
    times = {field.name for field in frame.schema.fields if field.dataType.typeName() == "timestamp"}
    chosen = [F.unix_micros(name).alias(name) if name in times else F.col(name) for name in columns]
    return sorted(tuple(row) for row in frame.select(*chosen).collect())


def test_gaps_of_a_recording(spark: SparkSession, name: str) -> None:
    frame, readings = loaded(spark, name)
    expected = median(after[0] - before[0] for before, after in pairwise(readings))

    found = micros(gaps(frame), "gap_start", "gap_end", "missing")

    assert found == [
        (before[0], after[0], round((after[0] - before[0]) / expected) - 1)
        for before, after in pairwise(readings)
        if after[0] - before[0] > 1.5 * expected
    ]
    assert bool(found) == (name == AMBIENT)  # the machine's clock jumped back over readings; it never paused


def test_an_hourly_grid_of_a_recording(spark: SparkSession, name: str) -> None:
    frame, readings = loaded(spark, name)
    by_hour = {hour: [row[2] for row in rows] for hour, rows in groupby(readings, key=lambda row: row[0] // HOUR)}
    expected: list[tuple[object, ...]] = []
    value = math.nan
    for hour in range(min(by_hour), max(by_hour) + 1):
        value = by_hour[hour][-1] if hour in by_hour else value
        expected.append((hour * HOUR, value, hour not in by_hour))

    assert micros(resample(frame, 3600), "at", "value", "is_filled") == expected


def test_rolling_scores_of_a_recording(spark: SparkSession, name: str) -> None:
    frame, readings = loaded(spark, name)
    values = [value for _, _, value in readings]

    found = {row.row_id: row.score for row in z_scores(frame, 50).collect()}

    for index, (_, row_id, value) in enumerate(readings):
        before = values[max(0, index - 50) : index]
        spread = stdev(before) if len(before) > 1 else 0.0
        if spread == 0:
            assert found[row_id] is None
        else:
            assert found[row_id] == pytest.approx((value - mean(before)) / spread, rel=1e-6, abs=1e-6)


def test_scores_by_median_of_a_recording(spark: SparkSession, name: str) -> None:
    frame, readings = loaded(spark, name)

    found = {row.row_id: row.score for row in mad_scores(frame, 86_400).collect()}

    for _, rows in groupby(readings, key=lambda row: row[0] // (24 * HOUR)):
        day = list(rows)
        middle = median(value for _, _, value in day)
        spread = median(abs(value - middle) for _, _, value in day)
        for _, row_id, value in day:
            expected = abs(value - middle) * MAD_TO_SIGMA / spread if spread else None
            assert found[row_id] == (expected if expected is None else pytest.approx(expected))


def test_runs_of_a_recording(spark: SparkSession, name: str) -> None:
    frame, readings = loaded(spark, name)
    arrived = sorted(readings, key=lambda row: row[1])
    flat = [list(rows) for _, rows in groupby(readings, key=lambda row: row[2])]
    stuck = [list(rows) for _, rows in groupby(arrived, key=lambda row: row[0])]

    assert micros(flat_lines(frame, 2), "start", "count") == sorted(
        (rows[0][0], len(rows)) for rows in flat if len(rows) >= 2
    )
    assert micros(stuck_clocks(frame, 2), "at", "count") == sorted(
        (rows[0][0], len(rows)) for rows in stuck if len(rows) >= 2
    )


def test_deltas_and_state_of_a_recording(spark: SparkSession, name: str) -> None:
    frame, readings = loaded(spark, name)
    middle = readings[len(readings) // 2]

    deltas = micros(counter_deltas(frame).where("delta is not null"), "at", "delta")
    state = micros(as_of(frame, middle[0]), "created", "value_double")

    assert deltas == sorted(
        (after[0], after[2] if after[2] < before[2] else after[2] - before[2]) for before, after in pairwise(readings)
    )
    last = [row for row in readings if row[0] <= middle[0]][-1]
    assert state == [(last[0], last[2])]


def test_a_followed_recording_with_late_rows_has_the_rollups_that_plain_python_computes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rows = recording(name)
    # A tenth comes in at the end, as from an agent that was away.
    late = set(random.Random(7).sample(range(len(rows)), len(rows) // 10))
    arrived = [row for at, row in enumerate(rows) if at not in late] + [rows[at] for at in sorted(late)]
    rows = [row._replace(row_id=row_id) for row_id, row in enumerate(arrived, 1)]
    monkeypatch.setattr(runs, "FANOUT", 2)
    lake = Lake(tmp_path / "lake")
    for share in (0.5, 1.0):
        lake.sealer.seal(Rows(rows), up_to=round(len(rows) * share))
        assert follow.start(spark, str(lake.root), window="1d", max_rows=len(rows) // 4).awaitTermination(300)

    found = follow.table(spark, str(lake.root), window="1d").collect()

    expected = plain_rollups(rows, 24 * HOUR)
    assert [row["count"] for row in found] == [row["count"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        for column in ("sum", "min", "max", "first", "last", "mean_tw", "completeness"):
            assert math.isclose(one[column], other[column], rel_tol=1e-9), column
