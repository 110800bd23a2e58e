"""History against plain indexed `executemany`, in one run: `python -m bench.bench_history`.

The plain side writes ready tuples of the same columns with one index, the same WAL and full sync, and commits as often:
what it has not is interning, message ids, quality, futures and days. Rounds are interleaved and medians compared.
"""

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from things.addresses import Kind
from things.records import HistoryQuery, Reading
from twin.history import HistoryStore, open_history

TARGET = 0.5
NOON = 1_770_000_000_000_000
SERIES = 500


def readings(count: int, *, with_ids: bool) -> list[Reading]:
    return [
        Reading(
            thing_id=f"dtw:agent:thing-{number % SERIES}",
            kind=Kind.PROPERTY,
            name="temperature",
            value=b"%d.5" % (number % 40),
            created=NOON + number,
            received=NOON + number,
            sender="agent",
            message_id=f"m{number}" if with_ids else None,
            td_version=1,
        )
        for number in range(count)
    ]


def plain(folder: Path, count: int, group: int) -> float:
    rows = [(n, n % SERIES, NOON + n, b"%d.5" % (n % 40), NOON + n, 0, 1, None) for n in range(count)]
    connection = sqlite3.connect(folder / "plain.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, key, created, value, received, quality, td, source)")
    connection.execute("CREATE INDEX by_series ON rows (key, created)")
    started = time.perf_counter()
    for first in range(0, count, group):
        connection.execute("BEGIN")
        connection.executemany("INSERT INTO rows VALUES (?,?,?,?,?,?,?,?)", rows[first : first + group])
        connection.execute("COMMIT")
    took = time.perf_counter() - started
    connection.close()
    return count / took


async def batched(history: HistoryStore, rows: Sequence[Reading], group: int) -> None:
    """One batch after the other, each awaited, as a store-and-forward agent sends them."""
    for first in range(0, len(rows), group):
        await history.append(rows[first : first + group])


async def waiting(history: HistoryStore, rows: Sequence[Reading], group: int) -> None:
    """Many publishers that each wait for their own row."""

    async def publisher(mine: Sequence[Reading]) -> None:
        for one in mine:
            await history.append([one])

    async with asyncio.TaskGroup() as tasks:
        for number in range(group):
            tasks.create_task(publisher(rows[number::group]))


Store = Callable[[HistoryStore, Sequence[Reading], int], Coroutine[Any, Any, None]]


async def ours(folder: Path, rows: Sequence[Reading], group: int, store: Store) -> float:
    async with open_history(folder / "history") as history:
        started = time.perf_counter()
        await store(history, rows, group)
        took = time.perf_counter() - started
        stored = sum([len(batch) async for batch in _all(history)])
    assert stored == len(rows), f"{stored} of {len(rows)} rows were stored"
    return len(rows) / took


async def _all(history: HistoryStore) -> Any:
    after = 0
    while batch := await history.read(HistoryQuery(after_row=after, limit=50_000)):
        yield batch
        after = batch[-1].row_id


SCENARIOS: dict[str, tuple[int, int, bool, Store]] = {
    "batches of 1,000": (100_000, 1_000, False, batched),
    "batches of 1,000 with message ids": (100_000, 1_000, True, batched),
    "batches of 100": (30_000, 100, False, batched),
    "200 publishers, each waiting": (20_000, 200, True, waiting),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {name: measured(*scenario, rounds=options.rounds) for name, scenario in SCENARIOS.items()}
    if options.json:
        print(json.dumps(figures))
        return
    for name, (rate, reference) in figures.items():
        # Waiting for each row is what the plain side never does: shown, not aimed at.
        target = "" if "waiting" in name else f" (≥ {TARGET})"
        print(f"{name:36} {rate:10,.0f} rows/s  plain {reference:10,.0f}  ratio {rate / reference:.2f}{target}")


def measured(count: int, group: int, with_ids: bool, store: Store, *, rounds: int) -> tuple[float, float]:
    rows = readings(count, with_ids=with_ids)
    rates: list[float] = []
    references: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            references.append(plain(Path(folder), count, group))
            rates.append(asyncio.run(ours(Path(folder), rows, group, store)))
    return median(rates), median(references)


if __name__ == "__main__":
    main()
