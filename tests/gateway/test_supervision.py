"""A service manager hears when the runtime is ready, that it is alive, reloads and stops."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.supervision import ServiceManager

LISTENERS = ["--http=127.0.0.1:0", "--https=off", "--mqtt=off", "--mqtts=off"]
PATIENCE_S = 60


@contextmanager
def _listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(PATIENCE_S)
        yield manager


def _heard(manager: socket.socket) -> list[str]:
    return manager.recv(4_096).decode().split("\n")


def _heard_until(manager: socket.socket, wanted: str) -> Sequence[str]:
    """What comes up to and including `wanted`, one line each."""
    lines: list[str] = []
    while wanted not in lines:
        lines += _heard(manager)
    return lines


def test_manager_hears_of_the_whole_life_of_a_runtime(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "skep", "run", "--home", str(tmp_path / "home"), "--ready-file", str(ready)]
    with _listening(tmp_path / "notify") as manager:
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        process = subprocess.Popen([*command, *LISTENERS], env=environment, stdout=subprocess.DEVNULL)
        try:
            started = _heard_until(manager, "READY=1")
            assert any(line.startswith("STATUS=http://127.0.0.1:") for line in started)
            _heard_until(manager, "WATCHDOG=1")
            _heard_until(manager, "WATCHDOG=1")

            process.send_signal(signal.SIGHUP)
            _heard_until(manager, "RELOADING=1")
            _heard_until(manager, "READY=1")

            process.send_signal(signal.SIGTERM)
            _heard_until(manager, "STOPPING=1")
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()


def test_nothing_is_told_where_nobody_asks() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    manager.tell("READY=1")
    assert manager.watchdog_s is None


def test_manager_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell("READY=1")
    assert "could not be told" in caplog.text


def test_name_in_the_abstract_namespace_is_reached() -> None:
    name = f"skep-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}")
        manager.settimeout(PATIENCE_S)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).tell("READY=1", "STATUS=up")
        assert _heard(manager) == ["READY=1", "STATUS=up"]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_is_heeded_where_it_is_meant_for_this_process(
    environment: dict[str, str], seconds: float | None
) -> None:
    assert ServiceManager({"NOTIFY_SOCKET": "/run/nobody", **environment}).watchdog_s == seconds
