"""What of a home belongs to a backup, and in which order it is copied.

Every copy is consistent in itself: databases are read in one transaction, other files are replaced whole by their
writers, the audit log ends with a whole line. Among each other what comes later may know more than what came before,
never less, so the order is: the inventory (stores hold what it says, or more), the sealed lake, `twin.db`, the hot
history, what is left, the accounts, the audit log. With the history after the twin no latest value is known of which
there is no row; rows beyond the checkpoint are replayed when it is opened. With the lake first, every row that it lacks
is still hot, since no file of history goes while a backup is taken. With accounts after the Things every Thing has its
owner, and a credential that ended while the rest was copied has ended in the backup too.
"""

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

from gateway.home import BEGUN
from gateway.inventory import ACCOUNTS, FILE, HISTORY, TWIN

NOTE = "backup.json"
ABOUT = "skep-backups.json"
"""What makes a folder one of backups."""
SECRET = ("keys", "certs", "agents")
"""Folders with keys and tokens."""
LAKE = "lake"

_NEVER = (
    "run.lock", BEGUN, "control.sock", "*.sock", "reserve", "*.reserve", "claim", "backup.lock", NOTE, "backups",
    "before-restore-*", "*-wal", "*-shm", "*.set-aside*", "*.damaged*", "*.before-*", "*.partial", "*.tmp", ".*",
    LAKE,
)  # fmt: skip
"""What is made anew, is only for this machine, or was set aside. The lake is copied by its manifest."""
_FIRST, _HOT, _LAST = (FILE, TWIN), f"{HISTORY}/", ("rights.json", "policies/", ACCOUNTS, "audit/")


def files_of(home: Path, *, keys: bool, elsewhere: Path | None = None) -> Iterator[str]:
    """The files of a home in the order in which they are copied, by path with `/`, the lake left out; `elsewhere` is
    where the backup goes. The folders are looked through when their turn has come."""
    for rank in range(_rank("") + len(_LAST) + 1):
        yield from sorted(
            (path for path in _found(home, home, keys, elsewhere) if _rank(path) == rank), key=_chronological
        )


def _found(home: Path, folder: Path, keys: bool, elsewhere: Path | None) -> Iterator[str]:
    with os.scandir(folder) as found:
        items = list(found)
    for item in items:
        path = Path(item.path)
        if any(fnmatch.fnmatch(item.name, pattern) for pattern in _NEVER) and not (
            folder != home and item.name == LAKE
        ):
            continue
        if path == elsewhere:
            continue
        if item.is_dir():
            if (path / ABOUT).exists():
                continue
            if keys or folder != home or item.name not in SECRET:
                yield from _found(home, path, keys, elsewhere)
        elif item.is_file():
            yield path.relative_to(home).as_posix()


def _rank(path: str) -> int:
    """Place in the order; those that nothing is said of come between the history and the accounts."""
    if path in _FIRST:
        return _FIRST.index(path)
    middle = len(_FIRST) + 1
    if path.startswith(_HOT):
        return middle - 1
    return next((middle + 1 + place for place, name in enumerate(_LAST) if path.startswith(name)), middle)


def _chronological(path: str) -> tuple[str, int]:
    # 2026-01-31.db, 2026-01-31.2.db, …: the newest file last.
    first, _, rest = path.partition(".")
    number = rest.partition(".")[0]
    return first, int(number) if number.isdigit() else 0
