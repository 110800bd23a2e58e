"""What a month of readings weighs that was sealed by the hour: `python -m bench.telemetry.bench_month --things 1000`.

As a gateway does it: every hour's rows are sealed, then the lake is kept, by a clock that goes on by an hour. Values
are random walks of two decimals, each Thing with its own, so that no two say the same; every reading is received a
little late.
At the end stand bytes a row, files, and how many of them a query for one day opens, over all days and on the last one.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from things.lake import READINGS
from twin.lake.delta_tables import DeltaTables
from twin.lake.manifest import Manifest
from twin.lake.places import place_of
from twin.lake.reader import Selection, chosen
from twin.lake.rows import EVERYTHING, HotColumns, Wanted
from twin.lake.sealing import Sealer
from twin.lake.tables import DAY_US
from twin.lake.upkeep import Upkeep

START = 1_767_225_600_000_000
"""2026-01-01"""
SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US


class Walks:
    """`HotRows` of one hour after the other; only the last hour is there."""

    def __init__(self, things: int, interval_s: int) -> None:
        self._random = random.Random(7)
        self._every = interval_s * SECOND_US
        self._series = {key: (f"dtw:site{key % 20}:meter-{key:05d}", "property", "value") for key in range(things)}
        self._at = [round(self._random.uniform(10, 90), 2) for _ in range(things)]
        self._phase = [self._random.randrange(self._every) for _ in range(things)]
        self._rows: list[tuple[int, int, int, int, bytes]] = []
        self._last = 0

    def hour(self, start: int) -> None:
        """Go on to the rows of the hour that begins at `start`."""
        times = [
            (start + phase + tick, key)
            for key, phase in enumerate(self._phase)
            for tick in range(0, HOUR_US, self._every)
        ]
        self._rows = [self._row(at, key) for at, key in sorted(times)]

    def first(self) -> int | None:
        return self._rows[0][0] if self._rows else None

    def last(self) -> int:
        return self._last

    def columns(self, first: int, last: int, size: int, wanted: Wanted = EVERYTHING) -> Iterator[HotColumns]:
        assert wanted is EVERYTHING
        rows = [row for row in self._rows if first <= row[0] <= last]
        for begin in range(0, len(rows), size):
            row_ids, keys, created, received, values = zip(*rows[begin : begin + size], strict=True)
            count = len(row_ids)
            nothing: Sequence[None] = [None] * count
            yield HotColumns(
                dict(self._series), keys, row_ids, created, received, values, [0] * count, [1] * count, nothing
            )

    def _row(self, at: int, key: int) -> tuple[int, int, int, int, bytes]:
        self._last += 1
        self._at[key] = round(self._at[key] + self._random.gauss(0, 0.3), 2)
        created = at // 1_000 * 1_000
        return self._last, key, created, created + self._random.randrange(2_000, 90_000), repr(self._at[key]).encode()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--things", type=int, nargs="+", default=[200, 1])
    parser.add_argument("--interval", type=int, nargs="+", default=[300, 60], help="seconds, for each of `--things`")
    parser.add_argument("--days", type=int, default=30)
    options = parser.parse_args(arguments)
    for things, interval in zip(options.things, options.interval, strict=True):
        with tempfile.TemporaryDirectory() as folder:
            show_month(Path(folder), things, interval, options.days)


def show_month(root: Path, things: int, interval_s: int, days: int) -> None:
    """Seal and keep so many days, and print what they weigh."""
    now = START
    manifest = Manifest(place_of(root), "bench", lambda: now)
    sealer, upkeep, tables, hot = Sealer(manifest), Upkeep(manifest), DeltaTables(manifest), Walks(things, interval_s)
    began = time.perf_counter()
    kept_s = published_s = 0.0
    opened_today = 0
    for hour in range(days * 24):
        hot.hour(START + hour * HOUR_US)
        now = START + (hour + 1) * HOUR_US
        sealer.seal(hot)
        today = Selection(start=START + hour * HOUR_US, end=now)
        opened_today = max(opened_today, len(chosen(manifest.snapshot(), today)))
        published_s += timed(lambda: tables.publish(manifest.snapshot()))
        kept_s += timed(lambda: upkeep.keep(6.0))
        published_s += timed(lambda: tables.publish(manifest.snapshot()))
        published_s += timed(tables.trim)
    took = time.perf_counter() - began
    snapshot = manifest.snapshot()
    rows = sum(part.rows for part in snapshot.parts)
    assert rows == things * days * 86_400 // interval_s
    size = sum((root / part.path).stat().st_size for part in snapshot.parts)
    starts = [START + day * DAY_US for day in range(days)]
    opened = [len(chosen(snapshot, Selection(start=at, end=at + DAY_US))) for at in starts]
    whole = sum(file.size for file in manifest.place.walk(""))
    parts = sum(part.table == READINGS for part in snapshot.parts)
    print(
        f"{things} Things every {interval_s} s, {days} days sealed hourly: {rows:,} rows in {took:,.0f} s", flush=True
    )
    print(f"  size     {size / rows:.1f} bytes a row; with replaced files and the manifest {whole / rows:.1f}")
    print(f"  files    {parts}; a day's query opens {max(opened)} at most, {opened_today} on the day that goes on")
    logs = sum("_delta_log" in file.path for file in manifest.place.walk(READINGS))
    hours = days * 24
    print(f"  upkeep   {kept_s / hours * 1_000:.0f} ms an hour, manifest {len(manifest.numbers())} commits")
    print(f"  delta    {published_s / hours * 1_000:.0f} ms an hour, {logs} files of its log")


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
