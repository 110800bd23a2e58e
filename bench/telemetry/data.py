"""Rows to measure with: real recordings over and over under other Things' names, or made-up ones without any."""

import csv
import math
import os
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from twin.history import files
from twin.lake.rows import EVERYTHING, HotColumns, HotRow, Wanted, columns_of

START = 1_767_225_600_000_000
"""2026-01-01, where rows begin that have no time of their own."""
NAMES = ("machine_temperature_system_failure.csv", "ambient_temperature_system_failure.csv")

Reading = tuple[int, float]


def recordings() -> dict[str, list[Reading]]:
    """(time in µs, value) by name of the recording; made up, and said so by the name, without SKEP_RECORDINGS."""
    folder = os.environ.get("SKEP_RECORDINGS")
    if not folder:
        noise = random.Random(1)
        points = [(START + n * 300_000_000, 60 + 20 * math.sin(n / 288) + noise.gauss(0, 2)) for n in range(22_695)]
        return {"made-up": points}
    found = {}
    for name in NAMES:
        with (Path(folder) / name).open() as file:
            found[name] = [
                (
                    round(datetime.fromisoformat(line["timestamp"]).replace(tzinfo=UTC).timestamp() * 1e6),
                    float(line["value"]),
                )
                for line in csv.DictReader(file)
            ]
    return found


class Replicated:
    """`HotRows` of `count` rows: the recordings under as many Things as it takes, twenty going on at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._recordings = recordings()

    def first(self) -> int:
        return 1

    def last(self) -> int:
        return self._count

    def batches(self, first: int, last: int, size: int) -> Iterator[Sequence[HotRow]]:
        batch: list[tuple[object, ...]] = []
        for number, row in enumerate(self._rows(), 1):
            if number > last:
                break
            if number >= first:
                batch.append((number, *row))
            if len(batch) == size:
                yield cast(Sequence[HotRow], batch)
                batch = []
        if batch:
            yield cast(Sequence[HotRow], batch)

    def columns(self, first: int, last: int, size: int, wanted: Wanted = EVERYTHING) -> Iterator[HotColumns]:
        assert wanted is EVERYTHING
        return map(columns_of, self.batches(first, last, size))

    def _rows(self) -> Iterator[tuple[object, ...]]:
        block = 0
        while True:
            for readings in self._recordings.values():
                things = [f"dtw:bench:machine{block * 20 + index}" for index in range(20)]
                for at, value in readings:
                    text = repr(value).encode()
                    for index, thing in enumerate(things):
                        created = at + index * 1_000_003
                        yield thing, "property", "temperature", created, created + 40_000, text, 0, 1, None, None, None
                block += 1


def _micros(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


def hot_files(folder: Path, count: int) -> None:
    """Rows as the runtime stores them while they are hot."""
    folder.mkdir(parents=True)
    connection = files.writer(files.create(folder, files.day_of(START), 1))
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    keys: dict[object, int] = {}
    for batch in Replicated(count).batches(1, count, 50_000):
        stored = []
        for row in batch:
            key = keys.setdefault(row[1], len(keys) + 1)
            stored.append((row[0], key, row[4], row[0], row[6], row[5], 0, 1, None))
        connection.executemany("INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?)", stored)
    connection.executemany(
        "INSERT INTO keys VALUES (?, ?, 'property', 'temperature')", [(key, thing) for thing, key in keys.items()]
    )
    connection.execute("COMMIT")
    connection.close()
