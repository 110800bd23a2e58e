"""Hot and sealed readings as one series: nothing missing, nothing twice, cursors that hold while rows move."""

import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from runtime.clocks import wall_clock
from things.addresses import Kind
from things.errors import SkepError, StorageDamaged
from things.records import HistoryQuery, Reading, Row
from twin.history import HistoryStore, open_history
from twin.history.retention import HotBudget
from twin.lake.client import LakeClient
from twin.readings import Readings

pytestmark = pytest.mark.anyio

MONDAY = 1_767_571_200_000_000
"""2026-01-05T00:00:00Z"""
SECOND = 1_000_000
DAY = 86_400 * SECOND
LAMP, PUMP = "dtw:a:lamp", "dtw:a:pump"


@dataclass
class House:
    """One gateway's readings, the lake process behind them, and everything that was ever stored."""

    hot: HistoryStore
    lake: LakeClient
    readings: Readings
    stored: list[Row]

    async def store(self, *given: Reading) -> None:
        for one, appended in zip(given, await self.hot.append(given), strict=True):
            self.stored.append(
                Row(
                    appended.row_id,
                    one.thing_id,
                    one.kind.value,
                    one.name,
                    one.created,
                    one.received,
                    one.value,
                    one.quality,
                    one.td_version,
                    one.source_time,
                )
            )

    async def seal_and_drop(self, *, keep_days: float = 0, now: int = MONDAY + 10 * DAY) -> None:
        """Seal everything, and let hot files go as housekeeping does."""
        sealed = await self.lake.seal()
        await self.hot.trim(HotBudget(days=keep_days), now=now, sealed=sealed["last"])

    def wanted(self, query: HistoryQuery) -> list[Row]:
        """The answer by plain Python."""
        rows = [
            row
            for row in self.stored
            if (not query.things or row.thing_id in query.things)
            and (query.kind is None or row.kind == query.kind)
            and (not query.names or row.name in query.names)
            and (query.start is None or row.created >= query.start)
            and (query.end is None or row.created < query.end)
        ]
        if query.after_row is not None:
            return sorted((row for row in rows if row.row_id > query.after_row), key=lambda row: row.row_id)
        return sorted(rows, key=lambda row: (row.created, row.row_id), reverse=query.descending)

    async def pages(self, query: HistoryQuery, *, turn: int = -1) -> list[Row]:
        """All pages one after the other; after page number `turn` everything is sealed and old files go."""
        found: list[Row] = []
        number = 0
        while True:
            page = await self.readings.read(query)
            found.extend(page)
            if len(page) < query.limit:
                return found
            if number == turn:
                await self.seal_and_drop()
            number += 1
            last = page[-1]
            if query.after_row is not None:
                query = replace(query, after_row=last.row_id)
            else:
                query = replace(query, after=(last.created, last.row_id))


def reading(created: int, received: int, value: bytes = b"1", thing: str = LAMP, name: str = "level") -> Reading:
    return Reading(
        thing_id=thing,
        kind=Kind.PROPERTY,
        name=name,
        value=value,
        created=created,
        received=received,
        sender="a",
        td_version=1,
    )


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[House]:
    async with open_history(tmp_path / "history") as hot:
        lake = LakeClient(history=tmp_path / "history", lake=tmp_path / "lake", gateway="gw", clock=wall_clock)
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                await tasks.start(lake.serve)
                yield House(hot=hot, lake=lake, readings=Readings(hot, lake), stored=[])
                tasks.cancel_scope.cancel()


async def week(house: House, per_day: int = 40) -> None:
    """Five days with late rows, repeated times and values of every type."""
    chance = random.Random(7)
    values = [b"1", b"2.5", b"true", b'"on"', b'{"x":[1,null]}', b"null", b"123456789012345678901234567890"]
    for day in range(5):
        batch = []
        for number in range(per_day):
            received = MONDAY + day * DAY + number * 600 * SECOND
            created = received - chance.choice([0, 0, 0, 5 * SECOND, 2 * DAY, 9 * DAY])
            thing, name = chance.choice([LAMP, PUMP]), chance.choice(["level", "mode"])
            batch.append(reading(created - created % (3_600 * SECOND), received, chance.choice(values), thing, name))
        await house.store(*batch)


QUERIES: Sequence[HistoryQuery] = (
    HistoryQuery(limit=17),
    HistoryQuery(limit=17, descending=True),
    HistoryQuery(limit=17, after_row=0),
    HistoryQuery(limit=13, things=[LAMP], names=["level"]),
    HistoryQuery(limit=13, things=[LAMP], descending=True, start=MONDAY - 8 * DAY, end=MONDAY + 3 * DAY),
    HistoryQuery(limit=11, kind=Kind.PROPERTY, start=MONDAY + 3 * DAY),
    HistoryQuery(limit=11, things=[PUMP], after_row=30, end=MONDAY + 2 * DAY),
)


