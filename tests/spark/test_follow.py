"""Streaming roll-ups: equal to rolling up everything at once, through late rows, restarts and kills."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertDataFrameEqual

from spark.jobs import follow, rollup, runs
from spark.jobs.locks import only_job
from spark.transforms import partials, rollups
from tests.spark.clusters import cluster, environment
from tests.spark.samples import readings_of, series
from tests.twin.lake.samples import NOON, SECOND, Lake, Rows, hot_row
from twin.lake.rows import HotRow

pytestmark = pytest.mark.spark


def disordered(count: int) -> list[HotRow]:
    """Two series, some readings minutes or hours late."""
    choice = random.Random(5)
    return [
        hot_row(
            row_id,
            choice.uniform(-5, 5),
            name=choice.choice("ab"),
            created=NOON + row_id * 20 * SECOND - choice.choice((0, 0, 0, 0, 7, 900, 9000)) * SECOND,
        )
        for row_id in range(1, count + 1)
    ]


def test_windows_in_two_steps_equal_the_rollup_in_one(spark: SparkSession) -> None:
    readings = readings_of(spark, disordered(200) + series((0, 3.0), name="single", first=900))

    in_steps = partials.finished(partials.partials(readings, 300), 300)

    assertDataFrameEqual(in_steps, rollups.rollup(readings, 300), rtol=1e-9)


def test_windows_of_separate_rows_add_up_to_those_of_all_rows(spark: SparkSession) -> None:
    rows = disordered(200)
    whole = partials.partials(readings_of(spark, rows), 300)

    pieces = [partials.partials(readings_of(spark, rows[start : start + 50]), 300) for start in range(0, 200, 50)]
    windows = partials.added(reduce(DataFrame.unionByName, pieces), 300)

    torn = windows.where("is_torn").drop("is_torn")
    mended = partials.mended(torn, readings_of(spark, rows), 300)
    assert torn.count() > 5
    found = windows.where("NOT is_torn").drop("is_torn").unionByName(mended)
    assertDataFrameEqual(plain(found), plain(whole), ignoreNullable=True)
    # All but what hangs on the order of the readings is exact without them.
    ordered = ("integral", "gaps")
    assertDataFrameEqual(
        windows.drop("is_torn", *ordered).orderBy("name", "w"),
        whole.drop(*ordered).orderBy("name", "w"),
        ignoreNullable=True,
    )


def test_a_torn_window_whose_readings_are_gone_keeps_an_estimate_within_them(spark: SparkSession) -> None:
    rows = series((0, 10.0), (100, 20.0), (50, 30.0), (150, 40.0))
    pieces = [partials.partials(readings_of(spark, part), 300) for part in (rows[:2], rows[2:])]
    torn = partials.added(reduce(DataFrame.unionByName, pieces), 300).drop("is_torn")

    found = partials.finished(partials.mended(torn, readings_of(spark, rows[2:]), 300), 300).collect()

    assert [(row["count"], row["sum"], row["first"], row["last"]) for row in found] == [(4, 100.0, 10.0, 40.0)]
    assert 10 < found[0].mean_tw < 40


def test_the_stream_equals_the_batch_after_late_rows_restarts_and_folds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FANOUT", 2)
    lake = Lake(tmp_path / "lake")
    rows = disordered(240)

    for last in (100, 240):
        lake.sealer.seal(Rows(rows), up_to=last)
        query = follow.start(spark, str(lake.root), max_rows=30)
        assert query.awaitTermination(240)
        found = follow.table(spark, str(lake.root))
        assertDataFrameEqual(found, rollup.run(spark, lake.root), rtol=1e-9)

    folders = sorted(path.relative_to(lake.root).as_posix() for path in lake.root.glob("streams/rollup-5m/level=*/*"))
    # 4 and 5 batches: four slots of a level are used in turns, and the third level has come to its first.
    assert [folder.rpartition("rollup-5m/")[2] for folder in folders] == [
        *(f"level=0/slot=0{slot}" for slot in range(4)),
        *(f"level=1/slot=0{slot}" for slot in range(4)),
        *(f"level=2/slot=0{slot}" for slot in range(2)),
        "level=3/slot=00",
    ]


def test_rows_of_several_gateways_are_followed_together(spark: SparkSession, tmp_path: Path) -> None:
    for gateway, count in (("one", 50), ("two", 20)):
        Lake(tmp_path / "lake", gateway).sealer.seal(Rows(disordered(count)))

    assert follow.start(spark, str(tmp_path / "lake"), max_rows=30).awaitTermination(240)

    assertDataFrameEqual(follow.table(spark, str(tmp_path / "lake")), rollup.run(spark, tmp_path / "lake"), rtol=1e-9)


def test_a_second_stream_of_one_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(tmp_path / "lake")

    with only_job(follow.state_of(str(lake.root), "5m"), name="_follow"):
        lake.root.mkdir(exist_ok=True)
        code = rollup.main(["--lake", str(lake.root), "--follow", "--once"])

    assert code == 1
    assert "another job" in capsys.readouterr().err


@pytest.mark.trial
@pytest.mark.timeout(600)
def test_a_killed_stream_goes_on_and_counts_every_row_once(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.sealer.seal(Rows(disordered(200)))
    state = lake.root / "streams/rollup-5m"
    # The instants that matter: rows planned but nothing written, half written or written but not committed, folding,
    # and folded with the batch itself still to come.
    instants: Sequence[Callable[[], bool]] = (
        lambda: (state / "_checkpoint/offsets/1").exists(),
        lambda: any(state.glob("level=0/slot=02/_temporary")) or (state / "level=0/slot=02/_SUCCESS").exists(),
        lambda: any(state.glob("level=1/slot=00/_temporary")) or (state / "level=1/slot=00/_SUCCESS").exists(),
        lambda: (state / "level=1/slot=00/_SUCCESS").exists(),
    )

    for instant in instants:
        _killed(_command(lake.root), instant)
    whole = subprocess.run(_command(lake.root), capture_output=True, text=True, timeout=240, check=True)

    expected = [row.asDict() for row in rollup.run(spark, lake.root).drop("window_start").collect()]
    found: list[dict[str, Any]] = json.loads(whole.stdout)
    assert sum(row["count"] for row in found) == 200
    assert_same(found, expected)
    print(f"0 lost of 200 over {len(instants)} kills")


@pytest.mark.trial
@pytest.mark.timeout(600)
def test_killed_executors_and_a_killed_driver_of_a_cluster_lose_and_repeat_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.sealer.seal(Rows(disordered(200)))
    slots = lake.root / "streams/rollup-5m/level=0"

    with cluster(tmp_path) as running:
        command = _command(lake.root, running.url, max_rows=40)

        def executors_die() -> bool:
            executors = [one for worker in running.workers for one in worker.children]
            if not executors or not (any(slots.glob("slot=01/_temporary")) or (slots / "slot=01/_SUCCESS").exists()):
                return False
            for executor in executors:
                os.kill(executor, signal.SIGKILL)
            return True

        _killed(command, executors_die, lambda: (slots / "slot=03/_SUCCESS").exists())
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment())

    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert sum(row["count"] for row in found) == 200
    assert_same(found, [row.asDict() for row in rollup.run(spark, lake.root).drop("window_start").collect()])


def plain(frame: DataFrame) -> DataFrame:
    """In an order, gaps too."""
    return frame.withColumn("gaps", F.sort_array("gaps")).orderBy("name", "w")


def assert_same(found: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]) -> None:
    assert [(row["name"], row["count"]) for row in found] == [(row["name"], row["count"]) for row in expected]
    for one, other in zip(found, expected, strict=True):
        for name in ("sum", "sum_sq", "min", "max", "first", "last", "mean_tw", "completeness"):
            assert one[name] == pytest.approx(other[name]), name


def _command(lake: Path, master: str = "local[2]", max_rows: int = 11) -> list[str]:
    job = [sys.executable, "-m", "spark.jobs.rollup", "--lake", str(lake), "--follow", "--once", "--json"]
    return [*job, "--max-rows", str(max_rows), "--master", master]


def _killed(command: Sequence[str], *instants: Callable[[], bool]) -> None:
    """Run until these instants have come, one after the other, then kill the driver and its own processes at once."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment()
    )
    deadline = time.monotonic() + 240
    try:
        for instant in instants:
            while not instant():
                assert time.monotonic() < deadline
                assert process.poll() is None, "the stream ended before it could be killed"
                time.sleep(0.005)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
