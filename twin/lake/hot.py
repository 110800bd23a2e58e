"""Hot history files as the sealing process reads them: SQLite, read only, in order of row id.

The runtime goes on writing meanwhile; each batch is a short read of its own, so no snapshot holds back its checkpoints.
"""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import cast

from things.errors import StorageDamaged
from twin.lake.rows import HotRow

KNOWN_SCHEMA = 1

_NAME = re.compile(r"\d{4}-\d{2}-\d{2}(?:\.\d+)?\.db")
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
        for low, path, high in self._files():
            if high < first or low > last:
                continue
            after = max(first, low) - 1
            while after < last:
                try:
                    rows = _batch(path, after + 1, min(last, high), size)
                except sqlite3.OperationalError:
                    if not path.exists():
                        break  # dropped whole: it was sealed by then
                    raise
                if not rows:
                    break
                yield rows
                after = rows[-1][0]

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
    try:
        with closing(_opened(path)) as connection:
            rows = connection.execute(_SELECT, (first, last, size)).fetchall()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise StorageDamaged(f"{path}, rows {first} to {last}, cannot be read: {error}") from error
    orphan = next((row[0] for row in rows if row[1] is None), None)
    if orphan is not None:
        raise StorageDamaged(f"{path}, row {orphan}, belongs to no series")
    return cast(list[HotRow], rows)


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
    schema = connection.execute("PRAGMA user_version").fetchone()[0]
    if schema > KNOWN_SCHEMA:
        connection.close()
        raise StorageDamaged(f"{path} has schema {schema}, written by a newer skep; this one knows {KNOWN_SCHEMA}")
    return connection
