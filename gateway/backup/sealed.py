"""The lake as a backup takes it: one gateway's manifest up to one commit, and the parts that are live then.

Parts and commits never change, so a folder of backups holds each of them once. `head.json` is written anew for the
commit that was chosen, since the lake may have gone on.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from things.errors import StorageDamaged
from things.lake import MANIFEST, Part
from things.manifest import HEAD, Head, Numbered, head_of, head_text, snapshot_from


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedLake:
    """What to copy, by path below the lake: parts, then commits, then the head."""

    parts: tuple[Part, ...]
    commits: tuple[str, ...]
    head: tuple[str, bytes] | None
    sealed: int


def sealed_lake(lake: Path, gateway: str) -> SealedLake:
    """The lake as its manifest has it now. Raises StorageDamaged, NewerSchema."""
    folder = f"{MANIFEST}/gateway={gateway}"
    try:
        # The head first: it cannot be ahead of what is listed after it.
        try:
            head = head_of((lake / folder / HEAD).read_bytes(), gateway)
        except FileNotFoundError:
            head = None
        names = [name for name in os.listdir(lake / folder) if Numbered.of(name)]
    except FileNotFoundError:
        return SealedLake(parts=(), commits=(), head=None, sealed=0)
    try:
        snapshot = snapshot_from(gateway, names, head, lambda name: (lake / folder / name).read_bytes())
    except FileNotFoundError as error:
        raise StorageDamaged(f"{error.filename} vanished while it was read") from error
    commits = sorted(name for name in names if (found := Numbered.of(name)) and found.seq <= snapshot.seq)
    own = (f"{folder}/{HEAD}", head_text(gateway, Head(snapshot.seq, snapshot.digest))) if head else None
    return SealedLake(
        parts=tuple(snapshot.parts),
        commits=tuple(f"{folder}/{name}" for name in commits),
        head=own,
        sealed=snapshot.sealed,
    )
