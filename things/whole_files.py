"""Files that are written whole: a reader, or a power cut, finds the old content or the new and nothing between.

The one module of `things` that touches the disk: every room keeps files, and none may import another's.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

from things.errors import StorageFailed, StorageFull

CHECKED_WHOLE_BYTES = 64 << 20
_NO_SPACE = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
"""The second: not even for the index of a log, which every reader needs."""
_OUTSIDE = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_BUSY", "SQLITE_NOMEM")
"""What befalls a file from outside: its disk, its rights, other programs, too little memory."""


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace `path` with `content`, for the owner alone unless `mode` says otherwise; its name survives a power cut
    too. Raises OSError."""
    with written_whole(path, mode=mode) as file:
        file.write(content)
    sync(path.parent)


@contextmanager
def written_whole(path: Path, *, mode: int | None = None, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which is `path` once the block has ended and its content is synced; if the block raises,
    nothing is left of it.

    Without a `mode` the process's mask decides who may read it. With `replace=False` a `path` that is taken by then
    raises FileExistsError, and of two writers only one gets it. The name survives a power cut after `sync` of the
    folder, which is left to the caller, who may have written many. Raises OSError.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if mode is not None:
                os.fchmod(descriptor, mode)  # whatever the mask says
            yield file
            file.flush()
            os.fsync(descriptor)
        if replace:
            draft.replace(path)
        else:
            os.link(draft, path)  # a link fails where a rename would replace
    finally:
        draft.unlink(missing_ok=True)


def copy_sqlite(source: Path, target: Path) -> None:
    """Make `target` a copy of an SQLite database that may be in use meanwhile. Raises OSError, sqlite3.Error."""
    draft = target.with_name(f".{target.name}.tmp")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    with closing(sqlite3.connect(source)) as connection, closing(sqlite3.connect(draft)) as copy:
        connection.backup(copy)
    sync(draft)
    draft.replace(target)
    sync(target.parent)


def sqlite_check(file: Path) -> str:
    """The statement by which a start checks an SQLite file; what it returns is "ok" for a whole one. It takes about
    3 ms a megabyte, of larger files a third of that: the rows are checked, and not whether every index has them."""
    return f"PRAGMA {'integrity' if file.stat().st_size <= CHECKED_WHOLE_BYTES else 'quick'}_check(1)"


def refuse_unless_damage(path: Path, error: BaseException) -> None:
    """Raise StorageFull or StorageFailed if an error of SQLite says that a database cannot be looked at now, and
    nothing about what is in it: such a file is not damaged, and must not be set aside."""
    code = getattr(error, "sqlite_errorname", None) or ""
    if code in _NO_SPACE:
        raise StorageFull(f"no space left to open {path}") from error
    if code.startswith(_OUTSIDE):
        raise StorageFailed(f"{path} cannot be opened: {error}") from error


def sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
