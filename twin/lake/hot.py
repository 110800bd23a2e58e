"""Hot history files as the sealing process reads them: SQLite, read only, in order of row id.

The runtime goes on writing meanwhile; each batch is a short read of its own, so no snapshot holds back its checkpoints.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar, cast

from things.errors import StorageDamaged
from twin.lake.rows import HotColumns, HotRow

T = TypeVar("T")

KNOWN_SCHEMA = 1

_NAME = re.compile(r"\d{4}-\d{2}-\d{2}(?:\.\d+)?\.db")
# By key: the names of a series come once a file, not once a row.
_SELECT_COLUMNS = (
    "SELECT key, row_id, created, received, value, quality, td_version, source_time"
    " FROM rows WHERE row_id BETWEEN ? AND ? ORDER BY row_id LIMIT ?"
)
_SELECT_SERIES = "SELECT key, thing_id, kind, name FROM keys"
# In the shape of HotRow, so that nothing is made anew in Python for each row.
_SELECT = (
    "SELECT row_id, thing_id, kind, name, created, received, value, quality, td_version, source_time, NULL, NULL"
    " FROM rows LEFT JOIN keys USING (key) WHERE row_id BETWEEN ? AND ? ORDER BY row_id LIMIT ?"
)


class HotFiles:
    """The `HotRows` of a history folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def last(self) -> int:
        return max((last for _, _, last in self._files()), default=0)

    def batches(self, first: int, last: int, size: int) -> Iterator[Sequence[HotRow]]:
        for path, start, end in self._spans(first, last):
            after = start - 1
            while after < end and (rows := self._read(path, _batch, after + 1, end, size)):
                yield rows
                after = rows[-1][0]

    def columns(self, first: int, last: int, size: int) -> Iterator[HotColumns]:
        for path, start, end in self._spans(first, last):
            after = start - 1
            while after < end and (found := self._read(path, _columns, after + 1, end, size)):
                yield found
                after = found.row_ids[-1]

    def _spans(self, first: int, last: int) -> Iterator[tuple[Path, int, int]]:
        """(file, first, last row id) of the files that hold some of these rows."""
        for low, path, high in self._files():
            if high >= first and low <= last:
                yield path, max(first, low), min(last, high)

    def _read(self, path: Path, read: Callable[[Path, int, int, int], T], first: int, last: int, size: int) -> T | None:
        try:
            return read(path, first, last, size)
        except sqlite3.OperationalError:
            if not path.exists():
                return None  # dropped whole: it was sealed by then
            raise

    def _files(self) -> list[tuple[int, Path, int]]:
        """(first row id, file, last row id) of files that hold rows, by rising row id."""
        found = []
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        for path in paths:
            if not _NAME.fullmatch(path.name):
                continue
            try:
                with closing(_opened(path)) as connection:
                    low, high = connection.execute("SELECT min(row_id), max(row_id) FROM rows").fetchone()
            except sqlite3.OperationalError:
                if not path.exists():
                    continue
                raise
            except sqlite3.DatabaseError as error:
                raise StorageDamaged(f"{path} cannot be sealed: {error}") from error
            if low is not None:
                found.append((low, path, high))
        return sorted(found)


def _batch(path: Path, first: int, last: int, size: int) -> list[HotRow]:
    with _reading(path, first, last) as connection:
        rows = connection.execute(_SELECT, (first, last, size)).fetchall()
    orphan = next((row[0] for row in rows if row[1] is None), None)
    if orphan is not None:
        raise StorageDamaged(f"{path}, row {orphan}, belongs to no series")
    return cast(list[HotRow], rows)


def _columns(path: Path, first: int, last: int, size: int) -> HotColumns | None:
    with _reading(path, first, last) as connection:
        rows = connection.execute(_SELECT_COLUMNS, (first, last, size)).fetchall()
        # After the rows: a series is stored with its first row, so all of theirs are there by now.
        series = {key: (thing, kind, name) for key, thing, kind, name in connection.execute(_SELECT_SERIES)}
    if not rows:
        return None
    keys, row_ids, *others = zip(*rows, strict=True)
    missing = set(keys) - series.keys()
    if missing:
        orphan = next(row_id for key, row_id in zip(keys, row_ids, strict=True) if key in missing)
        raise StorageDamaged(f"{path}, row {orphan}, belongs to no series")
    return HotColumns(series, keys, row_ids, *others)


@contextmanager
def _reading(path: Path, first: int, last: int) -> Iterator[sqlite3.Connection]:
    try:
        with closing(_opened(path)) as connection:
            yield connection
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise StorageDamaged(f"{path}, rows {first} to {last}, cannot be read: {error}") from error


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema > KNOWN_SCHEMA:
        connection.close()
        raise StorageDamaged(f"{path} has schema {schema}, written by a newer skep; this one knows {KNOWN_SCHEMA}")
    return connection
