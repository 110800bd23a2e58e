"""The same jobs on a standalone cluster with two workers and over Spark Connect, started for real from the package."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.clusters import CLASS, cluster, environment, started
from tests.spark.samples import series
from tests.twin.lake.rollups import plain_rollups
from tests.twin.lake.samples import SECOND, Lake, Rows

pytestmark = pytest.mark.spark

POINTS: list[tuple[float, object]] = [(second, second / 7) for second in range(0, 1800, 45)]

READS = """
import sys
from spark.session import opened
from spark.sources import register
from spark import lake
lake_url, master, remote = sys.argv[1:]
session = opened("reads", master=master or None, remote=remote or None)
register(session)
convenient = session.read.format("skep").option("lake", lake_url).load()
print("rows", convenient.count(), lake.readings(session, lake_url).count())
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    rows = series(*POINTS)
    for last in (15, 40):
        made.sealer.seal(Rows(rows), up_to=last)
    return made


@pytest.mark.trial
def test_jobs_and_source_run_on_a_standalone_cluster_with_two_workers(lake: Lake, tmp_path: Path) -> None:
    with cluster(tmp_path) as running:
        found = _rollup(lake, "--master", running.url)
        said = _python("-c", READS, str(lake.root), running.url, "").stdout

    _assert_rollup(found)
    assert "rows 40 40" in said
    executors = [path for number in (1, 2) for path in (tmp_path / f"work{number}").glob("app-*/*")]
    assert len({path.parent.parent.name for path in executors}) == 2


def test_jobs_and_source_run_over_spark_connect(lake: Lake, tmp_path: Path) -> None:
    server = [str(CLASS), "org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    server += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in ("spark.connect.grpc.binding.port=0", "spark.connect.grpc.binding.address=127.0.0.1"):
        server += ["--conf", setting]
    server += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2", "spark-internal"]

    with started(server, tmp_path / "connect.log", r"Spark Connect server started at: \S*?:(\d+)") as listening:
        remote = f"sc://127.0.0.1:{listening.said}"
        found = _rollup(lake, "--remote", remote)
        said = _python("-c", READS, str(lake.root), "", remote).stdout

    _assert_rollup(found)
    assert "rows 40 40" in said


def _rollup(lake: Lake, *where: str) -> Any:
    return json.loads(_python("-m", "spark.jobs.rollup", "--lake", str(lake.root), "--json", *where).stdout)


def _assert_rollup(found: Sequence[Mapping[str, Any]]) -> None:
    expected = plain_rollups(series(*POINTS), 300 * SECOND)
    assert [row["count"] for row in found] == [row["count"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["mean_tw"] == pytest.approx(other["mean_tw"])


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, env=environment())
    assert done.returncode == 0, done.stderr[-2000:]
    return done
