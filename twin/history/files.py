"""The files of hot history: one SQLite file a day received, their row-id ranges, and what happens to a damaged one.

A file holds its own dictionary of series (`keys`), so that it can be dropped, copied and read alone. Ranges of row ids
never overlap and rise from file to file; a clock that jumped back more than a day gets a new file (`2026-03-01.2.db`),
never an older one. A file that fails its check is set aside (`.damaged`) and said so; it is never emptied.
"""

import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from things.addresses import Kind
from things.errors import NewerSchema, StorageDamaged
from things.whole_files import refuse_unless_damage, sync, write_whole

log = logging.getLogger(__name__)

SCHEMA = 1
DAY_US = 86_400_000_000
MAX_INTEGER = 2**63 - 1
ROW_ID_BLOCK = 1_000_000
"""Row ids promised at a time in `row-ids`, so that a lost newest file never leads to an id used twice."""

_KINDS = frozenset(kind.value for kind in Kind)
_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})(?:\.(\d+))?\.db")
_COLUMNS = "row_id, key, created, mid, value, received, quality, td_version, source_time"
_CREATE = """
CREATE TABLE keys (key INTEGER PRIMARY KEY, thing_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    UNIQUE (thing_id, kind, name));
CREATE TABLE rows (row_id INTEGER PRIMARY KEY, key INTEGER NOT NULL, created INTEGER NOT NULL, mid INTEGER NOT NULL,
    value BLOB NOT NULL, received INTEGER NOT NULL, quality INTEGER NOT NULL, td_version INTEGER NOT NULL,
    source_time INTEGER, UNIQUE (key, created, mid));
CREATE TABLE span (first INTEGER NOT NULL, min_created INTEGER, max_created INTEGER);
"""


