"""Spark servers for tests, started for real from the installed package: a standalone cluster, others by command."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pyspark

from spark.java import found_java

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


class Server(NamedTuple):
    """A running process, and what its log said when it was ready."""

    said: str
    pid: int

    @property
    def children(self) -> list[int]:
        """The processes it started, such as a worker's executors."""
        return [child.pid for child in psutil.Process(self.pid).children()]


class Cluster(NamedTuple):
    """A master's address, and its workers."""

    url: str
    workers: Sequence[Server]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A standalone cluster on loopback, one core a worker; their files lie in `folder`/work1 and so on."""
    with ExitStack() as running:
        main = [str(CLASS), "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        ready = r"Starting Spark master at (spark://\S+)"
        master = running.enter_context(started([*main, "--webui-port", "0"], folder / "master.log", ready)).said
        found = []
        for number in range(1, workers + 1):
            worker = [str(CLASS), "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
            worker += ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}"), master]
            log = folder / f"worker{number}.log"
            found.append(running.enter_context(started(worker, log, r"Successfully registered with")))
        yield Cluster(master, found)


def environment() -> dict[str, str]:
    """What Spark's own scripts need to run here."""
    java = {"JAVA_HOME": str(found_java().home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return {**os.environ, **java}


@contextmanager
def started(command: Sequence[str], log: Path, ready: str) -> Iterator[Server]:
    """A server process in a group of its own, until the block ends; ready when its log matches."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not (match := re.search(ready, log.read_text(errors="replace"))):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        yield Server(match[match.lastindex or 0], process.pid)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
