"""Backups that the gateway takes by itself: when, how a failure is told, and what counts as the last one."""

import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from authn.audit import read as audit_of
from gateway import chores
from gateway.backup.encryption import Keyring
from gateway.backup.folders import found_folder
from gateway.backup.schedule import AGAIN_S, FIRST_S, Schedule
from gateway.backup.taken import last_taken
from gateway.backup.taking import take
from gateway.config import Config
from tests.metrics import measured, read
from tests.support import skep
from things.errors import ConfigInvalid

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


class Times:
    """A clock that a test sets, seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000_000_000.0

    def __call__(self) -> int:
        return round(self.now_s * 1e6)


def _schedule(home: Path, times: Times, told: list[str], command: Sequence[str] = ()) -> Schedule:
    made = Schedule(home=home, to=str(home / "kept"), every_s=DAY_S, clock=times, steady=times, record=told.append)
    made.command = command or made.command
    return made


@asynccontextmanager
async def _served(schedule: Schedule) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(schedule.serve)
        yield
        tasks.cancel_scope.cancel()


async def _until(done: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not done():  # noqa: ASYNC110 - another process
            await anyio.sleep(0.01)


def _has_failed(schedule: Schedule, times: int) -> bool:
    return schedule.failures == times and not schedule._is_running


async def test_a_backup_is_taken_when_it_is_due_and_told(tmp_path: Path) -> None:
    home, times, told = tmp_path / "home", Times(), list[str]()
    home.mkdir(mode=0o700)
    (home / "skep.toml").write_text(f'[backup]\nto = "{home / "kept"}"\nkeep = 2\n')
    async with skep(home):
        schedule = _schedule(home, times, told)
        async with _served(schedule):
            await schedule.keep()
            assert "skep_backup_age_seconds" not in measured(schedule.metrics())
            times.now_s += FIRST_S
            await schedule.keep()
            await _until(lambda: last_taken(home) is not None and not schedule._is_running)
            await schedule.keep()

    assert not schedule.warnings()
    assert len(told) == 1
    assert "with keys" in told[0]
    assert len(found_folder(home / "kept", Keyring(None)).names()) == 1


async def test_a_failure_is_warned_of_and_tried_again_within_an_hour(tmp_path: Path) -> None:
    times, told = Times(), list[str]()
    answer = json.dumps({"error": {"code": "storage-full", "detail": "no space"}})
    failing = (sys.executable, "-c", f"print({answer!r}); raise SystemExit(1)")
    schedule = _schedule(tmp_path, times, told, failing)

    async with _served(schedule):
        for expected, wait_s in ((1, FIRST_S), (2, AGAIN_S)):
            await schedule.keep()
            times.now_s += wait_s
            await schedule.keep()
            await _until(partial(_has_failed, schedule, expected))

    assert schedule.warnings() == {"backup": "the last backup by schedule failed: storage-full: no space"}
    assert measured(schedule.metrics())["skep_backup_failures_total"] == 2
    assert not told


async def test_a_process_that_breaks_is_a_failure(tmp_path: Path) -> None:
    times = Times()
    schedule = _schedule(tmp_path, times, [], (sys.executable, "-c", "raise SystemExit('broken')"))

    async with _served(schedule):
        await schedule.keep()
        times.now_s += FIRST_S
        await schedule.keep()
        await _until(lambda: schedule.failures == 1)

    assert schedule.warnings() == {"backup": "the last backup by schedule failed: its process ended with 1: broken"}


async def test_the_age_of_the_last_backup_is_known_and_an_old_one_warned_of(tmp_path: Path) -> None:
    home, times = tmp_path / "home", Times()
    async with skep(home):
        pass
    taken = take(home, tmp_path / "site.tar", config=Config(), clock=times)
    assert taken.at == times()

    schedule = _schedule(home, times, [])
    times.now_s += 3_600
    assert measured(schedule.metrics())["skep_backup_age_seconds"] == 3600
    assert not schedule.warnings()
    times.now_s += 2 * DAY_S
    assert schedule.warnings() == {"backup": "the last backup was taken 49 hours ago"}
    schedule.to = None
    assert not schedule.warnings()


async def test_the_runtime_tells_of_a_backup_that_was_taken_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "EVERY_S", 0.02)
    home, to = tmp_path / "home", tmp_path / "site.tar"
    async with skep(home) as runtime, httpx.AsyncClient(base_url=runtime.http, trust_env=False) as client:
        assert "skep_backup_age_seconds" not in (await client.get("/metrics")).text

        await anyio.to_thread.run_sync(partial(take, home, to, config=Config(), keys=False))

        with anyio.fail_after(30):
            while read((await client.get("/metrics")).text).get("skep_backup_age_seconds") != 0:  # noqa: ASYNC110 - housekeeping
                await anyio.sleep(0.02)
    (told,) = [act for act in audit_of(home / "audit") if act["act"] == "backup"]
    assert told["target"] == f"{to} site.tar, without keys"


async def test_a_disk_that_is_not_there_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    home, disk = tmp_path / "home", tmp_path / "disk"
    home.mkdir(mode=0o700)
    disk.mkdir()
    (home / "skep.toml").write_text(f'[backup]\nto = "{disk / "kept"}"\n')
    async with skep(home):
        pass
    command = [sys.executable, "-m", "gateway.backup", str(home)]
    assert (await anyio.run_process(command)).returncode == 0
    (disk / "kept").rename(tmp_path / "unmounted")

    done = await anyio.run_process(command, check=False)

    assert done.returncode == 1
    assert "is its disk there" in json.loads(done.stdout)["error"]["detail"]
    assert not (disk / "kept").exists()
    await anyio.to_thread.run_sync(partial(take, home, disk / "kept", config=Config()))  # by hand it is begun anew
    assert (await anyio.run_process(command)).returncode == 0


def test_a_file_is_no_place_for_backups_by_schedule() -> None:
    with pytest.raises(ConfigInvalid):
        Config.of({"backup": {"to": "/mnt/site.tar.gz"}})
    assert Config.of({"backup": {"to": "/mnt/site"}}).backup.keep == 7
