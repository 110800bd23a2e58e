"""Hot history files as the sealing process reads them: SQLite, read only, in order of row id.

The runtime goes on writing meanwhile; each batch of a sealing is a short read of its own, so no snapshot holds back its
checkpoints.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from things.errors import StorageDamaged
from twin.lake.rows import EVERYTHING, HotColumns, Series, Wanted

KNOWN_SCHEMA = 1
BATCH_BYTES = 64 * 1024 * 1024
"""Of values in one batch, roughly: the memory of a sealing does not follow how long they are."""
_FETCH = 5_000

_NAME = re.compile(r"\d{4}-\d{2}-\d{2}(?:\.\d+)?\.db")
# By key: the names of a series come once a file, not once a row.
_SELECT = (
    "SELECT key, row_id, created, received, value, quality, td_version, source_time"
    " FROM rows WHERE {by} BETWEEN ? AND ? {more} ORDER BY {by}"
)

# Each by itself is the first or last entry of the key; both in one SELECT would go through all rows.
_SELECT_BOUNDS = "SELECT (SELECT min(row_id) FROM rows), (SELECT max(row_id) FROM rows)"


class HotFiles:
    """The `HotRows` of a history folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def last(self) -> int:
        return max((last for _, _, last in self._files()), default=0)

    def first(self) -> int | None:
        return min((first for first, _, _ in self._files()), default=None)

    def columns(self, first: int, last: int, size: int, wanted: Wanted = EVERYTHING) -> Iterator[HotColumns]:
        for path, start, end in self._spans(first, last):
            try:
                yield from _columns(path, start, end, size, wanted)
            except sqlite3.OperationalError:
                if path.exists():
                    raise
                # Dropped whole: it was sealed by then.

    def _spans(self, first: int, last: int) -> Iterator[tuple[Path, int, int]]:
        """(file, first, last row id) of the files that hold some of these rows."""
        for low, path, high in self._files():
            if high >= first and low <= last:
                yield path, max(first, low), min(last, high)

    def _files(self) -> list[tuple[int, Path, int]]:
        """(first row id, file, last row id) of files that hold rows, by rising row id."""
        found = []
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        for path in paths:
            if not _NAME.fullmatch(path.name):
                continue
            try:
                with closing(_opened(path)) as connection:
                    low, high = connection.execute(_SELECT_BOUNDS).fetchone()
            except sqlite3.OperationalError:
                if not path.exists():
                    continue
                raise
            except sqlite3.DatabaseError as error:
                raise StorageDamaged(f"{path} cannot be sealed: {error}") from error
            if low is not None:
                found.append((low, path, high))
        return sorted(found)


def _columns(path: Path, first: int, last: int, size: int, wanted: Wanted) -> Iterator[HotColumns]:
    if wanted != EVERYTHING:
        # Few of many, found by the key of their series: looked for once.
        with _reading(path, first, last) as connection:
            series = _series(connection)
            keys = [key for key, one in series.items() if wanted.takes(one)]
            by, conditions = "row_id", []
            if len(keys) < len(series):
                # The unary plus keeps SQLite from going through all rows by their ids.
                by, conditions = "+row_id", [f"AND key IN ({','.join(map(str, keys))})"]
            conditions += [] if wanted.start is None else [f"AND created >= {int(wanted.start)}"]
            conditions += [] if wanted.end is None else [f"AND created < {int(wanted.end)}"]
            cursor = connection.execute(_SELECT.format(by=by, more=" ".join(conditions)), (first, last))
            while rows := cursor.fetchmany(size):
                yield _by_column(path, rows, series)
        return
    after = first - 1
    while after < last:
        with _reading(path, first, last) as connection:
            cursor = connection.execute(_SELECT.format(by="row_id", more="") + " LIMIT ?", (after + 1, last, size))
            rows = _few(cursor)
            # After the rows: a series is stored with its first row, so all of theirs are there by now.
            series = _series(connection)
        if not rows:
            return
        found = _by_column(path, rows, series)
        after = found.row_ids[-1]
        yield found


def _few(cursor: sqlite3.Cursor) -> list[Any]:
    """The rows of one batch, fewer if their values are long."""
    rows: list[Any] = []
    taken = 0
    while taken < BATCH_BYTES and (some := cursor.fetchmany(_FETCH)):
        rows += some
        taken += sum(len(row[4]) for row in some if isinstance(row[4], bytes | str))
    return rows


def _series(connection: sqlite3.Connection) -> dict[Any, Series]:
    found = connection.execute("SELECT key, thing_id, kind, name FROM keys")
    return {key: (thing, kind, name) for key, thing, kind, name in found}


def _by_column(path: Path, rows: Sequence[Any], series: dict[Any, Series]) -> HotColumns:
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
