"""Every event and value, appended in groups; the row is the commit.

Readings that wait are written by one thread with one `executemany` and one synced commit. Row ids are given there, in
the order of `append`, after repeated messages were found, so they rise without holes (but for a repeat that only the
file's unique key recognises). Old files are dropped whole; ids are never used again.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import date
from hashlib import blake2b
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from things.errors import SkepError, StorageDamaged
from things.records import Appended, HistoryQuery, Reading, Row
from twin.history import files, reading
from twin.history.files import DayFile, day_of
from twin.history.recent import RecentIDs, Series
from twin.reserve import Reserve
from twin.writer import GroupThread, storage_error

READERS = 2
"""History reads at the same time; more wait for a thread."""

_INSERT = (
    "INSERT OR IGNORE INTO rows (row_id, key, created, mid, value, received, quality, td_version, source_time)"
    " VALUES (?,?,?,?,?,?,?,?,?)"
)

_Job = Sequence[Reading] | Callable[[], Any]


class HistoryStore:
    """Hot history in one folder; made by `open_history`."""

    def __init__(self, folder: Path, found: list[DayFile], damaged: list[Path], reserve: Reserve | None) -> None:
        self._folder = folder
        self._files = found
        self._damaged = damaged
        self._limiter = anyio.CapacityLimiter(READERS)
        self._promised = files.promised_row_id(folder)
        self._last = max((file.last for file in found), default=0)
        if damaged:
            # The newest ids may be in the file that was set aside.
            self._last = max(self._last, self._promised)
        self._connection: sqlite3.Connection | None = None
        self._keys: dict[Series, int] = {}
        self._recent = RecentIDs()
        self._thread: GroupThread[_Job, Any] = GroupThread(
            "history", self._write, finish=self._release, reserve=reserve
        )

    @property
    def last_row(self) -> int:
        """The highest row id that is committed."""
        return self._last

    @property
    def first_row(self) -> int:
        """The lowest row id that is still here; one more than `last_row` when nothing is."""
        return next((file.first for file in self._files if file.last >= file.first), self._last + 1)

    @property
    def failure(self) -> SkepError | None:
        """Why nothing is acknowledged any more; None while the store works."""
        return self._thread.failure

    @property
    def is_full(self) -> bool:
        """Whether writes are refused for lack of space."""
        return self._thread.is_full

    @property
    def damaged(self) -> Sequence[Path]:
        """Files set aside since the start because they cannot be trusted."""
        return tuple(self._damaged)

    @property
    def days(self) -> Sequence[DayFile]:
        """The files, by rising row id; the last one is being written."""
        return tuple(self._files)

    @property
    def size_bytes(self) -> int:
        """Bytes all files take on disk."""
        return sum(file.size_bytes for file in self._files)

    def append(self, readings: Sequence[Reading]) -> "asyncio.Future[Sequence[Appended]]":
        """Queue rows; the future ends when all are committed and synced, in order of the calls. Raises (in the future)
        StorageFull, StorageFailed."""
        return self._thread.submit(readings)

    async def read(self, query: HistoryQuery) -> Sequence[Row]:
        """The rows a query asks for, of what is committed; at most `query.limit`."""
        paths = reading.files_for(query, self._files)
        return await anyio.to_thread.run_sync(self._read, query, paths, limiter=self._limiter)

    async def drop(self, file: DayFile) -> None:
        """Drop a file that is not written any more."""

        def dropped() -> None:
            if file in self._files[:-1]:
                self._files = [kept for kept in self._files if kept is not file]
                files.remove(file)

        future: asyncio.Future[None] = self._thread.submit(dropped, frees=True)
        await future

    async def close(self) -> None:
        """Write what waits and let go of the files. Idempotent."""
        await self._thread.close()

    # ------------------------------------------------------------ in worker threads

    def _read(self, query: HistoryQuery, chosen: Sequence[DayFile]) -> Sequence[Row]:
        try:
            return reading.read(query, chosen)
        except reading.DamagedFile as error:
            raise StorageDamaged(f"{error.path} is damaged: {error}") from error

    # ------------------------------------------------------------ in the writer thread

    def _write(self, jobs: Sequence[_Job]) -> Sequence[Any]:
        outcomes: list[Any] = [None] * len(jobs)
        appends: list[tuple[int, Sequence[Reading]]] = []
        for index, job in enumerate(jobs):
            if callable(job):
                outcomes[index] = _attempted(job)
            else:
                appends.append((index, job))
        if appends:
            newest = max((reading.received for _, readings in appends for reading in readings), default=0)
            if newest:
                self._roll(newest)
            self._append(appends, outcomes)
        return outcomes

    def _append(self, appends: list[tuple[int, Sequence[Reading]]], outcomes: list[Any]) -> None:
        connection = self._connection
        if connection is None:  # only empty batches so far
            outcomes_of_nothing: Sequence[Appended] = ()
            for index, _ in appends:
                outcomes[index] = outcomes_of_nothing
            return
        group = _Group(self._last)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for index, readings in appends:
                outcomes[index] = [self._placed(reading, group, connection) for reading in readings]
            if group.next_row_id - 1 > self._promised:
                self._promised = group.next_row_id + files.ROW_ID_BLOCK
                files.promise_row_id(self._folder, self._promised)
            before = connection.total_changes
            connection.executemany(_INSERT, group.rows)
            repeats = self._repeats(group, connection) if connection.total_changes - before < len(group.rows) else {}
            connection.execute("COMMIT")
        except BaseException:
            self._undo(connection, group)
            raise
        if repeats:
            for index, _ in appends:
                outcomes[index] = [
                    Appended(repeats[one.row_id], True) if one.row_id in repeats else one for one in outcomes[index]
                ]
        for series, mid, row_id, received in group.identified:
            self._recent.add(series, mid, repeats.get(row_id, row_id), received)
        self._last = group.next_row_id - 1
        self._files[-1].last = self._last

    def _placed(self, reading: Reading, group: "_Group", connection: sqlite3.Connection) -> Appended:
        series = (reading.thing_id, reading.kind._value_, reading.name)
        key = self._keys.get(series)
        if key is None:
            key = self._interned(series, group, connection)
        row_id = group.next_row_id
        mid = row_id
        if reading.message_id is not None:
            mid = _hashed(reading.sender, reading.message_id)
            known = group.ids.get((key, mid)) or self._recent.find(series, mid, reading.received)
            if known is None and len(self._files) > 1:
                known = self._in_older_file(series, reading.created, mid)
            if known is not None:
                return Appended(known, True)
            group.ids[key, mid] = row_id
            group.identified.append((series, mid, row_id, reading.received))
        group.next_row_id = row_id + 1
        group.rows.append(
            (
                row_id,
                key,
                reading.created,
                mid,
                reading.value,
                reading.received,
                reading.quality,
                reading.td_version,
                reading.source_time,
            )
        )
        return Appended(row_id, False)

    def _interned(self, series: Series, group: "_Group", connection: sqlite3.Connection) -> int:
        key = len(self._keys) + 1
        connection.execute("INSERT INTO keys (key, thing_id, kind, name) VALUES (?,?,?,?)", (key, *series))
        self._keys[series] = key
        group.new_series.append(series)
        return key

    def _repeats(self, group: "_Group", connection: sqlite3.Connection) -> dict[int, int]:
        """Rows the unique key refused: their given ids and the ids under which they had been stored before."""
        found: dict[int, int] = {}
        for row in group.rows:
            query = "SELECT row_id FROM rows WHERE key = ? AND created = ? AND mid = ?"
            stored = connection.execute(query, (row[1], row[2], row[3])).fetchone()[0]
            if stored != row[0]:
                found[row[0]] = stored
        return found

    def _in_older_file(self, series: Series, created: int, mid: int) -> int | None:
        for file in reversed(self._files[:-1]):
            if file.max_created is None or not (file.min_created or 0) <= created <= file.max_created:
                continue
            found = reading.find(file.path, series, created, mid)
            if found is not None:
                return found
        return None

    def _undo(self, connection: sqlite3.Connection, group: "_Group") -> None:
        for series in group.new_series:
            del self._keys[series]
        if connection.in_transaction:
            connection.execute("ROLLBACK")

    def _roll(self, received: int) -> None:
        """Make the file of that day the one that is written."""
        day = day_of(received)
        if self._files and (day == self._files[-1].day or _is_day_before(day, self._files[-1].day)):
            if self._connection is None:
                self._open_for_writing()
            return
        self._release()
        if self._files and self._files[-1].last < self._files[-1].first:
            files.remove(self._files[-1])  # a day without a row
            self._files = self._files[:-1]
        elif self._files:
            files.close_span(self._files[-1])
        self._files = [*self._files, files.create(self._folder, day, self._last + 1)]
        self._open_for_writing()

    def _open_for_writing(self) -> None:
        connection = files.writer(self._files[-1])
        self._keys = {
            (thing_id, kind, name): key
            for key, thing_id, kind, name in connection.execute("SELECT key, thing_id, kind, name FROM keys")
        }
        series = {key: one for one, key in self._keys.items()}
        lately = connection.execute(
            "SELECT key, mid, row_id, received FROM rows WHERE mid < 0 ORDER BY row_id DESC LIMIT ?",
            (reading.RECENT_AT_START,),
        ).fetchall()
        for key, mid, row_id, received in reversed(lately):
            self._recent.add(series[key], mid, row_id, received)
        self._connection = connection

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Group:
    """What one transaction adds."""

    __slots__ = ("identified", "ids", "new_series", "next_row_id", "rows")

    def __init__(self, last: int) -> None:
        self.next_row_id = last + 1
        self.rows: list[tuple[Any, ...]] = []
        self.ids: dict[tuple[int, int], int] = {}
        self.identified: list[tuple[Series, int, int, int]] = []
        self.new_series: list[Series] = []


@asynccontextmanager
async def open_history(folder: Path, *, reserve: Reserve | None = None) -> AsyncIterator[HistoryStore]:
    """Open the history in `folder`, made if absent. Damaged files are set aside and listed in `damaged`."""

    def opened() -> tuple[list[DayFile], list[Path]]:
        folder.mkdir(parents=True, exist_ok=True)
        return files.found_files(folder)

    found, damaged = await anyio.to_thread.run_sync(opened)
    store = HistoryStore(folder, found, damaged, reserve)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


def _attempted(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:  # keeping house failed; the rows are none the worse
        return storage_error(error, "history")


def _hashed(sender: str, message_id: str) -> int:
    """63 bits of sender and message id, below zero: row ids, which stand in where there is none, are above."""
    digest = blake2b(f"{sender}\n{message_id}".encode(), digest_size=8).digest()
    return -(int.from_bytes(digest, "big") >> 1) - 1


def _is_day_before(day: str, current: str) -> bool:
    """Whether a clock set back a little reached into yesterday: then the newer file goes on."""
    return (date.fromisoformat(current) - date.fromisoformat(day)).days == 1
