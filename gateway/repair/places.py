"""How a repaired store comes into the place of the damaged one: all or nothing, and the damaged one stays.

The repaired file lies beside it as `NAME.repaired`, whole and synced, before anything is moved. A repair that was
killed after that is finished by the next one; a start refuses a home in which one waits.
"""

from collections.abc import Callable
from pathlib import Path

from gateway.home import REPAIRED
from gateway.inventory import HISTORY
from things.whole_files import sync

_PARTS = ("", "-wal", "-shm")


def unfinished(home: Path) -> list[Path]:
    """Repaired stores that are not in their places yet."""
    return sorted([*home.glob(f"*.db{REPAIRED}"), *(home / HISTORY).glob(f"*.db{REPAIRED}")])


def written(path: Path, fill: Callable[[Path], None]) -> Path:
    """The repaired file for a place, as `fill` makes it under another name."""
    draft, repaired = path.with_name(f".{path.name}.partial"), path.with_name(path.name + REPAIRED)
    for part in _PARTS:
        draft.with_name(draft.name + part).unlink(missing_ok=True)
    draft.touch(mode=0o600)
    fill(draft)
    sync(draft)
    draft.rename(repaired)
    sync(path.parent)
    return repaired


def put_in_place(repaired: Path) -> Path | None:
    """Move what stands in its place aside, with its log, and put the repaired file there; where the other is now."""
    path = repaired.with_name(repaired.name.removesuffix(REPAIRED))
    aside = moved_aside(path, "set-aside")
    repaired.rename(path)
    sync(path.parent)
    return aside


def moved_aside(path: Path, word: str) -> Path | None:
    """Rename a store and what SQLite has put beside it to `NAME.WORD`; where it is now, None if nothing was there."""
    if not any(path.with_name(path.name + part).exists() for part in _PARTS):
        return None
    number, target = 1, path.with_name(f"{path.name}.{word}")
    while any(target.with_name(target.name + part).exists() for part in _PARTS):
        number += 1
        target = path.with_name(f"{path.name}.{word}.{number}")
    for part in ("-shm", "-wal", ""):  # the file at last: without it the log means nothing to anybody
        source = path.with_name(path.name + part)
        if source.exists():
            source.rename(target.with_name(target.name + part))
    sync(path.parent)
    return target
