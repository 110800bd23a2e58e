"""What a backup says of itself: `manifest.json`, the last file that is written and the first that is looked for.

It names every file with size and SHA-256, the installation, and how far the stores had come. It holds its own digest,
so that damage to it is noticed too. A backup without one was never finished.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from things.errors import NewerSchema, StorageDamaged

NAME = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file: its path below the home, with `/`."""

    path: str
    size: int
    sha256: str
    mode: int = 0o600
    modified: int = 0
    """ns."""
    is_shared: bool = False
    """It never changes, and lies once for all backups of a folder that have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole backup. Times are RFC 3339."""

    installation: str
    gateway: str
    begun: str
    ended: str
    has_keys: bool
    last_row: int
    """The highest row id in the history that was copied."""
    seq: int
    """The same of the ledger's sequence numbers."""
    sealed: int
    """The last row of the lake that was copied."""
    lake: str | None = None
    """Where the copied lake was, if not in the home."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """What belongs to the installation and is not in the backup: a lake elsewhere."""
    files: Sequence[Entry] = ()

    @property
    def size(self) -> int:
        """Bytes of all files as they are restored."""
        return sum(entry.size for entry in self.files)


def manifest_text(manifest: Manifest) -> bytes:
    """The file's content."""
    document = {"format": FORMAT, **asdict(manifest)}
    return json.dumps({**document, "digest": _digest(document)}, indent=1).encode() + b"\n"


def manifest_of(text: bytes) -> Manifest:
    """What the file says. Raises StorageDamaged, NewerSchema."""
    try:
        document: dict[str, Any] = json.loads(text)
        version, digest = document["format"], document.pop("digest")
        if version > FORMAT:
            raise NewerSchema(NAME, version, FORMAT)
        if digest != _digest(document):
            raise ValueError("it is not what was written")
        del document["format"]
        entries = tuple(Entry(**one) for one in document.pop("files"))
        for entry in entries:
            if not is_inside(entry.path):
                raise ValueError(f"{entry.path!r} is no path inside a home")
        return Manifest(files=entries, **document)
    except NewerSchema:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageDamaged(f"{NAME} of the backup cannot be read: {error}") from error


def is_inside(path: str) -> bool:
    """Whether a name leads to a file inside the folder it is taken to."""
    steps = PurePosixPath(path).parts
    return bool(steps) and path == "/".join(steps) and not path.startswith("/") and ".." not in steps


def _digest(document: Mapping[str, Any]) -> str:
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()
