"""A gateway under load is backed up while either side is killed: what is restored elsewhere has all that was
acknowledged before the backup began, row by row, and half a backup is never taken for one."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.backup.encryption import Keyring
from gateway.backup.folders import found_folder
from gateway.backup.places import source_of
from gateway.backup.restoring import AHEAD, restore, verify
from gateway.backup.taken import last_taken
from tests.support import PUMP, Account, skep
from tests.trials.process import DOWN, RuntimeProcess, furnished, runtime_process
from things.errors import SkepError
from things.times import parse_time

pytestmark = pytest.mark.anyio

THING = "dtw:works:pump-1"
BATCH = 20
SEED = int(os.environ.get("SKEP_SEED", "1"))


class Load:
    """Events of one agent, in batches; `acknowledged` has each with the time (µs) of its answer."""

    def __init__(self, process: RuntimeProcess, agent: Account, consumer: Account) -> None:
        self._process = process
        self._agent = agent
        self._consumer = consumer
        self._number = 0
        self.acknowledged: dict[int, int] = {}
        self.requests: dict[str, int] = {}
        """Those of which the caller has been told, by id."""

    async def publish(self) -> None:
        """Go on until cancelled, whatever happens to the runtime."""
        while True:
            with suppress(*DOWN):
                async with self._process.client(self._agent) as client:
                    while True:
                        numbers = range(self._number, self._number + BATCH)
                        self._number += BATCH
                        batch = [_event(number) for number in numbers]
                        (await client.post("/agent/batch", json=batch)).raise_for_status()
                        self.acknowledged |= dict.fromkeys(numbers, _now())
            await anyio.sleep(0.01)

    async def ask(self) -> None:
        """Ask the agent, which never answers, for something now and then."""
        while True:
            with suppress(*DOWN):
                async with self._process.client(self._consumer) as client:
                    while True:
                        answer = await client.post(f"/things/{THING}/actions/setSpeed", json=3)
                        self.requests[answer.raise_for_status().json()["requestID"]] = _now()
                        await anyio.sleep(0.05)
            await anyio.sleep(0.01)


def _event(number: int) -> Mapping[str, Any]:
    return {"v": 1, "operation": "publish_event", "thingID": THING, "name": "alarm", "data": str(number)}


def _now() -> int:
    return time.time_ns() // 1_000


def _backing_up(home: Path, to: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "skep", "backup", "create", str(to), "--home", str(home)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _restoring(to: Path, new: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "skep", "restore", str(to), "--home", str(new)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


async def _ended(process: "subprocess.Popen[bytes]") -> bool:
    """Whether it took a backup."""
    with anyio.fail_after(120):
        while process.poll() is None:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)
    return process.returncode == 0


def _is_begun(to: Path) -> bool:
    return any(to.glob(".*.partial"))


async def _begun(to: Path) -> None:
    """Return when a backup is being written."""
    with anyio.fail_after(60):
        while not _is_begun(to):  # noqa: ASYNC110 - another process
            await anyio.sleep(0.002)


def _rows(home: Path, up_to: int) -> Sequence[Any]:
    """All rows of hot history, whole."""
    found: list[Any] = []
    for path in sorted((home / "history").glob("*.db")):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            found += connection.execute(
                "SELECT rows.*, thing_id, kind, name FROM rows JOIN keys USING (key) WHERE row_id <= ? ORDER BY row_id",
                (up_to,),
            )
    return found


async def test_backups_under_load_survive_kills_of_either_side(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    home, to = tmp_path / "home", tmp_path / "backups"
    made = await furnished(home, {"works": "agent", "mia": "operator"}, {THING: PUMP})
    whole: list[str] = []
    async with runtime_process(home) as process:
        load = Load(process, made["works"], made["mia"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load.publish)
            tasks.start_soon(load.ask)
            for killed in ("", "backup", "runtime", "backup", ""):
                with anyio.fail_after(60):
                    before = len(load.acknowledged)
                    while len(load.acknowledged) < before + 10 * BATCH:  # noqa: ASYNC110 - a program of its own
                        await anyio.sleep(0.01)
                backing = _backing_up(home, to)
                try:
                    if killed:
                        await _begun(to)
                        await anyio.sleep(chance.uniform(0, 0.05))
                    if killed == "backup":
                        backing.send_signal(signal.SIGKILL)
                    elif killed == "runtime":
                        await process.kill()
                    is_taken = await _ended(backing)
                    if killed == "runtime":
                        await process.start()
                finally:
                    backing.kill()
                assert is_taken or killed
                names = found_folder(to, Keyring(None)).names()
                assert len(names) >= len(whole) + is_taken
                whole = list(names)
            tasks.cancel_scope.cancel()
        last = last_taken(home)
        assert last is not None
        assert last.name == whole[-1]
        assert len(whole) >= 2
    for number, name in enumerate(whole):
        await _compare(to, name, home, tmp_path / f"new-{number}", load)


async def _compare(to: Path, name: str, home: Path, new: Path, load: Load) -> None:
    manifest, problems = verify(source_of(to / name, None))
    assert not problems
    restore(source_of(to / name, None), new)
    begun = parse_time(manifest.begun)

    rows = _rows(new, manifest.last_row)
    assert rows == _rows(home, manifest.last_row)
    stored = {int(row[4].strip(b'"')) for row in rows}
    wanted = {number for number, at in load.acknowledged.items() if at < begun}
    assert wanted <= stored
    async with skep(new) as runtime:
        twin = runtime.running.stores.twin
        assert twin.history.last_row >= manifest.last_row + AHEAD
        assert twin.ledger.last_seq == manifest.seq + AHEAD
        for request_id, at in load.requests.items():
            assert at >= begun or await twin.ledger.get(request_id) is not None
        values = twin.values.of_thing(THING).values()
        assert max(value.row_id for value in values) == manifest.last_row


async def test_home_that_is_left_by_a_killed_restore_is_as_it_was_or_refused(tmp_path: Path) -> None:
    home, to = tmp_path / "home", tmp_path / "site.tar"
    made = await furnished(home, {"works": "agent"}, {THING: PUMP})
    async with runtime_process(home) as process, process.client(made["works"]) as client:
        for number in range(50):
            (await client.post("/agent/things/pump-1/events/alarm", json=str(number))).raise_for_status()
        assert await _ended(_backing_up(home, to))

    chance = random.Random(SEED)
    for number in range(6):
        new = tmp_path / f"new-{number}"
        restoring = _restoring(to, new)
        with anyio.fail_after(60):
            while not new.exists() and restoring.poll() is None:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.001)
        await anyio.sleep(chance.uniform(0, 0.1))
        restoring.kill()
        restoring.wait(10)

        with suppress(SkepError):
            async with skep(new) as runtime:
                # Nothing had happened, or everything.
                count = len(_rows(new, 1 << 40))
                assert count in (0, 50)
                assert (runtime.running.stores.twin.directory.get(THING) is not None) == (count == 50)
        restore(source_of(to, None), new, replace=True)
        async with skep(new):
            assert len(_rows(new, 1 << 40)) == 50
