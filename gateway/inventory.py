"""What the stores of a home should hold at least, written down apart from them: `{home}/inventory.json`.

It names the installation, every store with how far it had come when that was last noted, and what the next start must
not pass over in silence. A note is written whole and synced, and only what was committed is noted: a store may hold
more than it says, never less. `set-aside.json` beside it lists what was found missing, shortened or damaged, until
somebody has seen it (`skep stores clear`).
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from gateway.home import write_whole
from things.errors import NewerSchema, StorageDamaged

FILE = "inventory.json"
NOTES_FILE = "set-aside.json"
VERSION = 1

ACCOUNTS, TWIN = "accounts.db", "twin.db"
HISTORY = "history"

Marks = Mapping[str, int]
"""How far a store had come: names of counters that only rise, and numbers of what is in it, for people."""


RESTORED = "restore of the backup of "


@dataclass(slots=True, kw_only=True)
class Inventory:
    """One installation's stores. `stores` is by path below the home."""

    installation: str
    is_on_server: bool = False
    """Accounts and twin are in a PostgreSQL database, not in files."""
    gateway: str | None = None
    stores: dict[str, dict[str, int]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Stores of which something was found gone that must not be passed over, and what."""
    asked: list[str] = field(default_factory=list)
    """What somebody asked for since the last start, for the audit log: `reset accounts.db`; or what begins with
    RESTORED."""

    @property
    def stamp(self) -> int:
        """The number (SQLite's `application_id`) that every database of this installation carries."""
        return stamp_of(self.installation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something of a store is gone or was set aside."""

    store: str
    detail: str
    at: str


def stamp_of(installation: str) -> int:
    """31 bits of an installation's id, never 0, which SQLite has where nobody set one."""
    return int.from_bytes(sha256(installation.encode()).digest()[:4]) & 0x7FFF_FFFF | 1


def new_inventory(*, is_on_server: bool) -> Inventory:
    """Of an installation that begins."""
    return Inventory(installation=secrets.token_hex(16), is_on_server=is_on_server)


def read_inventory(home: Path) -> Inventory | None:
    """The inventory of a home; None if there is none. Raises StorageDamaged, NewerSchema."""
    try:
        found = json.loads((home / FILE).read_bytes())
        version = found["version"]
        if version == VERSION:
            return Inventory(
                installation=str(found["installation"]),
                is_on_server=bool(found["is_on_server"]),
                gateway=found["gateway"],
                stores={str(name): dict(marks) for name, marks in found["stores"].items()},
                refused=dict(found["refused"]),
                asked=list(found["asked"]),
            )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageDamaged(f"{FILE} cannot be read: {error!r}") from error
    raise NewerSchema(str(home / FILE), version, VERSION)


def write_inventory(home: Path, inventory: Inventory) -> None:
    """Replace the inventory, synced. Raises StorageFailed, StorageFull."""
    write_whole(home / FILE, json.dumps({"version": VERSION, **asdict(inventory)}).encode() + b"\n")


def read_notes(home: Path) -> Sequence[Note]:
    """What was set aside or found gone and not cleared yet, oldest first."""
    try:
        found = json.loads((home / NOTES_FILE).read_bytes())
        return [Note(store=one["store"], detail=one["detail"], at=one["at"]) for one in found]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [Note(store=NOTES_FILE, detail=f"cannot be read: {error!r}; the log has what it said", at="")]


def write_notes(home: Path, notes: Sequence[Note]) -> None:
    """Replace the notes, synced. Raises StorageFailed, StorageFull."""
    write_whole(home / NOTES_FILE, json.dumps([asdict(one) for one in notes], indent=1).encode() + b"\n")
