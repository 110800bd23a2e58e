"""The tables of a lake as Delta tables, for engines that know nothing of skep.

The manifest is what counts; the logs follow it. Each publication compares the live files of this gateway with those
that a log has, and adds one version with the difference. So a publication that was killed, lost, or undone by another
program is made good by the next one, and nothing is ever added twice. Several gateways share the logs of one lake.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from things.blocks import PartFile
from things.errors import Conflict, StorageFailed
from things.lake import READINGS, ROLLUPS, TABLES, Part, Snapshot
from twin.lake.delta import Action, Shape, added, partition_of, path_of, removed, rows_of
from twin.lake.delta_log import DeltaLog
from twin.lake.manifest import Manifest

_BY_DAY = (READINGS, ROLLUPS)
_TRIES = 20
"""Writers of other gateways that may come first."""


class DeltaTables:
    """Publishes one gateway's part of a lake. Only the one writer may."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.place = manifest.place
        self._logs: dict[str, DeltaLog] = {}
        self._published: tuple[int, str] | None = None

    def publish(self, snapshot: Snapshot) -> int:
        """Bring the logs up to `snapshot`; how many versions that took. Raises StorageDamaged, StorageFailed."""
        if self._published == (snapshot.seq, snapshot.digest):
            return 0
        by_root: dict[str, list[Part]] = {root: [] for root in self._logs}
        for part in snapshot.parts:
            if part.table in TABLES:
                by_root.setdefault(_root(part), []).append(part)
        # Tables that have become empty since the last process knew them.
        for table in TABLES:
            if table != ROLLUPS:
                by_root.setdefault(table, [])
        written = sum(self._publish(root, parts, snapshot.seq) for root, parts in sorted(by_root.items()))
        self._published = (snapshot.seq, snapshot.digest)
        return written

    def trim(self) -> int:
        """Shorten the logs by what is older than the grace period; how many files went."""
        before_ms = (self.manifest.now() - self.manifest.grace_us) // 1_000
        return sum(log.trim(before_ms) for log in self._logs.values())

    def _publish(self, root: str, parts: Sequence[Part], seq: int) -> bool:
        log = self._logs.get(root)
        if log is None:
            log = DeltaLog(self.place, root)
            log.load()
            if log.version < 0 and not parts:
                return False
            self._logs[root] = log
        for _ in range(_TRIES):
            actions = self._difference(log, root, parts, seq)
            if not actions:
                return False
            try:
                log.commit(actions, self.manifest.now() // 1_000)
            except Conflict:
                log.load()
            else:
                return True
        raise StorageFailed(f"others write to the Delta log of {root} without end")

    def _difference(self, log: DeltaLog, root: str, parts: Sequence[Part], seq: int) -> list[Action]:
        now_ms = self.manifest.now() // 1_000
        mine = {
            path_of(add, root): add
            for add in log.live.values()
            if add["partitionValues"].get("gateway") == self.manifest.gateway
        }
        live = {part.path: part for part in parts}
        new = [part for path, part in live.items() if path not in mine]
        gone = [add for path, add in mine.items() if path not in live]
        # Where as many rows go as come, files were merged or made again: readers that follow the table pass over it.
        balance: Counter[str] = Counter()
        for part in new:
            balance[str(partition_of(part))] += part.rows
        for add in gone:
            balance[str(dict(add["partitionValues"]))] -= rows_of(add)
        changes: list[Action] = [
            {"remove": removed(add, now_ms, is_gone=balance[str(dict(add["partitionValues"]))] != 0)} for add in gone
        ]
        for part in new:
            file = PartFile(part, partial(self.place.content, part.path))
            is_new = balance[str(partition_of(part))] != 0
            changes.append({"add": added(part, root, file, now_ms, is_new=is_new)})
        described = shape_of(root).described(now_ms, log.described)
        if described is not None and (changes or log.described is not None):
            changes.insert(0, {"metaData": described})
        if changes:
            app = {"appId": f"skep/{self.manifest.gateway}", "version": seq, "lastUpdated": now_ms}
            changes.append({"txn": app})
        return changes


def shape_of(root: str) -> Shape:
    """The columns of the table in a folder of the lake."""
    table = root.partition("/")[0]
    partitions = ("gateway", "day") if table in _BY_DAY else ("gateway",)
    return Shape(name=root.replace("/", "_"), columns=TABLES[table], partitions=partitions)


def _root(part: Part) -> str:
    return part.path.partition("/gateway=")[0]
