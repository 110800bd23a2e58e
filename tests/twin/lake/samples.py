"""Hot rows made by hand, and the lakes they are sealed into."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from things.lake import READINGS, Snapshot
from twin.history import files
from twin.lake.manifest import Manifest
from twin.lake.places import place_of
from twin.lake.rows import EVERYTHING, HotColumns, HotRow, Wanted, columns_of
from twin.lake.sealing import Sealer

NOON = 1_767_268_800_000_000
"""2026-01-01T12:00:00Z"""
SECOND = 1_000_000
DAY = 86_400 * SECOND
LAMP = "dtw:agent1:lamp"


class Rows:
    """`HotRows` in memory."""

    def __init__(self, rows: Sequence[HotRow]) -> None:
        self.rows = list(rows)

    def last(self) -> int:
        return max((row.row_id for row in self.rows), default=0)

    def first(self) -> int | None:
        return min((row.row_id for row in self.rows), default=None)

    def columns(self, first: int, last: int, size: int, wanted: Wanted = EVERYTHING) -> Iterator[HotColumns]:
        start, end = wanted.start or -(2**63), wanted.end or 2**63
        chosen = [
            row
            for row in self.rows
            if first <= row.row_id <= last
            and start <= row.created < end
            and wanted.takes((row.thing_id, row.kind, row.name))
        ]
        for number in range(0, len(chosen), size):
            yield columns_of(chosen[number : number + size])


def hot_row(row_id: int, value: object, **members: Any) -> HotRow:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    created = members.pop("created", NOON + row_id * SECOND)
    given = {
        "row_id": row_id,
        "thing_id": LAMP,
        "kind": "property",
        "name": "temperature",
        "created": created,
        "received": created + 5,
        "value": text,
        "quality": 0,
        "td_version": 1,
    }
    return HotRow(**{**given, **members})


class Lake:
    """A lake of one gateway with a clock that tests set."""

    def __init__(self, root: Path, gateway: str = "gw") -> None:
        self.root = root
        self.now = NOON
        self.manifest = Manifest(place_of(root), gateway, lambda: self.now)
        self.sealer = Sealer(self.manifest)

    def snapshot(self) -> Snapshot:
        return self.manifest.snapshot()

    def table(self, name: str = READINGS) -> pa.Table:
        paths = [part.path for part in self.snapshot().parts if part.table == name]
        return pa.concat_tables([pq.read_table(self.root / path, partitioning=None) for path in paths])

    def values(self) -> list[tuple[int, float | None]]:
        table = self.table().sort_by("row_id")
        return list(zip(table["row_id"].to_pylist(), table["value_double"].to_pylist(), strict=True))

    def files(self, folder: str = "") -> list[str]:
        return [file.path for file in self.manifest.place.walk(folder)]


def history_of(folder: Path, rows: Sequence[HotRow]) -> Path:
    """Hot history files as the runtime writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    connection = files.writer(files.create(folder, files.day_of(rows[0].received), rows[0].row_id))
    keys: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = keys.setdefault((row.thing_id, row.kind, row.name), len(keys) + 1)
        connection.execute(
            "INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?)",
            (
                row.row_id,
                key,
                row.created,
                row.row_id,
                row.value,
                row.received,
                row.quality,
                row.td_version,
                row.source_time,
            ),
        )
    connection.executemany("INSERT INTO keys VALUES (?,?,?,?)", [(key, *series) for series, key in keys.items()])
    connection.close()
    return folder
