"""SQLite files looked at from outside, before a store opens them: what they are, whose, and whether their write-ahead
log still has all that was committed. And how they are moved out of the way.

After a kill the log's index (`-shm`) still says how many frames were committed. SQLite itself goes by the log alone and
takes what follows a damaged frame for a commit that was never finished, so nobody else would notice.
"""

import sqlite3
import struct
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from shutil import copyfile

from things.whole_files import refuse_unless_damage, sync

PARTS = ("", "-wal", "-shm")
"""A database's file, its log and the log's index, by the ends of their names."""

_MAGIC = b"SQLite format 3\x00"
_STAMP_AT = 68
_INDEX = struct.Struct("=IIIBBHIIIIIIII")
"""The head of a log's index, in this machine's order (sqlite.org/walformat.html)."""
_INDEX_CHECKED_BYTES, _BACKFILLED_AT = 40, 96


class FileKind(StrEnum):
    """What is found where a database should be."""

    OURS = "ours"
    FOREIGN = "of another installation"
    MISSING = "missing"
    EMPTY = "empty"
    DAMAGED = "damaged"


def kind_of(path: Path, stamp: int | None) -> FileKind:
    """What lies at `path`; with `stamp` None any database with tables is ours. Opening it may finish what a crash left
    in the log. Raises StorageFull, StorageFailed where it cannot be looked at."""
    try:
        with path.open("rb") as file:
            start = file.read(100)
    except FileNotFoundError:
        return FileKind.MISSING
    if not start.strip(b"\x00"):
        return FileKind.EMPTY
    if not start.startswith(_MAGIC) or len(start) < 100:
        return FileKind.DAMAGED
    if stamp is not None and _stamp_in(start) == stamp:
        return FileKind.OURS  # stamped once it had tables
    try:
        with closing(sqlite3.connect(path)) as connection:
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return FileKind.EMPTY
            found = connection.execute("PRAGMA application_id").fetchone()[0]
    except (sqlite3.Error, ValueError, OverflowError) as error:
        refuse_unless_damage(path, error)
        return FileKind.DAMAGED
    return FileKind.OURS if stamp is None or found == stamp else FileKind.FOREIGN


def is_readable(path: Path) -> bool:
    """Whether every page and value of a database can be read. Reads all of it. Raises StorageFull, StorageFailed where
    it cannot be looked at."""
    try:
        with closing(sqlite3.connect(path)) as connection:
            if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                return False
            named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            for (table,) in connection.execute(named).fetchall():
                for _ in connection.execute(f'SELECT * FROM "{table}"'):
                    pass
    except (sqlite3.Error, ValueError, OverflowError) as error:
        refuse_unless_damage(path, error)
        return False
    return True


def put_stamp(path: Path, stamp: int) -> None:
    """Write whose database this is into the file itself (not its log alone). Raises sqlite3.Error, OSError."""
    with path.open("rb") as file:
        if _stamp_in(file.read(100)) == stamp:
            return
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA application_id = {stamp}")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def lost_frames(path: Path) -> int:
    """How many committed frames are missing from the log of a database that was not closed; its log is then kept as
    `{name}-wal.damaged`. Looking finishes what a crash left. 0 where nothing can be said."""
    log, index = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
    before = _index(index)
    if before is None or not path.exists():
        return 0
    frames, backfilled, salts = before
    if not log.exists() or not log.stat().st_size:
        return frames - backfilled
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            after = _index(index)
            found = after[0] if after is not None and after[2] == salts else 0
            if found < frames:
                # Closing folds the log into the file and removes it.
                copyfile(log, log.with_name(f"{log.name}.damaged"))
    except (sqlite3.Error, ValueError, OverflowError):
        return 0  # the store's own check finds what is wrong with it
    return max(0, frames - found)


def _stamp_in(start: bytes) -> int:
    return int.from_bytes(start[_STAMP_AT : _STAMP_AT + 4])


def _index(path: Path) -> tuple[int, int, bytes] | None:
    """Committed frames, those of them that are in the file already, and the salts of the log; None where there is no
    valid index."""
    try:
        with path.open("rb") as file:
            head = file.read(_BACKFILLED_AT + 4)
    except OSError:
        return None
    if len(head) < _BACKFILLED_AT + 4 or head[:48] != head[48:96]:  # two copies: equal unless one was being written
        return None
    fields = _INDEX.unpack_from(head)
    if not fields[3] or _checksum(head[:_INDEX_CHECKED_BYTES]) != fields[12:14]:
        return None
    return fields[6], int(struct.unpack_from("=I", head, _BACKFILLED_AT)[0]), head[32:40]


def _checksum(content: bytes) -> tuple[int, int]:
    first = second = 0
    for left, right in struct.iter_unpack("=II", content):
        first = (first + left + second) & 0xFFFF_FFFF
        second = (second + right + first) & 0xFFFF_FFFF
    return first, second


def moved_aside(path: Path, word: str) -> Path | None:
    """Rename a store and what SQLite has put beside it to `NAME.WORD`; where it is now, None if nothing was there."""
    if not any(path.with_name(path.name + part).exists() for part in PARTS):
        return None
    number, target = 1, path.with_name(f"{path.name}.{word}")
    while any(target.with_name(target.name + part).exists() for part in PARTS):
        number += 1
        target = path.with_name(f"{path.name}.{word}.{number}")
    for part in ("-shm", "-wal", ""):  # the file at last: without it the log means nothing to anybody
        source = path.with_name(path.name + part)
        if source.exists():
            source.rename(target.with_name(target.name + part))
    sync(path.parent)
    return target