async def test_every_order_and_filter_gives_the_same_rows_wherever_they_lie(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await week(house)
        for query in QUERIES:
            assert await house.pages(query) == house.wanted(query)
        assert house.lake.pid is None  # nothing is gone, so nobody was asked
        await house.lake.seal(up_to=120)
        await house.seal_and_drop(keep_days=6.5, now=MONDAY + 9 * DAY)  # two days go
        assert house.hot.first_row == 81
        for query in QUERIES:
            assert await house.pages(query) == house.wanted(query)
        await week(house)
        for query in QUERIES:
            assert await house.pages(query) == house.wanted(query)


@pytest.mark.parametrize("turn", [0, 2, 6])
async def test_a_cursor_holds_while_rows_are_sealed_and_files_go(tmp_path: Path, turn: int) -> None:
    for query in QUERIES[:3]:
        async with opened(tmp_path / f"{turn}{query.descending}{query.after_row}") as house:
            await week(house)
            before = house.hot.first_row

            assert await house.pages(query, turn=turn) == house.wanted(query)

            assert house.hot.first_row > before


async def test_the_lake_is_left_alone_where_the_query_cannot_reach_what_is_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        for day in range(4):
            await house.store(*(reading(MONDAY + day * DAY + n, MONDAY + day * DAY + n) for n in range(10)))
        await house.seal_and_drop()
        assert house.hot.first_row == 31
    hot_only = (
        HistoryQuery(start=MONDAY + 3 * DAY),
        HistoryQuery(after_row=30),
        HistoryQuery(descending=True, limit=10),
        HistoryQuery(after=(MONDAY + 3 * DAY, 31)),
    )
    async with opened(tmp_path) as house:  # what is gone is known after a restart too
        for query in hot_only:
            assert [row.row_id for row in await house.readings.read(query)]
        assert house.lake.pid is None
        assert len(await house.readings.read(HistoryQuery(descending=True, limit=11))) == 11
        assert house.lake.pid is not None


async def test_where_the_note_of_what_went_is_missing_the_lake_is_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await week(house)
        await house.seal_and_drop()
        stored = house.stored
    (tmp_path / "history" / "dropped").unlink()
    async with opened(tmp_path) as house:
        house.stored = stored

        for query in QUERIES:
            assert await house.pages(query) == house.wanted(query)


async def test_rows_of_a_damaged_hot_file_come_from_the_lake(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await week(house)
        await house.lake.seal()
        stored, newest = house.stored, house.hot.days[-1].path
    newest.write_bytes(b"no database at all")
    async with opened(tmp_path) as house:
        house.stored = stored

        assert len(house.hot.damaged) == 1
        for query in QUERIES:
            assert await house.pages(query) == house.wanted(query)


async def test_the_newest_row_of_each_series_is_found_in_both_places(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await week(house)
        for _ in range(2):
            for end in (None, MONDAY + 4 * DAY, MONDAY + DAY, MONDAY - 20 * DAY):
                query = HistoryQuery(things=[LAMP, PUMP], end=end)
                wanted = {(row.thing_id, row.name): row for row in house.wanted(query)}
                found = {(row.thing_id, row.name): row for row in await house.readings.latest(query)}
                assert found == wanted
            await house.seal_and_drop()


async def test_a_page_survives_the_kill_of_the_lake_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await week(house)
        await house.seal_and_drop()
        query = HistoryQuery(limit=10)
        first = await house.readings.read(query)
        pages: list[Sequence[Row]] = []

        async def rest() -> None:
            pages.append(await house.pages(replace(query, after=(first[-1].created, first[-1].row_id))))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rest)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            assert house.lake.pid is not None
            os.kill(house.lake.pid, signal.SIGKILL)

        assert [*first, *pages[0]] == house.wanted(query)


async def test_a_lake_that_cannot_be_read_is_an_error_and_never_a_short_page(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await week(house)
        await house.seal_and_drop()
        # The oldest: a first page need not open the others.
        gone = min((tmp_path / "lake" / "readings").rglob("*.parquet"))
        gone.rename(tmp_path / "elsewhere")

        with pytest.raises(StorageDamaged, match=gone.name):
            await house.readings.read(HistoryQuery())
        with pytest.raises(SkepError):
            await house.readings.latest(HistoryQuery())
        assert await house.readings.read(HistoryQuery(after_row=house.hot.first_row - 1))

        (tmp_path / "elsewhere").rename(gone)
        assert await house.pages(HistoryQuery()) == house.wanted(HistoryQuery())


async def test_windows_sum_hot_and_sealed_rows_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as house:
        await house.store(*(reading(MONDAY + n * DAY // 4, MONDAY + n * DAY // 4, str(n).encode()) for n in range(16)))
        await house.store(reading(MONDAY + 1, MONDAY + 4 * DAY, b'"x"'))
        query = HistoryQuery(things=[LAMP], limit=100)
        before = await house.readings.windows(query, DAY)
        await house.seal_and_drop()
        await house.store(reading(MONDAY + 5 * DAY, MONDAY + 5 * DAY, b"9"))
        after = await house.readings.windows(query, DAY)

    assert [dict(one) for one in after[:-1]] == [dict(one) for one in before]
    assert [one["count"] for one in after] == [5, 4, 4, 4, 1]
    first = after[0]
    assert (first["begin"], first["avg"], first["min"], first["max"], first["sum"]) == (MONDAY, 1.5, 0.0, 3.0, 6.0)
    assert (first["first"], first["last"], after[1]["first"]) == ("0", "3", "4")
