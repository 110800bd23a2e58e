"""The manifest of one gateway: numbered commits, each created only if absent, folded into what is live.

A commit is the one instant at which files become part of the lake or cease to be. Commits are never changed. Every so
often a checkpoint holds what all commits up to a number amount to, so that readers need not open thousands of files;
commits behind it are removed only after readers had a day to finish.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from pydantic_core import from_json

from things.errors import Invalid, StorageDamaged, StorageFailed
from things.lake import MANIFEST, Commit, Snapshot, commit_of, snapshot_of
from things.manifest import (
    HEAD,
    NOTHING,
    Head,
    Numbered,
    commit_text,
    digest_of,
    head_of,
    head_text,
    snapshot_from,
)
from twin.lake.places import Place

GRACE_US = 24 * 3600 * 1_000_000
"""How long replaced files and superseded commits stay for readers that hold a snapshot."""
CHECKPOINT_EVERY = 100
"""Commits after which a checkpoint pays."""
FEW_COMMITS = 8
"""Fewer are not worth a checkpoint, however old they are."""

_GATEWAY = re.compile(r"[a-z0-9-]{1,32}")


class Manifest:
    """Reads and extends the manifest of `gateway` in the lake at `place`."""

    def __init__(self, place: Place, gateway: str, clock: Callable[[], int], *, grace_us: int = GRACE_US) -> None:
        if not _GATEWAY.fullmatch(gateway):
            raise Invalid(f"{gateway[:40]!r} is not a gateway id")
        self.place = place
        self.gateway = gateway
        self.grace_us = grace_us
        self.made: Head | None = None
        """The last commit that was made through this."""
        self._clock = clock

    @property
    def folder(self) -> str:
        return f"{MANIFEST}/gateway={self.gateway}"

    def now(self) -> int:
        """µs UTC, by the clock that was passed in."""
        return self._clock()

    def snapshot(self) -> Snapshot:
        """What is live now. Raises StorageDamaged or NewerSchema rather than guess."""
        # The head first: commits that are made meanwhile may be beyond it, and it cannot be beyond what is listed.
        head = self._head()
        names = [file.name for file in self._files()]
        return snapshot_from(self.gateway, names, head, self._read)

    def commit(self, base: Snapshot, commit: Commit) -> Snapshot:
        """Add one commit on top of `base`; raises Conflict when another writer came first."""
        numbered = replace(
            commit, gateway=self.gateway, seq=base.seq + 1, at=self._clock(), before=base.digest or NOTHING
        )
        if not self.place.exists(f"{self.folder}/{HEAD}"):
            # From the first commit that names its predecessor on there is a head, whenever the power goes.
            self._set_head(Head(base.seq, base.digest))
        text, digest = commit_text(numbered)
        self.place.create(f"{self.folder}/{Numbered(numbered.seq, False).name}", text)
        self.made = Head(numbered.seq, digest)
        self._set_head(self.made)
        after = snapshot_of(self.gateway, (_folded(base), numbered))._replace(digest=digest)
        if numbered.seq % CHECKPOINT_EVERY == 0:
            self.checkpoint(after)
        return after

    def checkpoint(self, snapshot: Snapshot) -> None:
        """Write down what the commits up to `snapshot.seq` amount to."""
        path = f"{self.folder}/{Numbered(snapshot.seq, True).name}"
        if snapshot.seq and not self.place.exists(path):
            whole = replace(_folded(snapshot), at=self._clock(), before=snapshot.digest or NOTHING)
            self.place.create(path, commit_text(whole)[0])

    def is_long(self, snapshot: Snapshot) -> bool:
        """Whether so many commits, or such old ones, lie behind the newest checkpoint that another one pays."""
        files = self._files()
        start = max((file.seq for file in files if file.is_checkpoint), default=0)
        behind = snapshot.seq - start
        if behind >= CHECKPOINT_EVERY:
            return True
        return behind >= FEW_COMMITS and self.commit_at(start + 1).at < self._clock() - self.grace_us

    def commit_at(self, seq: int) -> Commit:
        """One commit. Raises StorageDamaged if it is not there."""
        return self._commit(Numbered(seq, False))

    def digest_at(self, seq: int) -> str:
        """Of one commit. Raises StorageDamaged if it is not there."""
        return digest_of(from_json(self._read(Numbered(seq, False).name)))

    def numbers(self) -> Set[int]:
        """The commits whose files are there."""
        return {file.seq for file in self._files() if not file.is_checkpoint}

    def replaced(self) -> Sequence[tuple[str, int]]:
        """Files that are no longer live, and since when, as far as the commits that say so are still there."""
        found: list[tuple[str, int]] = []
        for file in self._files():
            if not file.is_checkpoint:
                commit = self._commit(file)
                found.extend((path, commit.at) for path in commit.replaces)
        return found

    def trim(self) -> int:
        """Remove commits and checkpoints that a checkpoint older than the grace period makes superfluous; how many."""
        settled = self._clock() - self.grace_us
        files = self._files()
        start = max((f.seq for f in files if f.is_checkpoint and self._commit(f).at < settled), default=0)
        gone = [file for file in files if file.seq < start or (file.seq == start and not file.is_checkpoint)]
        for file in gone:
            self.place.remove(f"{self.folder}/{file.name}")
        return len(gone)

    def _files(self) -> list[Numbered]:
        """Commits and checkpoints, in order."""
        names = (file.path.rpartition("/")[2] for file in self.place.walk(self.folder))
        return sorted(found for name in names if (found := Numbered.of(name)) is not None)

    def _head(self) -> Head | None:
        try:
            return head_of(self.place.read(f"{self.folder}/{HEAD}"), self.gateway)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageFailed(f"{self.folder}/{HEAD} cannot be read: {error}") from error

    def _set_head(self, head: Head) -> None:
        text = head_text(self.gateway, head)
        self.place.write(f"{self.folder}/{HEAD}", lambda file: file.write(text))

    def _commit(self, file: Numbered) -> Commit:
        path = f"{self.folder}/{file.name}"
        try:
            return commit_of(from_json(self._read(file.name)), path)
        except ValueError as error:
            raise StorageDamaged(f"{path} is not JSON: {error}") from error

    def _read(self, name: str) -> bytes:
        path = f"{self.folder}/{name}"
        try:
            return self.place.read(path)
        except FileNotFoundError as error:
            raise StorageDamaged(f"{path} vanished while it was read") from error
        except OSError as error:
            raise StorageFailed(f"{path} cannot be read: {error}") from error


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
