"""Budgets of hot history."""

from pathlib import Path

import anyio
import pytest

from tests.twin.history.test_store import NOON, reading
from things.records import HistoryQuery
from twin.history import HistoryStore, open_history
from twin.history.files import DAY_US
from twin.history.retention import HotBudget

pytestmark = pytest.mark.anyio

DAYS = 4
NOW = NOON + (DAYS - 1) * DAY_US


async def filled(history: HistoryStore) -> None:
    for day in range(DAYS):
        await history.append([reading(n, created=NOON + day * DAY_US + n) for n in range(10)])


async def test_days_beyond_the_budget_go_whole_once_they_are_sealed(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            await filled(history)
            unsealed = await history.trim(HotBudget(days=1), now=NOW, sealed=10)
            sealed = await history.trim(HotBudget(days=1), now=NOW, sealed=40)
            rows = await history.read(HistoryQuery())

        assert (len(unsealed.files), unsealed.over_days) == (1, 1)
        assert (len(sealed.files), sealed.over_days) == (1, 0)
        assert [row.row_id for row in rows] == list(range(21, 41))


async def test_a_budget_in_bytes_keeps_the_newest_and_never_the_written_file(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            await filled(history)
            size = history.size_bytes
            one = await history.trim(HotBudget(bytes=size - 1), now=NOW, sealed=40)
            rest = await history.trim(HotBudget(bytes=0), now=NOW, sealed=40)

        assert [file.first for file in one.files] == [1]
        assert [file.first for file in rest.files] == [11, 21]
        assert rest.over_bytes == history.size_bytes > 0
        assert history.first_row == 31


async def test_unsealed_readings_go_only_when_told_so(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            await filled(history)
            kept = await history.trim(HotBudget(days=1, bytes=0), now=NOW, sealed=0)
            gone = await history.trim(HotBudget(days=1, drop_unsealed=True), now=NOW, sealed=0)

        assert list(kept.files) == []
        assert kept.over_bytes > 0
        assert len(gone.files) == 2


async def test_no_budget_keeps_everything(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            await filled(history)

            assert await history.trim(HotBudget(), now=NOW, sealed=40) == ([], 0, 0)
