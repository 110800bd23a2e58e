"""Reading history over its files: which of them a query needs, and its rows in one stable order.

By row id the files follow one another. By (created, row id) each series is taken from the file's unique key, already in
order, and the pieces are merged; so a page costs what it returns, not what is stored. New rows never move old ones:
both orders are total, and a cursor is the last row seen.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path

from things.records import HistoryQuery, Row
from twin.history.files import DayFile, reader
from twin.history.recent import Series

MAX_MERGED_SERIES = 64
"""Series read one by one from the key and merged; more are sorted by the database."""

ROW_BYTES = 256
"""What a row counts beside its value where bytes are bounded."""

_COLUMNS = "row_id, key, created, received, value, quality, td_version, source_time"

_Stored = tuple[int, int, int, int, bytes, int, int, int | None]


class DamagedFile(Exception):
    """A file that cannot be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path = path


def files_for(query: HistoryQuery, files: Sequence[DayFile]) -> Sequence[DayFile]:
    """The files that can hold rows of the query."""
    return [file for file in files if _can_hold(file, query)]


def read(query: HistoryQuery, files: Sequence[DayFile]) -> list[Row]:
    """The rows, at most `query.limit`."""
    if query.limit <= 0:
        return []
    if query.after_row is not None:
        return _by_row(query, files)
    direction = -1 if query.descending else 1
    pieces: list[Iterator[Row]] = [iter(piece) for file in files for piece in _by_time(query, file)]
    merged = merge(*pieces, key=lambda row: (direction * row.created, direction * row.row_id))
    return list(islice(merged, query.limit))


def latest(query: HistoryQuery, files: Sequence[DayFile]) -> list[Row]:
    """The newest row of every series, by (created, row id)."""
    newest: dict[Series, Row] = {}
    for file in files:
        with _opened(file) as (connection, series):
            conditions, parameters = _times(query)
            where = " AND ".join(("key = ?", *conditions))
            statement = f"SELECT {_COLUMNS} FROM rows WHERE {where} ORDER BY created DESC, row_id DESC LIMIT 1"
            for key in _keys(query, series):
                stored = connection.execute(statement, (key, *parameters)).fetchone()
                if stored is None:
                    continue
                row, standing = _row(stored, series), newest.get(series[key])
                if standing is None or (standing.created, standing.row_id) < (row.created, row.row_id):
                    newest[series[key]] = row
    return list(newest.values())


def horizon(query: HistoryQuery, files: Sequence[DayFile], *, max_bytes: int, received: int) -> int:
    """The row id behind which the query's newest rows lie that were received since then and take no more than so many
    bytes; `query.after_row` if those after it are within both."""
    after, left = query.after_row or 0, max_bytes
    for file in reversed(files):
        with _opened(file) as (connection, series):
            keys = _keys(query, series)
            if not keys:
                continue
            # One statement, since each row that is returned would wait for the loop's turn.
            summed = (
                "SELECT row_id, received, sum(length(value) + ?) OVER (ORDER BY row_id DESC) AS bytes FROM rows"
                f" WHERE row_id > ? AND +key IN ({','.join(map(str, keys))})"
            )
            found = connection.execute(
                f"SELECT row_id FROM ({summed}) WHERE bytes > ? OR received < ? LIMIT 1",
                (ROW_BYTES, after, left, received),
            ).fetchone()
            if found is not None:
                return int(found[0])
            total = connection.execute(
                f"SELECT coalesce(sum(length(value) + ?), 0) FROM rows WHERE row_id > ?"
                f" AND +key IN ({','.join(map(str, keys))})",
                (ROW_BYTES, after),
            ).fetchone()
            left -= int(total[0])
    return after


def find(path: Path, series: Series, created: int, mid: int) -> int | None:
    """The row with this identity in a file."""
    with reader(path) as connection:
        found = connection.execute(
            "SELECT row_id FROM rows WHERE created = ? AND mid = ? AND key ="
            " (SELECT key FROM keys WHERE thing_id = ? AND kind = ? AND name = ?)",
            (created, mid, *series),
        ).fetchone()
    return None if found is None else int(found[0])


