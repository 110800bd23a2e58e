"""The same jobs on a standalone cluster with two workers and over Spark Connect, started for real from the package."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from spark.java import found_java
from tests.spark.samples import series
from tests.twin.lake.rollups import plain_rollups
from tests.twin.lake.samples import SECOND, Lake, Rows

pytestmark = pytest.mark.spark

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
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
    with ExitStack() as running:
        main = [str(CLASS), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        master = running.enter_context(
            _started([*main, "--webui-port", "0"], tmp_path / "master.log", r"Starting Spark master at (spark://\S+)")
        )
        for number in (1, 2):
            worker = [str(CLASS), "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            worker += ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"work{number}"), master]
            running.enter_context(_started(worker, tmp_path / f"worker{number}.log", r"Successfully registered with"))

        found = _rollup(lake, "--master", master)
        said = _python("-c", READS, str(lake.root), master, "").stdout

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

    with _started(server, tmp_path / "connect.log", r"Spark Connect server started at: \S*?:(\d+)") as port:
        remote = f"sc://127.0.0.1:{port}"
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


def _environment() -> dict[str, str]:
    java = {"JAVA_HOME": str(found_java().home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **java}


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=180, env=_environment())
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@contextmanager
def _started(command: Sequence[str], log: Path, ready: str) -> Iterator[str]:
    """A server process in a group of its own, until the block ends; gives what its log says when it is ready."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=_environment(), start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not (match := re.search(ready, log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        yield match[match.lastindex or 0]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
