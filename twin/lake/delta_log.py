"""The log of one Delta table: numbered versions of JSON lines, each created only if absent, and checkpoints.

A writer keeps what it has read in memory and looks again when another one was first.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from things.errors import StorageDamaged
from twin.lake.delta import CHECKPOINT, PROTOCOL, Action
from twin.lake.places import Place

FOLDER = "_delta_log"
CHECKPOINT_EVERY = 50
"""Versions after which a checkpoint pays: a reader opens so many files at most."""
SHARE = 20
"""Or a fraction of the live files, where these are more: a checkpoint writes all of them."""

_VERSION = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_LAST = "_last_checkpoint"
_MS_US = 1_000


class DeltaLog:
    """Reads and extends the log of the table at `root`, a folder of the lake."""

    def __init__(self, place: Place, root: str) -> None:
        self.root = root
        self.version = -1
        self.described: Action | None = None
        self.live: dict[str, Action] = {}
        """The `add` of each live file, by its path in the log."""
        self._place = place
        self._done: dict[str, Action] = {}
        """The newest `txn` of each application."""
        self._checkpoint = -1

    def load(self) -> None:
        """Read what is new. Raises StorageDamaged where the log cannot be followed; it can be removed and is made
        again."""
        versions, checkpoints = self._listed()
        newest = max(checkpoints, default=-1)
        if newest > self.version:
            self.version, self.described, self.live, self._done = newest, None, {}, {}
            self._apply(self._read_checkpoint(newest))
        self._checkpoint = max(self._checkpoint, newest)
        for version in [one for one in versions if one > self.version]:
            if version != self.version + 1:
                raise self._damaged(f"lacks version {self.version + 1}")
            self._apply(self._read(version))
            self.version = version

    def commit(self, actions: Sequence[Action], now_ms: int) -> None:
        """Add a version, and a checkpoint if it is time. Raises Conflict if another writer was first."""
        first = [{"protocol": PROTOCOL}] if self.version < 0 else []
        info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {}, "engineInfo": "skep"}
        lines = [*first, {"commitInfo": info}, *actions]
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n"
        self._place.create(self._path(f"{self.version + 1:020d}.json"), text.encode())
        self._apply(lines)
        self.version += 1
        if self.version - self._checkpoint >= max(CHECKPOINT_EVERY, len(self.live) // SHARE):
            self._write_checkpoint()

    def trim(self, before_ms: int) -> int:
        """Remove what a checkpoint made superfluous before then; how many files. Versions older than it can no longer
        be asked for."""
        versions, checkpoints = self._listed()
        settled = [one for one in checkpoints if one in versions and self._at(one) < before_ms]
        if not settled:
            return 0
        start = max(settled)
        gone = [f"{one:020d}.json" for one in versions if one < start]
        gone += [f"{one:020d}.checkpoint.parquet" for one in checkpoints if one < start]
        for name in gone:
            self._place.remove(self._path(name))
        return len(gone)

    def _apply(self, lines: Iterable[Action]) -> None:
        for line in lines:
            if (add := line.get("add")) is not None:
                self.live[add["path"]] = add
            elif (remove := line.get("remove")) is not None:
                self.live.pop(remove["path"], None)
            elif (described := line.get("metaData")) is not None:
                self.described = described
            elif (done := line.get("txn")) is not None:
                self._done[done["appId"]] = done

    def _write_checkpoint(self) -> None:
        actions: list[Action] = [
            {"protocol": PROTOCOL},
            {"metaData": self.described},
            *({"txn": done} for done in self._done.values()),
            *({"add": {**add, "dataChange": False}} for add in self.live.values()),
        ]
        table = pa.Table.from_pylist([_as_arrow(action) for action in actions], schema=CHECKPOINT)
        name = f"{self.version:020d}.checkpoint.parquet"
        self._place.write(self._path(name), lambda file: pq.write_table(table, file))
        last = json.dumps({"version": self.version, "size": table.num_rows}).encode()
        self._place.write(self._path(_LAST), lambda file: file.write(last))
        self._checkpoint = self.version

    def _read_checkpoint(self, version: int) -> list[Action]:
        path = self._path(f"{version:020d}.checkpoint.parquet")
        try:
            table = pq.read_table(pa.BufferReader(self._place.read(path)), schema=CHECKPOINT)
            return [_from_arrow(row) for row in table.to_pylist()]
        except (OSError, pa.ArrowException) as error:
            raise self._damaged(f"has a checkpoint that cannot be read: {error}") from error

    def _read(self, version: int) -> list[Action]:
        path = self._path(f"{version:020d}.json")
        try:
            return [json.loads(line) for line in self._place.read(path).splitlines() if line]
        except (OSError, ValueError) as error:
            raise self._damaged(f"has a version {version} that cannot be read: {error}") from error

    def _at(self, version: int) -> int:
        infos = [line["commitInfo"] for line in self._read(version) if "commitInfo" in line]
        return int(infos[0].get("timestamp", 0)) if infos else 0

    def _listed(self) -> tuple[list[int], list[int]]:
        names = [file.path.rpartition("/")[2] for file in self._place.walk(f"{self.root}/{FOLDER}")]
        versions = sorted(int(found[1]) for name in names if (found := _VERSION.fullmatch(name)))
        return versions, sorted(int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name)))

    def _path(self, name: str) -> str:
        return f"{self.root}/{FOLDER}/{name}"

    def _damaged(self, detail: str) -> StorageDamaged:
        return StorageDamaged(
            f"the Delta log {self.root}/{FOLDER} {detail}; it only repeats what the manifest says: remove it, and it is"
            " made again"
        )


def _as_arrow(action: Action) -> dict[str, Any]:
    """An action of which Arrow takes the members that a checkpoint has."""
    return {name: {**body, "tags": body.get("tags")} if name == "add" else body for name, body in action.items()}


def _from_arrow(row: dict[str, Any]) -> Action:
    name, body = next((name, body) for name, body in row.items() if body is not None)
    maps = {"partitionValues", "tags", "configuration"}
    plain = {key: dict(value) if key in maps and value is not None else value for key, value in body.items()}
    if name == "metaData":
        plain["format"] = {"provider": body["format"]["provider"], "options": dict(body["format"]["options"] or {})}
    return {name: plain}
