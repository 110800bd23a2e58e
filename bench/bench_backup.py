"""What a backup costs those who commit meanwhile, and how fast it is: `python -m bench.bench_backup`.

A runtime takes readings at a steady rate; each waits for its synced commit. Phases with and without a backup beside it,
taken by `skep backup create` in a process of its own, are interleaved. Target: less than 20 ms more at p99.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bench_history import readings
from gateway.app import started
from gateway.config import Config
from twin.history import HistoryStore

TARGET_MS = 20.0
GROUP = 10
"""Readings of one publisher in one batch."""


async def committing(history: HistoryStore, rate: int, until: asyncio.Event) -> list[float]:
    """Append at a rate until told; ms of each commit."""
    took: list[float] = []
    begun, count = time.perf_counter(), 0
    pending: set[asyncio.Task[None]] = set()

    async def one() -> None:
        start = time.perf_counter()
        await history.append(readings(GROUP, with_ids=False))
        took.append((time.perf_counter() - start) * 1000)

    while not until.is_set():
        task = asyncio.create_task(one())
        pending.add(task)
        task.add_done_callback(pending.discard)
        count += GROUP
        await asyncio.sleep(max(0.0, begun + count / rate - time.perf_counter()))
    await asyncio.gather(*pending)
    return took


async def backed_up(home: Path, to: Path, *options: str) -> tuple[float, int]:
    """Take one backup: seconds, bytes."""
    command = (sys.executable, "-m", "skep", "backup", "create", str(to), "--home", str(home), "--json", *options)
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    return time.perf_counter() - begun, int(json.loads(said)["bytes"])


def at(figures: Sequence[float], share: float) -> float:
    return sorted(figures)[min(len(figures) - 1, int(len(figures) * share))]


async def measured(rate: int, rows: int, rounds: int, options: Sequence[str]) -> dict[str, Any]:
    """The whole run."""
    with tempfile.TemporaryDirectory() as folder:
        home, to = Path(folder, "home"), Path(folder, "to")
        free = "127.0.0.1:0"
        config = Config.of({"http": {"http": free, "https": None}, "mqtt": {"mqtt": free, "mqtts": None}})
        async with started(home, config) as running:
            history = running.stores.twin.history
            for _ in range(rows // 20_000):
                await history.append(readings(20_000, with_ids=False))
            alone: list[float] = []
            beside: list[float] = []
            speeds: list[float] = []
            for number in range(rounds):
                until = asyncio.Event()
                load = asyncio.create_task(committing(history, rate, until))
                await asyncio.sleep(8)
                until.set()
                alone += await load
                until = asyncio.Event()
                load = asyncio.create_task(committing(history, rate, until))
                suffix = ".tar" if "--encrypt" in options else ""
                took, size = await backed_up(home, to.with_name(f"to-{number}{suffix}"), *options)
                until.set()
                beside += await load
                speeds.append(size / took / 1e6)
    return {
        "rate": rate,
        "rows": rows,
        "commit_ms_alone": {"p50": round(at(alone, 0.5), 1), "p99": round(at(alone, 0.99), 1)},
        "commit_ms_beside_a_backup": {"p50": round(at(beside, 0.5), 1), "p99": round(at(beside, 0.99), 1)},
        "mb_per_second": [round(speed) for speed in speeds],
        "slower_ms_p99": round(at(beside, 0.99) - at(alone, 0.99), 1),
        "target_ms": TARGET_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=5_000, help="readings a second")
    parser.add_argument("--rows", type=int, default=2_000_000, help="in the hot history before it begins")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("options", nargs="*", help="for `skep backup create`")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measured(given.rate, given.rows, given.rounds, given.options))))


if __name__ == "__main__":
    main()
