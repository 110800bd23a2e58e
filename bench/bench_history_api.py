"""Pages of history against plain SQLite selects of the same rows: `python -m bench.bench_history_api`.

The plain side has all rows in one file with an index by series and time. Pages are those of one series by time and of
everything by row id, as long as all rows are hot, and again when most are in the lake only. Answers are compared, runs
are interleaved and medians told; the first page from the lake also waits for its process to start, and is told apart.
"""

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import anyio

from runtime.clocks import wall_clock
from things.addresses import Kind
from things.records import HistoryQuery, Reading, Row
from twin.history import HistoryStore, open_history
from twin.history.retention import HotBudget
from twin.lake.client import LakeClient
from twin.readings import Readings

NOON = 1_770_000_000_000_000
DAY = 86_400_000_000
SERIES = 100
PAGE = 1_000
TARGET = 0.3
"""For hot pages, some of which miss it: the plain side keeps its connection and stays in the loop's thread; a page
here opens the day files it needs, reads them in another thread, and makes rows of them."""

Page = tuple[HistoryQuery, str, tuple[object, ...]]


async def fill(history: HistoryStore, plain: sqlite3.Connection, days: int, per_day: int) -> None:
    plain.execute("CREATE TABLE rows (row_id INTEGER PRIMARY KEY, thing, created, value, received)")
    plain.execute("CREATE INDEX by_series ON rows (thing, created, row_id)")
    number = 0
    for day in range(days):
        batch = []
        for one in range(per_day):
            at = NOON + day * DAY + one * 1_000_000
            batch.append(
                Reading(
                    thing_id=f"dtw:agent:thing-{one % SERIES}",
                    kind=Kind.PROPERTY,
                    name="temperature",
                    value=b"%d.5" % (number % 40),
                    created=at,
                    received=at,
                    sender="agent",
                    td_version=1,
                )
            )
            number += 1
        rows = await history.append(batch)
        plain.executemany(
            "INSERT INTO rows VALUES (?,?,?,?,?)",
            [
                (row.row_id, one.thing_id, one.created, one.value, one.received)
                for row, one in zip(rows, batch, strict=True)
            ],
        )
    plain.commit()


def pages(days: int, per_day: int) -> dict[str, Page]:
    """A page from the middle of what there is, in each order."""
    thing, middle = "dtw:agent:thing-7", NOON + days // 2 * DAY
    row = days * per_day // 2
    columns = "SELECT row_id, thing, created, value, received FROM rows"
    return {
        "one series, by time": (
            HistoryQuery(things=[thing], start=middle, limit=PAGE),
            f"{columns} WHERE thing = ? AND created >= ? ORDER BY created, row_id LIMIT ?",
            (thing, middle, PAGE),
        ),
        "one series, newest first": (
            HistoryQuery(things=[thing], end=middle, descending=True, limit=PAGE),
            f"{columns} WHERE thing = ? AND created < ? ORDER BY created DESC, row_id DESC LIMIT ?",
            (thing, middle, PAGE),
        ),
        "everything, by row id": (
            HistoryQuery(after_row=row, limit=PAGE),
            f"{columns} WHERE row_id > ? ORDER BY row_id LIMIT ?",
            (row, PAGE),
        ),
    }


def comparable(rows: Sequence[Row]) -> list[tuple[object, ...]]:
    return [(row.row_id, row.thing_id, row.created, row.value, row.received) for row in rows]


async def timed(work: Callable[[], Awaitable[Sequence[Row]]]) -> tuple[float, Sequence[Row]]:
    began = time.perf_counter()
    rows = await work()
    return time.perf_counter() - began, rows


async def measure(readings: Readings, plain: sqlite3.Connection, page: Page, rounds: int) -> tuple[float, float]:
    """Milliseconds of a page, ours and plain."""
    query, statement, parameters = page
    ours, theirs = [], []
    for _ in range(rounds):
        took, rows = await timed(lambda: readings.read(replace(query)))
        ours.append(took)
        began = time.perf_counter()
        wanted = plain.execute(statement, parameters).fetchall()
        theirs.append(time.perf_counter() - began)
        assert comparable(rows) == wanted, "the answers differ"
    return median(ours) * 1_000, median(theirs) * 1_000


async def run(folder: Path, days: int, per_day: int, rounds: int) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    lake = LakeClient(history=folder / "history", lake=folder / "lake", gateway="bench", clock=wall_clock)
    with closing(sqlite3.connect(folder / "plain.db")) as plain:
        async with open_history(folder / "history") as history, anyio.create_task_group() as tasks:
            await tasks.start(lake.serve)
            readings = Readings(history, lake)
            await fill(history, plain, days, per_day)
            for name, page in pages(days, per_day).items():
                ours, theirs = await measure(readings, plain, page, rounds)
                figures[f"hot: {name}"] = {"ms": ours, "plain_ms": theirs, "ratio": theirs / ours}
            sealed = await lake.seal()
            await history.trim(HotBudget(days=0), now=NOON + days * DAY, sealed=sealed["last"])
            for name, page in pages(days, per_day).items():
                ours, theirs = await measure(readings, plain, page, max(rounds // 4, 3))
                figures[f"lake: {name}"] = {"ms": ours, "plain_ms": theirs, "ratio": theirs / ours}
            tasks.cancel_scope.cancel()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--rows-per-day", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(run(Path(folder), options.days, options.rows_per_day, options.rounds))
    if options.json:
        print(json.dumps(figures))
        return
    for name, one in figures.items():
        target = f" (≥ {TARGET})" if name.startswith("hot") else ""
        print(f"{name:32} {one['ms']:8.2f} ms  plain {one['plain_ms']:8.2f} ms  ratio {one['ratio']:.2f}{target}")


if __name__ == "__main__":
    main()
