"""What it takes until a gateway with a past serves: processor time from the command to its ready file, and of commands.

    python -m bench.bench_start [--things 10000] [--rows 1000000] [--rounds 5] [--beside FOLDER]

The data folder is made once. Starts after a clean stop and after a kill take turns; with `--beside` each round also
starts the source tree of another revision on the same folder, so that what else the machine does falls on both.
Modules are compiled beforehand, as an installation has them. Figures are the least of all rounds, since whatever
disturbs only adds. Target: 1.5 s; `--help` 60 ms, `things ls` 300 ms.
"""

import argparse
import asyncio
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.bench_directory import GROUP, td_of, thing_id
from bench.bench_history import readings
from gateway.app import started
from gateway.config import Config

HERE = Path(__file__).parents[1]
BATCH = 20_000
LISTENERS = [f"--{name}=127.0.0.1:0" for name in ("http", "https", "mqtt", "mqtts")]


async def filled(home: Path, things: int, rows: int) -> None:
    """A folder with this many Things and hot rows."""
    off = Config.of({"http": {"https": None}, "mqtt": {"mqtts": None}})
    async with started(home, off) as running:
        twin = running.stores.twin
        for first in range(0, things, GROUP):
            numbers = range(first, min(first + GROUP, things))
            await asyncio.gather(*(twin.directory.put(thing_id(n), td_of(n), agent=f"agent{n % 100}") for n in numbers))
        for _ in range(rows // BATCH):
            await twin.history.append(readings(BATCH, with_ids=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A source tree, and where its compiled modules are kept."""

    tree: Path
    compiled: Path

    def process(self, *arguments: str, out: IO[str] | int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Begin a `skep` command of it."""
        environment = os.environ | {"PYTHONPATH": str(self.tree), "PYTHONPYCACHEPREFIX": str(self.compiled)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "skep", *arguments]
        return subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=self.tree)


@contextmanager
def serving(revision: Revision, home: Path, end: signal.Signals) -> Iterator[tuple[float, float]]:
    """Run a runtime for as long as the block: seconds by the clock and of its processor until it was ready."""
    ready, log = home.with_name("ready.json"), home.with_name("log")
    ready.unlink(missing_ok=True)
    began = time.perf_counter()
    with log.open("w") as out:
        process = revision.process("run", "--home", str(home), "--ready-file", str(ready), *LISTENERS, out=out)
    try:
        while not ready.exists():
            if process.poll() is not None:
                sys.exit(f"the runtime ended: {log.read_text('utf-8')[-500:]}")
            time.sleep(0.005)
        yield time.perf_counter() - began, processor_s(process.pid)
    finally:
        process.send_signal(end)
        process.wait()


def processor_s(pid: int) -> float:
    """What all its threads have used, from the kernel."""
    after_name = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def command(revision: Revision, *arguments: str) -> tuple[float, float]:
    """Run one command: seconds by the clock and of its processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    if code := revision.process(*arguments).wait():
        sys.exit(f"skep {' '.join(arguments)} ended with {code}")
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--things", type=int, default=10_000)
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--beside", type=Path, help="the source tree of another revision")
    given = options.parse_args()
    spent: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as folder:
        home, small = Path(folder) / "home", Path(folder) / "small"
        revisions = {"this": Revision(tree=HERE, compiled=Path(folder) / "this")}
        if given.beside:
            revisions["beside"] = Revision(tree=given.beside.resolve(), compiled=Path(folder) / "beside")
        asyncio.run(filled(home, given.things, given.rows))
        asyncio.run(filled(small, 10, 0))
        for revision in revisions.values():
            with serving(revision, home, signal.SIGTERM):
                command(revision, "things", "ls", "--home", str(home))
        for _ in range(given.rounds):
            for name, revision in revisions.items():
                with serving(revision, home, signal.SIGKILL) as took:
                    spent["start after a clean stop", name].append(took)
                with serving(revision, home, signal.SIGTERM) as took:
                    spent["start after a kill", name].append(took)
                spent["skep --help", name].append(command(revision, "--help"))
                with serving(revision, small, signal.SIGTERM):
                    listed = command(revision, "things", "ls", "--home", str(small))
                    spent["skep things ls, of 10 Things", name].append(listed)
    for (what, name), found in spent.items():
        clock, processor = min(found), min(found, key=lambda both: both[1])
        print(f"{what:32} {name:8} clock {clock[0]:6.3f} s   processor {processor[1]:6.3f} s", flush=True)


if __name__ == "__main__":
    main()
