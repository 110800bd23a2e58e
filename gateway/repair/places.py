"""How what was made of a damaged store comes into its place: all or nothing, and the damaged one stays.

The files lie beside it in the folder `NAME.repair`, whole and synced, before anything is moved. A repair that was
killed after that is finished by the next one; a start refuses a home in which such a folder waits.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gateway.home import REPAIR
from gateway.inventory import HISTORY
from gateway.sqlite_files import moved_aside
from things.whole_files import sync


def store_of(home: Path, folder: Path) -> str:
    """The store, by its path below the home, in whose place the files of such a folder come."""
    return str(folder.relative_to(home)).removesuffix(REPAIR)


def waiting(damaged: Path, files: Mapping[str, Callable[[Path], object]]) -> Path:
    """The folder of what comes into a store's place: by name, what fills the file with that name. From its return on
    the repair is finished whatever happens."""
    draft, folder = damaged.with_name(f".{damaged.name}.partial"), damaged.with_name(damaged.name + REPAIR)
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir(mode=0o700)
    for name, fill in files.items():
        file = draft / name
        file.touch(mode=0o600)
        fill(file)
        sync(file)
    sync(draft)
    draft.rename(folder)
    sync(damaged.parent)
    return folder


@contextmanager
def put_in_place(folder: Path) -> Iterator[Path | None]:
    """Move the damaged store aside, with its log, and the files of its folder beside or into its place; where it is
    now, None if nothing was moved. What the block does is part of it: killed before its end, all is done again."""
    damaged = folder.with_name(folder.name.removesuffix(REPAIR))
    # One of them may have the name of the damaged store. As long as it is in the folder, the other one is outside.
    files = sorted(folder.iterdir(), key=lambda file: (file.name == damaged.name, file.name))
    aside = moved_aside(damaged, _word(damaged)) if files else None
    for file in files:
        file.rename(damaged.with_name(file.name))
    sync(damaged.parent)
    yield aside
    folder.rmdir()
    sync(damaged.parent)


def _word(damaged: Path) -> str:
    """What the name of a store ends with that is moved aside; of hot history it says that rows of it may be gone."""
    if damaged.parent.name != HISTORY:
        return "set-aside"
    return "damaged.repaired" if damaged.suffix == ".db" else "repaired"
