"""Inbox positions: kept over a restart, bounded, and no obstacle when their file is broken."""

from pathlib import Path

import pytest

from bindings.mqtt.positions import MAX_SESSIONS, Positions

pytestmark = pytest.mark.anyio


async def test_marks_outlive_the_process_that_saved_them(tmp_path: Path) -> None:
    positions = Positions(tmp_path / "marks.json")
    positions.put(("ann", "phone"), 41)
    positions.put(("ann", "phone"), 40)
    await positions.save()

    assert Positions(tmp_path / "marks.json").get(("ann", "phone")) == 41


async def test_an_unknown_session_begins_at_the_first_status(tmp_path: Path) -> None:
    assert Positions(tmp_path / "marks.json").get(("ann", "phone")) == 0


async def test_a_broken_file_costs_only_the_marks(tmp_path: Path) -> None:
    (tmp_path / "marks.json").write_bytes(b"[[1")
    positions = Positions(tmp_path / "marks.json")

    positions.put(("ann", "phone"), 1)
    await positions.save()

    assert Positions(tmp_path / "marks.json").get(("ann", "phone")) == 1


def test_the_longest_unused_mark_goes_first() -> None:
    positions = Positions()
    for number in range(MAX_SESSIONS + 1):
        positions.put(("ann", str(number)), 1)

    assert positions.get(("ann", "0")) == 0
    assert positions.get(("ann", "1")) == 1
