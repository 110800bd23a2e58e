"""An S3 server for tests: the one whose folder `SKEP_S3` names, or moto's on loopback, with its objects in memory."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.error import URLError

import pytest

VARIABLE = "SKEP_S3"
BUCKET = "skep"
START_S = 60


def environment() -> Mapping[str, str]:
    """What programs that tests start need in order to find the server; nothing where `SKEP_S3` names one. It has to be
    set before Spark's virtual machine starts, whose workers inherit it."""
    if os.environ.get(VARIABLE):
        return {}
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def server() -> Iterator[str]:
    """The URL of a folder of objects, below which tests make their own; skips where there is no server to start."""
    given = os.environ.get(VARIABLE)
    if given:
        yield given.rstrip("/")
        return
    pytest.importorskip("moto", reason=f"moto is not installed, and {VARIABLE} names no folder of an S3 server")
    address = os.environ["AWS_ENDPOINT_URL"]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", address.rpartition(":")[2]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"{address}/{BUCKET}", process)
        yield f"s3://{BUCKET}"
    finally:
        process.terminate()
        process.wait(10)


def _make_bucket(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=START_S).close()
            return
        except URLError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