@dataclass(slots=True, kw_only=True)
class DayFile:
    """One file: its day, and the row ids (`last` < `first` while empty) and times in it. Times are None while rows
    are still added."""

    path: Path
    day: str
    first: int
    last: int
    min_created: int | None = None
    max_created: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, with what is not yet checkpointed."""
        return sum(path.stat().st_size for path in _companions(self.path) if path.exists())


def day_of(received: int) -> str:
    """The UTC day a time (µs) belongs to, as it names files."""
    return datetime.fromtimestamp(received // 1_000_000, UTC).strftime("%Y-%m-%d")


def found_files(folder: Path) -> tuple[list[DayFile], list[Path]]:
    """The files in a folder by rising row id, and those set aside now because they are damaged. Raises NewerSchema."""
    files: list[DayFile] = []
    damaged: list[Path] = []
    named = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for path in named:
        try:
            # Only the newest can have been written when the power went; the rest was checked when it was.
            files.append(_opened(path, check=path == named[-1]))
        except _DAMAGE as error:
            damaged.append(_judged(path, error))
    files.sort(key=lambda file: file.first)
    for file in files[:-1]:
        if file.min_created is None and file.last >= file.first:
            try:
                close_span(file)
            except _DAMAGE as error:
                damaged.append(_judged(file.path, error))
                files = [kept for kept in files if kept is not file]
    return files, damaged


_DAMAGE = (sqlite3.Error, ValueError, TypeError, OverflowError)
"""What a damaged file makes the driver raise: text that is none, numbers beyond 64 bits, values of the wrong type."""


def _judged(path: Path, error: Exception) -> Path:
    """Set a damaged file aside. Raises StorageFull, StorageFailed where the machine, not the file, is to blame."""
    refuse_unless_damage(path, error)
    return set_aside(path, str(error))


def create(folder: Path, day: str, first: int, *, stamp: int = 0) -> DayFile:
    """A new, empty file for a day, complete and synced before it gets its name; `stamp` says whose it is."""
    number, path = 1, folder / f"{day}.db"
    while path.exists():
        number += 1
        path = folder / f"{day}.{number}.db"
    partial = folder / f".{path.name}.partial"
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    with closing(sqlite3.connect(partial)) as connection:
        connection.executescript(_CREATE)
        connection.execute("INSERT INTO span (first) VALUES (?)", (first,))
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute(f"PRAGMA application_id = {stamp}")
        connection.commit()
    sync(partial)
    partial.replace(path)
    sync(folder)
    return DayFile(path=path, day=day, first=first, last=first - 1)


def writer(file: DayFile, *, durable: bool = True) -> sqlite3.Connection:
    """A connection that adds rows: WAL, every commit synced; not `durable`: synced when the WAL is folded in, so that
    a power cut may take the newest commits but leaves a whole file."""
    connection = sqlite3.connect(file.path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    return connection


@contextmanager
def reader(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection for one query."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
    try:
        connection.execute("PRAGMA query_only=1")
        yield connection
    finally:
        connection.close()


def close_span(file: DayFile) -> None:
    """Write down which times a file holds, once no rows are added any more."""
    with closing(writer(file)) as connection:
        low, high = connection.execute("SELECT min(created), max(created) FROM rows").fetchone()
        connection.execute("UPDATE span SET min_created = ?, max_created = ?", (low, high))
        # Whoever reads it, such as a backup, must not hold up the commits behind this; the log is folded in later.
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.min_created, file.max_created = low, high


def set_aside(path: Path, reason: str) -> Path:
    """Move a damaged file out of the way, loudly; returns where it is now."""
    target = path.with_name(f"{path.name}.damaged")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.damaged.{number}")
    for part in _companions(path):
        if part.exists():
            part.rename(part.with_name(part.name.replace(path.name, target.name, 1)))
    log.critical("a history file is damaged and was set aside", extra={"file": str(target), "reason": reason})
    return target


def remove(file: DayFile) -> None:
    """Drop a file whole."""
    for part in _companions(file.path):
        part.unlink(missing_ok=True)


def promised_row_id(folder: Path) -> int:
    """The row id up to which ids may have been given away."""
    try:
        return int((folder / "row-ids").read_text())
    except FileNotFoundError:
        return 0
    except ValueError as error:
        raise StorageDamaged(f"{folder / 'row-ids'} does not hold a number") from error


def promise_row_id(folder: Path, row_id: int) -> None:
    """Write down, synced, that ids up to `row_id` may be given away."""
    _note(folder, "row-ids", row_id)


def gone_created(folder: Path) -> int | None:
    """The latest `created` of all rows in files that were dropped; None if that was not written down."""
    try:
        return int((folder / "dropped").read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StorageDamaged(f"{folder / 'dropped'} does not hold a number") from error


def note_gone_created(folder: Path, created: int) -> None:
    """Write down, synced, that no dropped row was created after this."""
    _note(folder, "dropped", created)


def has_set_aside(folder: Path) -> bool:
    """Whether damaged files lie in the folder, whose rows are no longer read."""
    return any(folder.glob("*.damaged*"))


def _note(folder: Path, name: str, number: int) -> None:
    write_whole(folder / name, f"{number}\n".encode())


def _opened(path: Path, *, check: bool) -> DayFile:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema = connection.execute("PRAGMA user_version").fetchone()[0]
        if schema > SCHEMA:
            raise NewerSchema(str(path), schema, SCHEMA)
        if check:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            # That check looks at pages, not at what the values mean.
            for thing_id, kind, name in connection.execute("SELECT thing_id, kind, name FROM keys"):
                if not (isinstance(thing_id, str) and isinstance(name, str) and kind in _KINDS):
                    raise sqlite3.DatabaseError("a series without a name")
        connection.execute(f"SELECT {_COLUMNS} FROM rows LIMIT 1").fetchone()
        first, low, high = _integers(connection.execute("SELECT first, min_created, max_created FROM span"))
        (last,) = _integers(connection.execute("SELECT max(row_id) FROM rows"))
        if first is None:
            raise sqlite3.DatabaseError("no first row id")
        date.fromisoformat(match[1])
    return DayFile(
        path=path,
        day=match[1],
        first=first,
        last=first - 1 if last is None else last,
        min_created=low,
        max_created=high,
    )


def _integers(cursor: sqlite3.Cursor) -> tuple[int | None, ...]:
    found = cursor.fetchone()
    if found is None or any(value is not None and not isinstance(value, int) for value in found):
        raise sqlite3.DatabaseError("numbers that are none")
    return tuple(found)


def _companions(path: Path) -> tuple[Path, ...]:
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
