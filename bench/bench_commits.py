"""What a reading costs the disk at low and middle rates, with and without a moment in which readings gather.

    python -m bench.bench_commits [--seconds 3]

Readings come at random, as from many devices that do not wait for each other; each is a call of its own, told when its
commit is synced. The last row is one device that sends each reading after the acknowledgement of the one before.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import psutil

from things.addresses import Kind
from things.records import Reading
from twin.history import HistoryStore, open_history
from twin.history.writing import DayWriter, Job

WAIT_S = 0.010
RATES = (10, 100, 1_000, 5_000)


def reading(number: int) -> Reading:
    now = time.time_ns() // 1_000
    return Reading(
        thing_id=f"dtw:bench:thing-{number % 10}",
        kind=Kind.PROPERTY,
        name="value",
        value=b"%d" % number,
        created=now + number % 1_000,
        received=now,
        sender="bench",
    )


async def at_random(history: HistoryStore, rate: float, seconds: float) -> list[float]:
    """Seconds from each append to its acknowledgement."""
    rng, spent, sent = random.Random(1), list[float](), 0

    def told(at: float, _: object) -> None:
        spent.append(time.perf_counter() - at)

    began = due = time.perf_counter()
    futures = []
    while due < began + seconds:
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        future = history.append((reading(sent),))
        future.add_done_callback(partial(told, time.perf_counter()))
        futures.append(future)
        sent += 1
        due += rng.expovariate(rate)
    await asyncio.gather(*futures)
    return spent


async def one_by_one(history: HistoryStore, seconds: float) -> list[float]:
    spent, until = list[float](), time.perf_counter() + seconds
    while (at := time.perf_counter()) < until:
        await history.append((reading(len(spent)),))
        spent.append(time.perf_counter() - at)
    return spent


async def measured(rate: float | None, wait_s: float, seconds: float) -> str:
    commits, write = 0, DayWriter.write

    def counted(writer: DayWriter, jobs: Sequence[Job]) -> Sequence[object]:
        nonlocal commits
        commits += 1
        return write(writer, jobs)

    process = psutil.Process()
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(DayWriter, "write", counted):
        async with open_history(Path(folder), max_wait_s=wait_s) as history:
            await history.append((reading(0),))
            commits, written, processor = 0, process.io_counters().write_bytes, time.process_time()
            spent = sorted(await (one_by_one(history, seconds) if rate is None else at_random(history, rate, seconds)))
            written, processor = process.io_counters().write_bytes - written, time.process_time() - processor
    p99 = spent[int(len(spent) * 0.99)]
    return (
        f"{commits / seconds:8.0f}/s {written / len(spent):9.0f} {statistics.median(spent) * 1e3:8.1f} {p99 * 1e3:8.1f}"
        f" {processor / seconds:8.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    seconds = parser.parse_args().seconds
    print(
        f"{'readings/s':>12} {'wait':>8} {'commits':>10} {'bytes each':>9} {'p50 ms':>8} {'p99 ms':>8} {'processor':>8}"
    )
    for rate in (*RATES, None):
        for wait_s in (0.0, WAIT_S):
            name = "one by one" if rate is None else f"{rate:,}"
            print(f"{name:>12} {wait_s * 1e3:6.0f} ms {asyncio.run(measured(rate, wait_s, seconds))}", flush=True)


if __name__ == "__main__":
    main()
