"""What sealing does to live writes, and history to memory: `python -m bench.telemetry.bench_pauses`.

Writes: a process like the runtime's commits groups to the real store without a pause while the lake process seals a
backlog of the same files, a hot file is dropped, and half of what was sealed is rolled up and purged; the same writes
before that are the comparison. Memory: a runtime is
started over little and over much history, and writes, seals and reads a page in each.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import httpx

from runtime.clocks import wall_clock
from things.addresses import Kind
from things.records import Reading
from twin.history import HistoryStore, files, open_history
from twin.lake.client import LakeClient

TARGET_MS = 100.0
SERIES = 40
GROUP = 50
DAY_US = 86_400_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=600_000, help="rows that wait to be sealed")
    parser.add_argument("--pace", type=float, default=0.005, help="seconds between two groups of live writes")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[20_000, 1_000_000], help="rows of history, by runtime"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(show_pauses, Path(folder), options.rows, options.pace)
    show_memory(options.lengths)


async def show_pauses(home: Path, rows: int, pace_s: float) -> None:
    """How long a commit takes without sealing, while it goes on, and while readings go."""
    backlog(home / "history", rows)
    lake = LakeClient(history=home / "history", lake=home / "lake", gateway="bench", clock=wall_clock)
    async with open_history(home / "history") as history, anyio.create_task_group() as tasks:
        await tasks.start(lake.serve)
        await lake.status()
        alone = await while_writing(history, pace_s, lambda: asyncio.sleep(3))
        began = time.perf_counter()
        sealing = await while_writing(history, pace_s, lake.seal)
        took = time.perf_counter() - began
        oldest = history.days[0]
        dropping = await while_writing(history, pace_s, lambda: history.drop(oldest))
        sealed = (await lake.status())["sealed"]
        purging = await while_writing(history, pace_s, lambda: lake.retain([{"days": 5}]))
        left = (await lake.status())["rows"]
        tasks.cancel_scope.cancel()
    assert sealed >= rows > left
    print(f"live writes, groups of {GROUP} rows, while {rows:,} are sealed in {took:.1f} s; wanted: {TARGET_MS:.0f} ms")
    for name, spent in (("alone", alone), ("sealing", sealing), ("dropping a file", dropping), ("purging", purging)):
        over = sum(one > TARGET_MS for one in spent)
        print(
            f"  {name:16}median {median(spent):6.1f} ms, 99 % below {percentile(spent, 0.99):6.1f} ms,"
            f" longest {max(spent):6.1f} ms, {over} of {len(spent)} above"
        )


async def while_writing(history: HistoryStore, pace_s: float, work: Callable[[], Awaitable[Any]]) -> list[float]:
    """Milliseconds of each commit while the work goes on, and a little longer."""
    spent: list[float] = []
    finished = asyncio.Event()

    async def write() -> None:
        while not finished.is_set() or len(spent) < 20:
            at = time.time_ns() // 1_000
            began = time.perf_counter()
            await history.append([reading(index, at) for index in range(GROUP)])
            spent.append((time.perf_counter() - began) * 1_000)
            await asyncio.sleep(pace_s)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        await work()
        finished.set()
    return spent


def reading(index: int, at: int) -> Reading:
    return Reading(
        thing_id=f"dtw:bench:machine{index % SERIES}",
        kind=Kind.PROPERTY,
        name="temperature",
        value=b"%d.25" % (at % 97),
        created=at + index,
        received=at + index,
        sender="bench",
        message_id=None,
        td_version=1,
    )


def backlog(folder: Path, count: int) -> None:
    """Rows of a few series, spread over ten days of hot files."""
    folder.mkdir(parents=True)
    now = time.time_ns() // 1_000
    each = -(-count // 10)
    for day in range(10):
        first = day * each + 1
        last = min(count, first + each - 1)
        begin = now - (10 - day) * DAY_US
        file = files.create(folder, files.day_of(begin), first)
        with closing(files.writer(file)) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO keys VALUES (?, ?, 'property', 'temperature')",
                [(key, f"dtw:bench:machine{key}") for key in range(SERIES)],
            )
            connection.executemany(
                "INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?)",
                (
                    (n, n % SERIES, begin + n * 1_000, n, b"%d.5" % (n % 89), begin + n * 1_000, 0, 1, None)
                    for n in range(first, last + 1)
                ),
            )
            connection.execute("COMMIT")


def show_memory(lengths: list[int]) -> None:
    """Resident memory of a runtime by the length of its history."""
    found = {length: settled_memory(length) for length in lengths}
    for length, mebibytes in found.items():
        print(f"runtime over {length:>10,} rows of history: {mebibytes:.0f} MiB")
    least, most = min(found.values()), max(found.values())
    print(f"  {max(lengths) / min(lengths):.0f} × the history, {most / least:.2f} × the memory")


def settled_memory(rows: int) -> float:
    """MiB of a runtime that serves this much history, once it has sealed all of it and answered some pages."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir(mode=0o700)
        backlog(home / "history", rows)
        ready = Path(folder) / "ready.json"
        listeners = ["--http=127.0.0.1:0", "--https=off", "--mqtt=127.0.0.1:0", "--mqtts=off"]
        command = [sys.executable, "-m", "skep", "run", "--home", str(home), "--ready-file", str(ready), *listeners]
        with (Path(folder) / "log").open("w") as said, subprocess.Popen(command, stdout=said, stderr=said) as running:
            try:
                until = time.monotonic() + 60
                while not ready.exists():
                    if running.poll() is not None or time.monotonic() > until:
                        raise RuntimeError((Path(folder) / "log").read_text())
                    time.sleep(0.05)
                run_pages(home)
                return resident(running.pid)
            finally:
                running.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    running.wait(15)


def run_pages(home: Path) -> None:
    """Seal, then read pages of sealed and hot rows as an admin."""
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(home / "control.sock")), base_url="http://localhost", timeout=300
    ) as client:
        client.post("/things/dtw:history:lake/actions/seal", headers={"prefer": "wait=60"}).raise_for_status()
        for machine in range(10):
            page = client.get("/history", params={"thing": f"dtw:bench:machine{machine}", "limit": "1000"})
            page.raise_for_status()


def resident(pid: int) -> float:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1_048_576


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    main()
