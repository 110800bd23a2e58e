"""What is known of the last backup: read at each start, apart from what takes one and its imports."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.backup.contents import NOTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A backup that was taken."""

    name: str
    to: str
    at: int
    """µs UTC."""
    bytes: int
    """Of all files as they are restored."""
    files: int
    last_row: int
    has_keys: bool
    removed: tuple[str, ...] = ()
    """Older backups that went."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """What belongs to the gateway and is not in it, and where that is or how it is copied."""


def last_taken(home: Path) -> Taken | None:
    """The last backup of this home that was finished; None if there is none, or nothing is known of it."""
    try:
        found = json.loads((home / NOTE).read_bytes())
        return Taken(**{**found, "removed": tuple(found["removed"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
