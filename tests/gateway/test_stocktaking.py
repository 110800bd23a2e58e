"""What the inventory takes note of while the stores are open, and what nobody may miss afterwards."""

from pathlib import Path

import anyio
import pytest

from gateway.inventory import read_inventory, read_notes
from gateway.stocktaking import MAX_NOTES, Stocktaking, note_set_aside

pytestmark = pytest.mark.anyio

FIRST, SECOND = "history/2026-01-01.db", "history/2026-01-02.db"


def _begun(home: Path) -> Stocktaking:
    """A home with two days of history that was opened once."""
    (home / "history").mkdir(exist_ok=True)
    taken = Stocktaking(home, is_on_server=False)
    taken.before_opening()
    taken.after_opening({FIRST: {"first": 1, "last": 5}, SECOND: {"first": 6, "last": 9}}, [])
    return taken


async def test_what_is_committed_is_noted_while_the_stores_are_open(tmp_path: Path) -> None:
    taken, last = _begun(tmp_path), 9

    def noted() -> int:
        inventory = read_inventory(tmp_path)
        assert inventory is not None
        return inventory.stores[SECOND]["last"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(taken.keep, lambda: last, lambda: {SECOND: {"first": 6, "last": last}})
        with anyio.fail_after(30):
            for last in (10, 20):
                while noted() < last:  # noqa: ASYNC110 - a file that somebody else writes
                    await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()


async def test_a_day_that_was_dropped_on_purpose_is_not_missed(tmp_path: Path) -> None:
    taken = _begun(tmp_path)

    await taken.forget(FIRST)
    # The file is still there until the store has dropped it, and is not listed again for it.
    taken.close({FIRST: {"first": 1, "last": 5}, SECOND: {"first": 6, "last": 9}})
    Stocktaking(tmp_path, is_on_server=False).before_opening()

    assert [note.store for note in read_notes(tmp_path)] == [SECOND]


async def test_stores_that_moved_to_a_server_are_not_missed_as_files(tmp_path: Path) -> None:
    taken = _begun(tmp_path)
    taken.close({"twin.db": {"seq": 7}, "accounts.db": {"revision": 3}})

    moved = Stocktaking(tmp_path, is_on_server=True)
    moved.before_opening()

    assert (moved.least("twin.db", "seq"), moved.least("accounts.db", "revision")) == (0, 0)


async def test_what_is_said_again_is_noted_once_and_notes_are_bounded(tmp_path: Path) -> None:
    for number in range(MAX_NOTES + 2):
        for _ in range(2):
            note_set_aside(tmp_path, "twin.db", f"gone {number}")

    assert [note.detail for note in read_notes(tmp_path)] == [f"gone {number}" for number in range(2, MAX_NOTES + 2)]
