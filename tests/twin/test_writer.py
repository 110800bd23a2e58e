"""Group commit: order, isolation of jobs, and what happens when the disk is full or fails."""

import errno
import sqlite3
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

import twin.writer
from things.errors import QueueFull, SkepError, StorageDamaged, StorageFailed, StorageFull, Unavailable
from twin.database import open_database
from twin.migrations import Migration
from twin.reserve import Reserve
from twin.writer import SHORTEST_PAUSE_S, GroupThread, storage_error

pytestmark = pytest.mark.anyio


def _notes(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE notes (note TEXT PRIMARY KEY)")


NOTES = (Migration(1, "notes", _notes),)


def note(text: str, connection: Connection) -> str:
    connection.exec_driver_sql(f"INSERT INTO notes VALUES ('{text}')")
    return text


def error_named(name: str, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind("told so")
    error.sqlite_errorname = name
    return error


async def test_what_waits_shares_a_group_and_is_answered_in_order() -> None:
    groups: list[list[int]] = []
    gate = threading.Event()

    def write(jobs: Sequence[int]) -> Sequence[int]:
        gate.wait(10)
        groups.append(list(jobs))
        return [job * 2 for job in jobs]

    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", write)
        answered: list[int] = []
        futures = [thread.submit(number) for number in range(100)]
        for future in futures:
            future.add_done_callback(lambda done: answered.append(done.result()))
        assert thread.waiting == 100
        gate.set()
        await thread.close()

    assert answered == [number * 2 for number in range(100)]
    assert len(groups) <= 2
    assert thread.waiting == 0


async def test_closing_writes_what_waits_and_then_refuses() -> None:
    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", lambda jobs: list(jobs))
        future = thread.submit(1)
        await thread.close()
        await thread.close()

        assert future.result() == 1
        with pytest.raises(Unavailable):
            await thread.submit(2)


async def test_more_than_the_bound_is_refused_and_the_rest_is_kept() -> None:
    gate = threading.Event()

    def write(jobs: Sequence[int]) -> Sequence[int]:
        gate.wait(10)
        return jobs

    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", write, max_waiting=3)
        futures = [thread.submit(number) for number in range(3)]
        with pytest.raises(QueueFull):
            await thread.submit(3)
        gate.set()
        assert [await future for future in futures] == [0, 1, 2]
        await thread.close()


async def test_nothing_is_acknowledged_after_a_failed_commit(caplog: pytest.LogCaptureFixture) -> None:
    fails = True

    def write(jobs: Sequence[int]) -> Sequence[int]:
        if fails:
            raise error_named("SQLITE_IOERR_FSYNC")
        return jobs

    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", write)
        with pytest.raises(StorageFailed):
            await thread.submit(1)
        fails = False
        with pytest.raises(StorageFailed):
            await thread.submit(2)
        await thread.close()

    assert isinstance(thread.failure, StorageFailed)
    assert [record.levelname for record in caplog.records] == ["CRITICAL"]


async def test_a_file_held_by_another_program_is_tried_again() -> None:
    held = True

    def write(jobs: Sequence[int]) -> Sequence[int]:
        if held:
            raise error_named("SQLITE_BUSY")
        return jobs

    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", write)
        with pytest.raises(Unavailable):
            await thread.submit(1)
        held = False
        assert await thread.submit(2) == 2
        await thread.close()


@pytest.mark.parametrize(
    "shortage", [OSError(errno.EMFILE, "too many"), MemoryError(), error_named("SQLITE_CANTOPEN")], ids=repr
)
async def test_a_shortage_of_descriptors_or_memory_passes_and_is_tried_again_with_back_off(
    monkeypatch: pytest.MonkeyPatch, shortage: Exception
) -> None:
    now, tries, is_short = 0.0, 0, True
    monkeypatch.setattr(twin.writer, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter))

    def write(jobs: Sequence[int]) -> Sequence[int]:
        nonlocal tries
        tries += 1
        if is_short:
            raise shortage
        return jobs

    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", write)
        for pause_s in (SHORTEST_PAUSE_S, 2 * SHORTEST_PAUSE_S):
            for _ in range(3):  # the first of them is tried
                with pytest.raises(StorageFailed):
                    await thread.submit(1)
            assert isinstance(thread.failure, StorageFailed)
            now += pause_s
        assert tries == 2
        assert thread.failure is None
        is_short = False
        assert await thread.submit(2) == 2
        assert await thread.submit(3) == 3
        await thread.close()


async def test_a_bug_in_a_write_fails_its_group_and_not_the_store() -> None:
    def write(jobs: Sequence[int]) -> Sequence[int]:
        if 1 in jobs:
            raise KeyError("a bug")
        return jobs

    with anyio.fail_after(30):
        thread: GroupThread[int, int] = GroupThread("test", write)
        with pytest.raises(KeyError):
            await thread.submit(1)
        assert await thread.submit(2) == 2
        assert thread.failure is None
        await thread.close()


async def test_a_full_disk_refuses_writes_but_not_what_makes_room_and_resumes_by_itself(tmp_path: Path) -> None:
    room = False

    class Space(Reserve):
        def restore(self) -> bool:
            return room

    def write(jobs: Sequence[str]) -> Sequence[str]:
        if not room and "big" in jobs:
            raise error_named("SQLITE_FULL")
        return jobs

    with anyio.fail_after(30):
        thread: GroupThread[str, str] = GroupThread("test", write, reserve=Space(tmp_path / "reserve", 4096))
        assert await thread.submit("small") == "small"
        with pytest.raises(StorageFull):
            await thread.submit("big")
        with pytest.raises(StorageFull):
            await thread.submit("small")
        assert thread.is_full
        assert await thread.submit("purge", frees=True) == "purge"
        room = True
        assert await thread.submit("big") == "big"
        assert (thread.is_full, thread.failure) == (False, None)
        await thread.close()


async def test_a_refused_job_undoes_itself_only(tmp_path: Path) -> None:
    def refused(connection: Connection) -> None:
        note("half", connection)
        raise SkepError("no")

    def repeated(connection: Connection) -> str:
        return note("one", connection)

    with anyio.fail_after(30):
        async with open_database(tmp_path / "notes.db", NOTES) as database:
            one = database.submit(lambda connection: note("one", connection))
            no = database.submit(refused)
            again = database.submit(repeated)
            two = database.submit(lambda connection: note("two", connection))

            assert (await one, await two) == ("one", "two")
            with pytest.raises(SkepError, match="no"):
                await no
            with pytest.raises(IntegrityError):
                await again
            kept = await database.read(
                lambda connection: connection.exec_driver_sql("SELECT note FROM notes ORDER BY note").scalars().all()
            )
            assert kept == ["one", "two"]
            assert database.failure is None


async def test_parts_of_one_kind_are_carried_out_together_between_other_writes(tmp_path: Path) -> None:
    together: list[Sequence[str]] = []

    def noted(connection: Connection, parts: Sequence[str]) -> Sequence[str | SkepError]:
        together.append(list(parts))
        return [SkepError("no") if part == "no" else note(part, connection) for part in parts]

    with anyio.fail_after(30):
        async with open_database(tmp_path / "notes.db", NOTES) as database:
            answers = [database.submit_part(noted, part) for part in ("one", "no", "two")]
            between = database.submit(lambda connection: note("between", connection))
            last = database.submit_part(noted, "three")

            assert (await answers[0], await answers[2], await between, await last) == ("one", "two", "between", "three")
            with pytest.raises(SkepError, match="no"):
                await answers[1]
            assert together == [["one", "no", "two"], ["three"]]


async def test_a_part_that_fails_undoes_itself_only_and_what_is_remembered_is_told(tmp_path: Path) -> None:
    remembered: list[str] = []

    def noted(connection: Connection, parts: Sequence[str]) -> Sequence[str]:
        for part in parts:
            note(part, connection)
            remembered.append(part)
        return parts

    with anyio.fail_after(30):
        async with open_database(tmp_path / "notes.db", NOTES) as database:
            database.when_undone(remembered.clear)
            one, again, two = (database.submit_part(noted, part) for part in ("one", "one", "two"))

            assert (await one, await two) == ("one", "two")
            with pytest.raises(IntegrityError):
                await again
            assert remembered == ["two"]
            assert database.failure is None


async def test_a_full_database_refuses_and_takes_writes_again(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 8192)
    reserve.restore()
    with anyio.fail_after(30):
        async with open_database(tmp_path / "notes.db", NOTES, reserve=reserve) as database:

            def capped(connection: Connection) -> None:
                connection.exec_driver_sql("PRAGMA max_page_count = 8")

            def uncapped(connection: Connection) -> None:
                connection.exec_driver_sql("PRAGMA max_page_count = 1000000")

            async def fill() -> None:
                for number in range(100):
                    text = f"{number}" + "x" * 4000
                    await database.submit(partial(note, text))

            await database.submit(capped)
            with pytest.raises(StorageFull):
                await fill()
            stored = await database.read(
                lambda connection: connection.exec_driver_sql("SELECT count(*) FROM notes").scalar_one()
            )
            assert stored > 0
            await database.submit(uncapped, frees=True)
            assert await database.submit(lambda connection: note("after", connection)) == "after"
            assert database.failure is None


def test_errors_of_the_database_are_told_apart() -> None:
    assert isinstance(storage_error(error_named("SQLITE_FULL"), "x"), StorageFull)
    assert isinstance(storage_error(OSError(28, "no space"), "x"), StorageFull)
    assert isinstance(storage_error(error_named("SQLITE_CORRUPT_INDEX", sqlite3.DatabaseError), "x"), StorageDamaged)
    assert isinstance(storage_error(error_named("SQLITE_IOERR_FSYNC"), "x"), StorageFailed)
    assert isinstance(storage_error(OSError(5, "I/O error"), "x"), StorageFailed)


def test_the_reserve_takes_space_gives_it_up_and_takes_it_again(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = Reserve(path, 10_000)

    assert reserve.restore()
    assert reserve.restore()
    assert path.stat().st_size == 10_000
    reserve.release()
    reserve.release()
    assert not path.exists()
    assert reserve.restore()
    assert not Reserve(tmp_path / "more", 2**60).restore()
