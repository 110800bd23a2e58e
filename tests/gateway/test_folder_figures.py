"""What the disk says is asked in a thread: a disk that hangs keeps nobody waiting, and is named."""

import os
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import httpx2
import pytest

from gateway.folder_figures import AGAIN_S, HANGS_S, PATIENCE_S, FolderFigures
from gateway.inventory import NOTES_FILE, Note, write_notes
from tests.metrics import read
from tests.support import skep

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _hanging(home: Path) -> Path:
    """A file of the folder as a disk that hangs gives it: who opens it waits."""
    file = home / NOTES_FILE
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    return file


def _answering(file: Path) -> None:
    """Let the one who waits read that there are no notes."""
    with file.open("wb") as writing:
        writing.write(b"[]")


async def test_the_last_figures_are_handed_out_while_the_disk_hangs_and_it_is_named(tmp_path: Path) -> None:
    clock = Clock()
    figures = FolderFigures(tmp_path, clock)
    write_notes(tmp_path, [Note(store="twin.db", detail="gone", at="")])
    await figures.refresh()
    assert [note.store for note in figures.last.notes] == ["twin.db"]
    assert figures.last.database_bytes > 0
    assert figures.problem is None

    file = _hanging(tmp_path)
    await figures.refresh()
    assert [note.store for note in figures.last.notes] == ["twin.db"], "the last look was a moment ago"
    clock.now += AGAIN_S
    began = time.monotonic()
    for _ in range(20):
        await figures.refresh()
    assert time.monotonic() - began < PATIENCE_S + 1, "only the first one waits, and not long"
    clock.now += HANGS_S
    assert figures.problem is not None
    assert "has not answered for 10 s" in figures.problem

    await anyio.to_thread.run_sync(_answering, file)
    with anyio.fail_after(10):
        while figures.problem is not None or figures.last.notes:
            await anyio.lowlevel.checkpoint()
    file.unlink()
    clock.now += AGAIN_S
    await figures.refresh()
    assert figures.last.notes == []


async def test_one_who_asks_and_leaves_keeps_no_other_from_looking(tmp_path: Path) -> None:
    figures = FolderFigures(tmp_path, Clock())
    with anyio.CancelScope() as left:
        left.cancel()
        await figures.refresh()

    await figures.refresh()

    assert figures.last.free_bytes is not None


async def test_health_pages_answer_while_the_disk_hangs(tmp_path: Path) -> None:
    async with skep(tmp_path) as house, httpx2.AsyncClient(base_url=house.http) as anybody:
        file = await anyio.to_thread.run_sync(_hanging, tmp_path)
        try:
            with anyio.fail_after(PATIENCE_S + 5):
                found = read((await anybody.get("/metrics")).text)
                ready = await anybody.get("/readyz")
            assert found["skep_ready"] == 1
            assert ready.status_code == 200
        finally:
            await anyio.to_thread.run_sync(_answering, file)
            await anyio.Path(file).unlink()
