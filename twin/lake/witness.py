"""The last commit that this gateway made, written down at home, apart from the lake.

Object stores may let two writers replace each other's commits, and a lake may be put back to an older state: whoever
seals next compares the lake with what it made itself, and stops rather than build upon another's.
"""

from pathlib import Path

from pydantic_core import from_json, to_json

from things.errors import Conflict, StorageDamaged, StorageFailed
from things.lake import Snapshot
from things.manifest import Head
from things.whole_files import write_whole
from twin.lake.manifest import Manifest

FILE = "lake-head.json"


class Witness:
    """What one gateway knows of its own commits. Another lake, by its address, is another matter."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest

    def compare(self, snapshot: Snapshot) -> None:
        """Raises StorageDamaged if the lake lacks a commit that was made here, Conflict if another stands there."""
        own = self._noted()
        if own is None:
            return
        if own.seq > snapshot.seq:
            raise StorageDamaged(
                f"the lake at {self._manifest.place.url} lacks commit {own.seq}, which this gateway made: it ends at"
                f" {snapshot.seq}; remove {self._path} to go on from there"
            )
        if own.seq in self._manifest.numbers() and self._manifest.digest_at(own.seq) != own.digest:
            raise Conflict(
                f"commit {own.seq} of the lake at {self._manifest.place.url} is not the one this gateway made: another"
                f" gateway writes there as {snapshot.gateway!r}; give one of them another id or another lake"
            )

    def note(self) -> None:
        """Write down the last commit that was made by this process, if any. Raises StorageFailed."""
        head = self._manifest.made
        if head is None or head == self._noted():
            return
        text = to_json({"lake": self._manifest.place.url, "seq": head.seq, "commit": head.digest})
        try:
            write_whole(self._path, text)
        except OSError as error:
            raise StorageFailed(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _noted(self) -> Head | None:
        try:
            found = from_json(self._path.read_bytes())
            if found["lake"] != self._manifest.place.url:
                return None
            return Head(int(found["seq"]), str(found["commit"]))
        except (OSError, ValueError, KeyError, TypeError):
            # It only helps to notice; without it the manifest alone counts.
            return None
