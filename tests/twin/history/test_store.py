"""History's contract: order, repeats, days, restart, damage."""

import shutil
import sqlite3
from pathlib import Path

import anyio
import pytest

from things.addresses import Kind
from things.errors import Invalid, NewerSchema
from things.records import HistoryQuery, Reading
from twin.history import open_history
from twin.history.files import DAY_US

pytestmark = pytest.mark.anyio

NOON = 1_770_000_000_000_000


def reading(
    value: int, *, created: int = NOON, thing: str = "dtw:a:t", name: str = "temperature", **more: object
) -> Reading:
    received = more.pop("received", created)
    return Reading(
        thing_id=thing,
        kind=Kind.PROPERTY,
        name=name,
        value=str(value).encode(),
        created=created,
        received=received,  # type: ignore[arg-type]
        sender="a",
        **more,  # type: ignore[arg-type]
    )


async def test_rows_get_rising_ids_and_come_back_in_order_of_creation(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            appended = await history.append([reading(1, created=NOON + 2), reading(2, created=NOON + 1)])
            later = await history.append([reading(3, created=NOON + 1)])
            rows = await history.read(HistoryQuery(things=["dtw:a:t"]))

        assert [one.row_id for one in [*appended, *later]] == [1, 2, 3]
        assert [(row.row_id, row.value) for row in rows] == [(2, b"2"), (3, b"3"), (1, b"1")]
        assert history.last_row == 3


async def test_a_repeated_message_is_stored_once_and_named_by_its_first_row(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            first, again = await history.append([reading(1, message_id="m"), reading(1, message_id="m")])
            third = (await history.append([reading(1, created=NOON + 5, message_id="m")]))[0]
            other = (await history.append([reading(1, name="humidity", message_id="m")]))[0]

        assert (first.duplicate, again, third) == (False, (1, True), (1, True))
        assert not other.duplicate
        assert other.row_id > first.row_id


async def test_a_repeat_is_recognised_after_a_restart_and_in_an_older_day(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with open_history(tmp_path) as history:
            await history.append([reading(1, message_id="m"), reading(2, created=NOON + 1)])
        async with open_history(tmp_path) as history:
            same_day = (await history.append([reading(1, message_id="m")]))[0]
            later = NOON + 3 * DAY_US
            await history.append([reading(9, created=later)])
            next_day = (await history.append([reading(1, message_id="m", received=later)]))[0]

            assert (same_day, next_day) == ((1, True), (1, True))
            assert len(await history.read(HistoryQuery())) == 3
            assert history.days[0].last < history.days[1].first, "ranges of row ids do not overlap"


async def test_a_row_nobody_waits_for_has_its_id_at_once_and_is_read_from_then_on(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            assert history.place(reading(0)) is None, "no id is promised before the first commit"
            await history.append([reading(1)])
            row_id = history.place(reading(2, created=NOON + 1))
            assert row_id is not None
            rows = await history.read(HistoryQuery(after_row=row_id - 1))

            assert [(row.row_id, row.value) for row in rows] == [(row_id, b"2")]
            assert history.last_row == row_id
            assert history.place(reading(3, message_id="m")) is None, "it may be a repeat"


async def test_rows_that_wait_for_nobody_keep_their_order_among_those_that_do(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            await history.append([reading(0)])
            for number in range(1, 600, 3):
                assert history.place(reading(number, created=NOON + number)) == number + 1
                assert history.place(reading(number + 1, created=NOON + number + 1)) == number + 2
                waited = history.append([reading(number + 2, created=NOON + number + 2)])
            assert (await waited)[0].row_id == 601
            rows = await history.read(HistoryQuery(after_row=0, limit=1_000))

            assert [(row.row_id, int(row.value)) for row in rows] == [(n + 1, n) for n in range(601)]


async def test_placed_rows_are_kept_by_a_clean_end_and_told_of_when_they_are_lost(tmp_path: Path) -> None:
    lost: list[tuple[int, str]] = []
    with anyio.fail_after(30):
        async with open_history(tmp_path) as history:
            await history.append([reading(0)])
            for number in range(1, 300):
                assert history.place(reading(number, created=NOON + number))
        async with open_history(tmp_path) as history:
            assert len(await history.read(HistoryQuery(limit=1_000))) == 300
            history.on_lost(lambda count, error: lost.append((count, type(error).__name__)))
            await history.append([reading(300, created=NOON + 300)])
            for created in (NOON + 301, 1 << 70, NOON + 302, 1 << 70):
                assert history.place(reading(created, created=created, received=NOON + 303))

            rows = await history.read(HistoryQuery(after_row=301))
            assert [int(row.value) for row in rows] == [NOON + 301, NOON + 302]
            assert lost == [(2, "Invalid")]


async def test_an_id_that_was_shown_is_not_used_again_after_a_crash(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    with anyio.fail_after(30):
        async with open_history(before) as history:
            await history.append([reading(1)])
            placed = history.place(reading(2, created=NOON + 1))
            assert placed is not None
            # What a process that is killed here leaves behind: the row is not written, and its id was seen.
            shutil.copytree(before, after)
        async with open_history(after) as history:
            later = (await history.append([reading(3, created=NOON + 2)]))[0]
            assert later.row_id > placed
            assert [row.value for row in await history.read(HistoryQuery())] == [b"1", b"3"]


async def test_ids_go_on_where_they_were_after_a_clean_end(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        for expected in (1, 2):
            async with open_history(tmp_path) as history:
                assert (await history.append([reading(1, created=NOON + expected)]))[0].row_id == expected


async def test_ids_are_not_used_again_when_the_newest_file_is_damaged(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with open_history(tmp_path) as history:
            await history.append([reading(n, created=NOON + n) for n in range(500)])
            await history.append([reading(1, created=NOON + DAY_US)])
            damaged = history.days[-1].path
        damaged.write_bytes(b"not a database at all" * 400)
        async with open_history(tmp_path) as history:
            appended = await history.append([reading(2, created=NOON + DAY_US)])
            rows = await history.read(HistoryQuery(limit=10_000))

            assert [path.name for path in history.damaged] == [f"{damaged.name}.damaged"]
            assert appended[0].row_id > 501
            assert len(rows) == 501


async def test_a_file_of_a_newer_skep_is_refused(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with open_history(tmp_path) as history:
            await history.append([reading(1)])
            path = history.days[-1].path
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()

        with pytest.raises(NewerSchema):
            async with open_history(tmp_path):
                pass


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_follow_one_another_without_holes_or_repeats(tmp_path: Path, descending: bool) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            for day in range(3):
                await history.append(
                    [
                        reading(
                            n, created=NOON + day * DAY_US - (n % 7), name=f"p{n % 3}", received=NOON + day * DAY_US
                        )
                        for n in range(40)
                    ]
                )
            seen: list[tuple[int, int]] = []
            after: tuple[int, int] | None = None
            while True:
                page = await history.read(HistoryQuery(names=["p0", "p1"], after=after, descending=descending, limit=7))
                if not page:
                    break
                seen += [(row.created, row.row_id) for row in page]
                after = seen[-1]

        assert len(seen) == 81
        assert seen == sorted(set(seen), reverse=descending)


async def test_rows_after_an_id_come_in_order_of_ids_over_all_days(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            for day in range(3):
                await history.append([reading(n, created=NOON + day * DAY_US) for n in range(4)])
            rows = await history.read(HistoryQuery(after_row=3, limit=6))

        assert [row.row_id for row in rows] == [4, 5, 6, 7, 8, 9]


async def test_a_page_by_row_id_ends_with_the_row_that_reaches_its_bytes(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            for day in range(2):
                await history.append([reading(n, created=NOON + day * DAY_US) for n in range(4)])
            pages = [
                [row.row_id for row in await history.read(HistoryQuery(after_row=after, limit=limit, max_bytes=most))]
                for after, limit, most in ((0, 9, 3), (2, 9, 3), (0, 2, 3), (0, 9, 1), (6, 9, 3))
            ]

        assert pages == [[1, 2, 3], [3, 4, 5], [1, 2], [1], [7, 8]]


async def test_a_dropped_day_is_gone_whole_and_its_ids_stay_used(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            for day in range(2):
                await history.append([reading(n, created=NOON + day * DAY_US) for n in range(4)])
            await history.drop(history.days[0])
            rows = await history.read(HistoryQuery())
            appended = await history.append([reading(1, created=NOON + DAY_US + 1)])

        assert [row.row_id for row in rows] == [5, 6, 7, 8]
        assert (history.first_row, appended[0].row_id) == (5, 9)


async def test_readings_that_cannot_be_stored_fail_alone(tmp_path: Path) -> None:
    async with open_history(tmp_path) as history:
        with anyio.fail_after(30):
            good, bad, other = (
                history.append([reading(1, message_id="g")]),
                history.append([reading(2), reading(3, created=2**70, received=NOON)]),
                history.append([reading(4)]),
            )
            with pytest.raises(Invalid):
                await bad
            stored = [*(await good), *(await other)]
            again = await history.append([reading(1, message_id="g")])
            rows = await history.read(HistoryQuery())

        assert [row.value for row in rows] == [b"1", b"4"]
        assert [one.row_id for one in stored] == [row.row_id for row in rows]
        assert again == [(stored[0].row_id, True)]
