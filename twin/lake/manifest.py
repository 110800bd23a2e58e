"""The manifest of one gateway: numbered commits, each created only if absent, folded into what is live.

A commit is the one instant at which files become part of the lake or cease to be. Commits are never changed. Every so
often a checkpoint holds what all commits up to a number amount to, so that readers need not open thousands of files;
commits behind it are removed only after readers had a day to finish.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pydantic_core import from_json

from things.errors import Invalid, StorageDamaged
from things.jsontext import encode
from things.lake import MANIFEST, Commit, Snapshot, commit_document, commit_of, snapshot_of
from twin.lake.places import Place

GRACE_US = 24 * 3600 * 1_000_000
"""How long replaced files and superseded commits stay for readers that hold a snapshot."""
CHECKPOINT_EVERY = 100
"""Commits after which a checkpoint pays."""

_NAME = re.compile(r"(checkpoint-)?(\d{12})\.json")
_GATEWAY = re.compile(r"[a-z0-9-]{1,32}")


class Manifest:
    """Reads and extends the manifest of `gateway` in the lake at `place`."""

    def __init__(self, place: Place, gateway: str, clock: Callable[[], int]) -> None:
        if not _GATEWAY.fullmatch(gateway):
            raise Invalid(f"{gateway[:40]!r} is not a gateway id")
        self.place = place
        self.gateway = gateway
        self._clock = clock

    @property
    def folder(self) -> str:
        return f"{MANIFEST}/gateway={self.gateway}"

    def now(self) -> int:
        """µs UTC, by the clock that was passed in."""
        return self._clock()

    def snapshot(self) -> Snapshot:
        """What is live now. Raises StorageDamaged or NewerSchema rather than guess."""
        return snapshot_of(self.gateway, self.commits())

    def commits(self) -> Iterator[Commit]:
        """The newest checkpoint as one commit, and the commits after it."""
        numbers = self._numbers()
        checkpoints = [seq for is_checkpoint, seq in numbers if is_checkpoint]
        start = max(checkpoints, default=0)
        if start:
            yield self._read(f"checkpoint-{start:012d}.json")
        for is_checkpoint, seq in numbers:
            if not is_checkpoint and seq > start:
                yield self._read(f"{seq:012d}.json")

    def commit(self, base: Snapshot, commit: Commit) -> Snapshot:
        """Add one commit on top of `base`; raises Conflict when another writer came first."""
        numbered = replace(commit, gateway=self.gateway, seq=base.seq + 1, at=self._clock())
        self.place.create(f"{self.folder}/{numbered.seq:012d}.json", encode(commit_document(numbered)))
        after = snapshot_of(self.gateway, (_folded(base), numbered))
        if numbered.seq % CHECKPOINT_EVERY == 0:
            self.checkpoint(after)
        return after

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Write down what the commits up to `snapshot.seq` amount to."""
        path = f"{self.folder}/checkpoint-{snapshot.seq:012d}.json"
        if snapshot.seq and not self.place.exists(path):
            whole = replace(_folded(snapshot), at=self._clock())
            self.place.create(path, encode(commit_document(whole)))

    def replaced(self) -> Sequence[tuple[str, int]]:
        """Files that are no longer live, and since when, as far as the commits that say so are still there."""
        found: list[tuple[str, int]] = []
        for is_checkpoint, seq in self._numbers():
            if not is_checkpoint:
                commit = self._read(f"{seq:012d}.json")
                found.extend((path, commit.at) for path in commit.replaces)
        return found

    def trim(self) -> int:
        """Remove commits and checkpoints that a checkpoint older than the grace period makes superfluous; how many."""
        settled = self._clock() - GRACE_US
        numbers = self._numbers()
        old = [seq for is_checkpoint, seq in numbers if is_checkpoint]
        start = max((seq for seq in old if self._read(f"checkpoint-{seq:012d}.json").at < settled), default=0)
        gone = [
            (is_checkpoint, seq)
            for is_checkpoint, seq in numbers
            if seq < start or (seq == start and not is_checkpoint)
        ]
        for is_checkpoint, seq in gone:
            self.place.remove(f"{self.folder}/{'checkpoint-' * is_checkpoint}{seq:012d}.json")
        return len(gone)

    def _numbers(self) -> list[tuple[bool, int]]:
        """(is a checkpoint, seq), commits and checkpoints each in order."""
        found = []
        for file in self.place.walk(self.folder):
            match = _NAME.fullmatch(file.path.rpartition("/")[2])
            if match:
                found.append((match[1] is not None, int(match[2])))
        return sorted(found, key=lambda item: item[1])

    def _read(self, name: str) -> Commit:
        path = f"{self.folder}/{name}"
        try:
            document = from_json(self.place.read(path))
        except FileNotFoundError as error:
            raise StorageDamaged(f"{path} vanished while it was read") from error
        except ValueError as error:
            raise StorageDamaged(f"{path} is not JSON: {error}") from error
        return commit_of(document, path)


def gateways(place: Place) -> Sequence[str]:
    """The gateways that have committed anything to this lake."""
    found = set()
    for file in place.walk(MANIFEST):
        steps = file.path.split("/")
        if len(steps) == 3 and steps[1].startswith("gateway="):
            found.add(steps[1][8:])
    return sorted(found)


def _folded(snapshot: Snapshot) -> Commit:
    return Commit(
        gateway=snapshot.gateway,
        seq=snapshot.seq,
        first=1,
        last=snapshot.sealed,
        parts=snapshot.parts,
        marks=snapshot.marks,
    )
