"""Streaming roll-ups: equal to rolling up everything at once, through late rows, restarts and kills."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from spark.jobs import follow, rollup
from spark.transforms import partials, rollups
from tests.spark.samples import readings_of, series
from tests.twin.lake.samples import NOON, SECOND, Lake, Rows, hot_row
from twin.lake.rows import HotRow

pytestmark = pytest.mark.spark


def disordered(count: int) -> list[HotRow]:
    """Two series, some readings hours late."""
    choice = random.Random(5)
    return [
        hot_row(
            row_id,
            choice.uniform(-5, 5),
            name=choice.choice("ab"),
            created=NOON + row_id * 20 * SECOND - choice.choice((0, 0, 0, 0, 7, 9000)) * SECOND,
        )
        for row_id in range(1, count + 1)
    ]


def test_windows_in_two_steps_equal_the_rollup_in_one(spark: SparkSession) -> None:
    readings = readings_of(spark, disordered(200) + series((0, 3.0), name="single", first=900))

    in_steps = partials.finished(partials.partials(readings, 300), 300)

    assertDataFrameEqual(in_steps, rollups.rollup(readings, 300), rtol=1e-9)


def test_the_stream_equals_the_batch_after_late_rows_and_restarts(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    rows = disordered(120)

    for last in (50, 120):
        lake.sealer.seal(Rows(rows), up_to=last)
        query = follow.start(spark, str(lake.root), max_rows=60)
        assert query.awaitTermination(240)
        found = follow.table(spark, str(lake.root))
        assertDataFrameEqual(found, rollup.run(spark, lake.root), rtol=1e-9)

    assert len(list((lake.root / "streams/rollup-5m").glob("batch=*"))) == 3


@pytest.mark.trial
def test_a_killed_stream_goes_on_and_counts_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.sealer.seal(Rows(disordered(200)))
    state = lake.root / "streams/rollup-5m"
    # The instants that matter: rows planned but nothing written, half written, written but not committed.
    instants: Sequence[Callable[[], bool]] = (
        lambda: (state / "_checkpoint/offsets/1").exists(),
        lambda: any(state.glob("batch=2/_temporary")) or (state / "batch=2/_SUCCESS").exists(),
    )

    for instant in instants:
        _killed(_command(lake.root), instant)
    whole = subprocess.run(_command(lake.root), capture_output=True, text=True, timeout=240, check=True)

    expected = [row.asDict() for row in rollup.run(spark, lake.root).drop("window_start").collect()]
    found: list[dict[str, Any]] = json.loads(whole.stdout)
    assert [(row["name"], row["count"]) for row in found] == [(row["name"], row["count"]) for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["mean_tw"] == pytest.approx(other["mean_tw"])
        assert one["sum"] == pytest.approx(other["sum"])
        assert one["completeness"] == pytest.approx(other["completeness"])
    print(f"0 lost of 200 over {len(instants)} kills")


def _command(lake: Path) -> list[str]:
    job = [sys.executable, "-m", "spark.jobs.rollup", "--lake", str(lake), "--follow", "--once", "--json"]
    return [*job, "--max-rows", "70", "--master", "local[2]"]


def _killed(command: Sequence[str], instant: Callable[[], bool]) -> None:
    """Run until the instant comes, then kill driver and executors at once."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    try:
        while not instant():
            assert time.monotonic() < deadline
            assert process.poll() is None, "the stream ended before it could be killed"
            time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