def _by_row(query: HistoryQuery, files: Sequence[DayFile]) -> list[Row]:
    rows: list[Row] = []
    left = query.max_bytes
    for file in reversed(files) if query.descending else files:
        with _opened(file) as (connection, series):
            keys = _keys(query, series)
            if not keys:
                continue
            conditions, parameters = _times(query)
            conditions.append("row_id < ?" if query.descending else "row_id > ?")
            parameters.append(query.after_row or 0)
            if len(keys) < len(series):
                # The unary plus keeps the order of row ids: the key would mean sorting a whole series.
                conditions.append(f"+key IN ({','.join(map(str, keys))})")
            for one in _select(connection, conditions, parameters, query, "row_id", query.limit - len(rows)):
                rows.append(row := _row(one, series))
                if left is not None and (left := left - len(row.value)) <= 0:
                    return rows
        if len(rows) >= query.limit:
            break
    return rows


def _by_time(query: HistoryQuery, file: DayFile) -> list[list[Row]]:
    """Ordered pieces of one file."""
    with _opened(file) as (connection, series):
        keys = _keys(query, series)
        if not keys:
            return []
        conditions, parameters = _times(query)
        if query.after is not None:
            sign = "<" if query.descending else ">"
            conditions.append(f"(created, row_id) {sign} (?, ?)")
            # Repeated on its own, so that the key's order can be entered at this time.
            conditions.append(f"created {sign}= ?")
            parameters += [*query.after, query.after[0]]
        groups = [f"key = {key}" for key in keys]
        if len(keys) > MAX_MERGED_SERIES:
            groups = ["1" if len(keys) == len(series) else f"key IN ({','.join(map(str, keys))})"]
        return [
            [
                _row(one, series)
                for one in _select(connection, [group, *conditions], parameters, query, "created", query.limit)
            ]
            for group in groups
        ]


def _select(
    connection: sqlite3.Connection,
    conditions: Sequence[str],
    parameters: Sequence[int],
    query: HistoryQuery,
    order: str,
    limit: int,
) -> Iterator[_Stored]:
    direction = " DESC" if query.descending else ""
    by = f"row_id{direction}" if order == "row_id" else f"created{direction}, row_id{direction}"
    return connection.execute(
        f"SELECT {_COLUMNS} FROM rows WHERE {' AND '.join(conditions)} ORDER BY {by} LIMIT ?", (*parameters, limit)
    )


def _times(query: HistoryQuery) -> tuple[list[str], list[int]]:
    conditions: list[str] = []
    parameters: list[int] = []
    if query.start is not None:
        conditions.append("created >= ?")
        parameters.append(query.start)
    if query.end is not None:
        conditions.append("created < ?")
        parameters.append(query.end)
    return conditions, parameters


def _keys(query: HistoryQuery, series: dict[int, Series]) -> list[int]:
    things, names = frozenset(query.things), frozenset(query.names)
    return [
        key
        for key, (thing_id, kind, name) in series.items()
        if (not things or thing_id in things)
        and (query.kind is None or kind == query.kind)
        and (not names or name in names)
        and (query.takes is None or query.takes(thing_id, kind, name))
    ]


def _row(stored: _Stored, series: dict[int, Series]) -> Row:
    row_id, key, created, received, value, quality, td_version, source_time = stored
    return Row(row_id, *series[key], created, received, value, quality, td_version, source_time)


def _can_hold(file: DayFile, query: HistoryQuery) -> bool:
    if query.after_row is not None:
        return file.first < query.after_row if query.descending else file.last > query.after_row
    if file.min_created is None or file.max_created is None:
        return True
    if query.start is not None and file.max_created < query.start:
        return False
    return query.end is None or file.min_created < query.end


class _opened:  # noqa: N801 - reads as a verb where it is used
    """A file with its dictionary of series; a file dropped meanwhile is empty."""

    def __init__(self, file: DayFile) -> None:
        self._path = file.path
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> tuple[sqlite3.Connection, dict[int, Series]]:
        try:
            self._connection = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, check_same_thread=False)
            # The series first, then the rows: a row's series is committed with it, so none can be missing in a
            # snapshot that starts now.
            self._connection.execute("BEGIN")
            rows = self._connection.execute("SELECT key, thing_id, kind, name FROM keys").fetchall()
        except sqlite3.OperationalError:
            self.__exit__()
            if self._path.exists():
                raise
            self._connection = sqlite3.connect(":memory:")
            return self._connection, {}
        except sqlite3.DatabaseError as error:
            self.__exit__()
            raise DamagedFile(self._path, str(error)) from error
        return self._connection, {key: (thing_id, kind, name) for key, thing_id, kind, name in rows}

    def __exit__(self, *failure: object) -> None:
        if self._connection is not None:
            self._connection.close()
        error = failure[1] if len(failure) > 1 else None
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise DamagedFile(self._path, str(error)) from error
