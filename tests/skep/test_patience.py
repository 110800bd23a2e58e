"""A start and a command that meet at one data folder wait for each other, and say for what."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.home import COMMAND, RUNTIME, held, prepared
from skep.cli.patience import patient
from things.errors import Locked

OFF = ("--http=127.0.0.1:0", "--https=off", "--mqtt=off", "--mqtts=off")
WITHIN_S = 60.0


def until(holds: Callable[[], bool]) -> None:
    """Another process is waited for."""
    end = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


@pytest.mark.parametrize("holder", [COMMAND, RUNTIME])
def test_who_holds_a_folder_is_named(tmp_path: Path, holder: str) -> None:
    with held(tmp_path, holder), pytest.raises(Locked, match=holder) as refused, held(tmp_path):
        pass

    assert refused.value.by_command is (holder == COMMAND)


def test_a_start_waits_for_a_command_and_says_so(tmp_path: Path) -> None:
    home, ready, said = prepared(tmp_path / "home"), tmp_path / "ready.json", tmp_path / "log"
    command = [sys.executable, "-m", "skep", "run", "--home", str(home), "--ready-file", str(ready), *OFF]
    with ExitStack() as lock, said.open("wb") as log:
        lock.enter_context(held(home))
        with subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                until(lambda: "waiting" in said.read_text())
                lock.close()
                until(ready.exists)
                process.send_signal(signal.SIGTERM)
                assert process.wait(WITHIN_S) == 0
            finally:
                process.kill()

    assert f"waiting: {home} is in use by {COMMAND} (process " in said.read_text()


def test_a_command_waits_for_another_and_says_so(tmp_path: Path) -> None:
    home, said = prepared(tmp_path / "home"), tmp_path / "log"
    command = [sys.executable, "-m", "skep", "client", "ls", "--json", "--home", str(home)]
    with ExitStack() as lock, said.open("wb") as log:
        lock.enter_context(held(home))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process:
            try:
                until(lambda: "waiting" in said.read_text())
                lock.close()
                out, _ = process.communicate(timeout=WITHIN_S)
            finally:
                process.kill()
        assert process.returncode == 0, said.read_text()
        json.loads(out)


def test_a_start_does_not_wait_long_for_a_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skep.cli.patience.FOR_RUNTIME_S", 0.2)
    tries = 0

    def take() -> None:
        nonlocal tries
        tries += 1
        with held(tmp_path):
            pass

    with held(tmp_path, RUNTIME), pytest.raises(Locked):
        patient(take)
    assert tries > 1
