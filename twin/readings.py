"""Stored readings as one series, wherever they lie: hot files, and the lake for what is no longer hot.

Both orders, (created, row id) and row id, are total and the same in both places, so a cursor stays good while rows are
sealed and hot files go. A row is taken from the hot files as long as one of them holds it. The lake's process is asked
only when the query can reach rows that are gone from there; where it cannot answer, its error is the answer, since a
page with a hole would look whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import Any, Protocol

from things.errors import Unavailable
from things.records import HistoryQuery, Row
from twin.history.store import Gone, HistoryStore
from twin.windows import Windows

SUMMED_AT_ONCE = 2_000
"""Rows summed up before others have a turn in the loop."""


class Sealed(Protocol):
    """The lake, as far as its readings are asked for; `before_row` leaves out row ids from there on."""

    async def read(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        """Rows in the query's order, at most its limit."""
        ...

    async def latest(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        """The newest row, by (created, row id), of every series the query names."""
        ...

    async def windows(self, query: HistoryQuery, window_us: int) -> Sequence[Mapping[str, Any]]:
        """Sums of hot and sealed readings by series and window, at most the query's limit."""
        ...


class Readings:
    """All readings of one gateway."""

    def __init__(self, hot: HistoryStore, sealed: Sealed) -> None:
        self._hot = hot
        self._sealed = sealed

    @property
    def last_row(self) -> int:
        """The highest row id that is committed."""
        return self._hot.last_row

    async def read(self, query: HistoryQuery) -> Sequence[Row]:
        """The rows a query asks for, at most `query.limit`. Raises StorageDamaged, Unavailable, TimedOut when what is
        sealed cannot be read."""
        if query.limit <= 0:
            return []
        hot, gone = await self._hot_rows(query)
        if gone is None or not _reaches(query, hot, gone):
            return hot
        sealed = await self._sealed.read(_narrowed(query, gone), before_row=gone.before_row)
        return _merged(query, hot, sealed)

    async def latest(self, query: HistoryQuery) -> Sequence[Row]:
        """The newest row, by (created, row id), of every series the query names; its cursors and limit do not count.
        Raises as `read`."""
        while True:
            gone = self._hot.gone
            rows = await self._hot.latest(query)
            if gone == self._hot.gone:
                break
        if gone is None or (query.start is not None and query.start > gone.created):
            return rows
        newest = {(row.thing_id, row.kind, row.name): row for row in rows}
        for row in await self._sealed.latest(query, before_row=gone.before_row):
            series = (row.thing_id, row.kind, row.name)
            standing = newest.get(series)
            if standing is None or (standing.created, standing.row_id) < (row.created, row.row_id):
                newest[series] = row
        return list(newest.values())

    async def windows(self, query: HistoryQuery, window_us: int) -> Sequence[Mapping[str, Any]]:
        """Sums by series and window, in that order, at most `query.limit`: `{thing_id, kind, name, begin, count, avg,
        min, max, sum, first, last}`; `begin` is µs UTC, first and last are JSON text. Raises as `read`."""
        try:
            return await self._sealed.windows(query, window_us)
        except Unavailable:
            # Without the lake's process everything that is still hot can be summed up here, if more slowly.
            if self._hot.gone is not None:
                raise
            return await self._summed(query, window_us)

    async def _summed(self, query: HistoryQuery, window_us: int) -> Sequence[Mapping[str, Any]]:
        windows, page = Windows(window_us), replace(query, limit=SUMMED_AT_ONCE)
        while True:
            rows = await self.read(page)
            windows.take(rows)
            if len(rows) < SUMMED_AT_ONCE or len(windows) > query.limit:
                return windows.found(query.limit)
            page = replace(page, after=(rows[-1].created, rows[-1].row_id))

    async def _hot_rows(self, query: HistoryQuery) -> tuple[Sequence[Row], Gone | None]:
        """The hot rows, and what was gone while they were read."""
        while True:
            gone = self._hot.gone
            rows = await self._hot.read(query)
            # A file that went meanwhile may have been read in part; all of it is in the lake by now.
            if gone == self._hot.gone:
                return rows, gone


def _reaches(query: HistoryQuery, hot: Sequence[Row], gone: Gone) -> bool:
    """Whether rows that are gone can belong to this page."""
    is_full = len(hot) >= query.limit
    if query.after_row is not None:
        if query.descending:
            return not (is_full and hot[-1].row_id >= gone.before_row)
        return query.after_row + 1 < gone.before_row
    begin = query.start
    if query.descending:
        if is_full and hot[-1].created > gone.created:
            return False
    elif query.after is not None:
        begin = max(query.after[0], query.after[0] if begin is None else begin)
    return begin is None or begin <= gone.created


def _narrowed(query: HistoryQuery, gone: Gone) -> HistoryQuery:
    """The query with its cursor as a bound of time too, so that the lake opens no file that the cursor has passed."""
    if query.after is None or query.after_row is not None:
        return query
    seen = query.after[0]
    if query.descending:
        return replace(query, end=seen + 1 if query.end is None else min(query.end, seen + 1))
    return replace(query, start=seen if query.start is None else max(query.start, seen))


def _merged(query: HistoryQuery, hot: Sequence[Row], sealed: Sequence[Row]) -> Sequence[Row]:
    """Both in one order, a row that is in both once."""
    sign = -1 if query.descending else 1
    if query.after_row is not None:
        ordered = merge(hot, sealed, key=lambda row: (sign * row.row_id, 0))
    else:
        ordered = merge(hot, sealed, key=lambda row: (sign * row.created, sign * row.row_id))
    rows: list[Row] = []
    for row in ordered:
        if rows and rows[-1].row_id == row.row_id:
            continue
        rows.append(row)
        if len(rows) == query.limit:
            break
    return rows
