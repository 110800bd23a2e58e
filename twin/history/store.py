"""Every event and value, appended in groups; the row is the commit.

Readings that wait are written by one thread with a few statements of many rows and one synced commit. Row ids are given
in the loop, in the order of `append` and `place`, and rise; those of repeated messages and of readings that could not
be stored are left out. Old files are dropped whole; ids are never used again, not even those of rows that a crash took,
since somebody may have seen them.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import date
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from things.errors import Invalid, SkepError, StorageDamaged
from things.records import Appended, HistoryQuery, Reading, Row
from twin.history import files, reading
from twin.history.files import DayFile, day_of
from twin.history.recent import MAX_RECENT, Identity, RecentIDs, Series
from twin.history.retention import Budget, Excess, excess
from twin.reserve import Reserve
from twin.writer import GroupThread, is_storage_error, storage_error

READERS = 2
"""History reads at the same time; more wait for a thread."""

_COLUMNS = "row_id, key, created, mid, value, received, quality, td_version, source_time"
_INSERTS = tuple(
    (count, f"INSERT OR IGNORE INTO rows ({_COLUMNS}) VALUES {','.join(['(?,?,?,?,?,?,?,?,?)'] * count)}")
    for count in (256, 64, 16, 4, 1)
)
"""Statements by number of rows. The driver lets other threads run at every step of a statement and waits for its turn
afterwards; with one row a step (`executemany`) a busy event loop makes that the greater part of a commit."""


class _Append(NamedTuple):
    """Readings with the row ids given to them, from `first` on."""

    first: int
    readings: Sequence[Reading]


_Job = _Append | Callable[[], Any]


class Gone(NamedTuple):
    """What is no longer hot: all of it has a lower row id than `before_row` and was created at `created` or earlier."""

    before_row: int
    created: int


class HistoryStore:
    """Hot history in one folder; made by `open_history`."""

    def __init__(
        self,
        folder: Path,
        found: list[DayFile],
        damaged: list[Path],
        reserve: Reserve | None,
        *,
        durable: bool = True,
    ) -> None:
        self._folder = folder
        self._durable = durable
        self._files = found
        self._damaged = damaged
        self._limiter = anyio.CapacityLimiter(READERS)
        self._promised = files.promised_row_id(folder)
        # Ids up to the promise may have been seen on rows that were lost; a clean end takes the promise back.
        self._last = max(max((file.last for file in found), default=0), self._promised)
        self._given = self._shown = self._last
        self._gone_created = files.gone_created(folder)
        self._has_hole = files.has_set_aside(folder)
        self._connection: sqlite3.Connection | None = None
        self._keys: dict[Series, int] = {}
        self._recent = RecentIDs()
        self._thread: GroupThread[_Job, Any] = GroupThread("history", self._write, finish=self._finish, reserve=reserve)

    @property
    def last_row(self) -> int:
        """The highest row id that is committed."""
        return self._last

    @property
    def first_row(self) -> int:
        """The lowest row id that is still here; one more than `last_row` when nothing is."""
        return next((file.first for file in self._files if file.last >= file.first), self._last + 1)

    @property
    def gone(self) -> Gone | None:
        """What has been stored but is not here any more; None while every row ever stored is."""
        if self._has_hole:
            return Gone(files.MAX_INTEGER, files.MAX_INTEGER)
        if self.first_row == 1:
            return None
        return Gone(self.first_row, files.MAX_INTEGER if self._gone_created is None else self._gone_created)

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
        first = self._given + 1
        self._given += len(readings)
        return self._thread.submit(_Append(first, readings))

    def place(self, reading: Reading) -> "tuple[int, asyncio.Future[Sequence[Appended]]] | None":
        """Queue a row whose commit nobody waits for and say its id at once; None where that takes a commit: it may be
        a repeat, or no id is promised. `read` sees it from now on. The future is that of `append`."""
        row_id = self._given + 1
        if reading.message_id is not None or row_id > self._promised or self.is_full or self.failure is not None:
            return None
        self._given = self._shown = row_id
        return row_id, self._thread.submit(_Append(row_id, (reading,)), soon=False)

    async def read(self, query: HistoryQuery) -> Sequence[Row]:
        """The rows a query asks for, of what is committed; at most `query.limit`."""
        await self._settled()
        paths = reading.files_for(query, self._files)
        return await anyio.to_thread.run_sync(self._read, query, paths, limiter=self._limiter)

    async def latest(self, query: HistoryQuery) -> Sequence[Row]:
        """The newest row, by (created, row id), of every series the query names; its cursors and limit do not count."""
        await self._settled()
        paths = reading.files_for(query, self._files)
        return await anyio.to_thread.run_sync(self._latest, query, paths, limiter=self._limiter)

    async def trim(self, budget: Budget, *, now: int, sealed: int) -> Excess:
        """Drop whole files until the budget is kept, as far as it may be; `sealed` is the last row the lake has."""
        found = excess(self._files, budget, now=now, sealed=sealed)
        for file in found.files:
            await self.drop(file)
        return found

    async def drop(self, file: DayFile) -> None:
        """Drop a file that is not written any more."""

        def dropped() -> None:
            if file in self._files[:-1]:
                self._note_gone(file)
                self._files = [kept for kept in self._files if kept is not file]
                files.remove(file)

        future: asyncio.Future[None] = self._thread.submit(dropped, frees=True)
        await future

    async def close(self) -> None:
        """Write what waits and let go of the files. Idempotent."""
        await self._thread.close()

    async def _settled(self) -> None:
        """Return when every row is committed whose id was shown before its commit."""
        if self._shown > self._last:
            with suppress(SkepError):  # what cannot be written is not there to be read
                await self._thread.submit(_nothing)

    # ------------------------------------------------------------ in worker threads

    def _read(self, query: HistoryQuery, chosen: Sequence[DayFile]) -> Sequence[Row]:
        try:
            return reading.read(query, chosen)
        except reading.DamagedFile as error:
            raise StorageDamaged(f"{error.path} is damaged: {error}") from error

    def _latest(self, query: HistoryQuery, chosen: Sequence[DayFile]) -> Sequence[Row]:
        try:
            return reading.latest(query, chosen)
        except reading.DamagedFile as error:
            raise StorageDamaged(f"{error.path} is damaged: {error}") from error

    # ------------------------------------------------------------ in the writer thread

    def _note_gone(self, file: DayFile) -> None:
        """Before a file goes, so that at worst too much is believed gone."""
        if file.last < file.first or file.max_created is None:
            return
        if self._gone_created is None and self.first_row > 1:
            return  # what went before was not written down, so nothing can be said of all of it
        if self._gone_created is None or file.max_created > self._gone_created:
            files.note_gone_created(self._folder, file.max_created)
            self._gone_created = file.max_created

    def _write(self, jobs: Sequence[_Job]) -> Sequence[Any]:
        outcomes: list[Any] = [None] * len(jobs)
        appends: list[tuple[int, _Append]] = []
        for index, job in enumerate(jobs):
            if isinstance(job, _Append):
                appends.append((index, job))
            else:
                outcomes[index] = _attempted(job)
        if appends:
            newest = max((one.received for _, append in appends for one in append.readings), default=0)
            if newest:
                self._recent.turn(newest)
                self._roll(newest)
            self._append_together(appends, outcomes)
        return outcomes

    def _append_together(self, appends: list[tuple[int, _Append]], outcomes: list[Any]) -> None:
        try:
            self._append(appends, outcomes)
        except Exception as error:
            if is_storage_error(error):
                raise
            if len(appends) == 1:
                # A time beyond 64 bits, say: nothing of this call is stored.
                outcomes[appends[0][0]] = Invalid(f"readings that cannot be stored: {error}")
                return
            for one in appends:
                self._append_together([one], outcomes)

    def _append(self, appends: list[tuple[int, _Append]], outcomes: list[Any]) -> None:
        connection = self._connection
        if connection is None:  # only empty batches so far
            outcomes_of_nothing: Sequence[Appended] = ()
            for index, _ in appends:
                outcomes[index] = outcomes_of_nothing
            return
        group = _Group()
        last = max(append.first + len(append.readings) - 1 for _, append in appends)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for index, append in appends:
                outcomes[index] = self._placed(append, group, connection)
            if last > self._promised - files.ROW_ID_BLOCK // 2:
                files.promise_row_id(self._folder, last + files.ROW_ID_BLOCK)
                self._promised = last + files.ROW_ID_BLOCK
            before = connection.total_changes
            _insert(connection, group.rows)
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
            for identity, row_id in group.identified:
                self._recent.add(identity, repeats.get(row_id, row_id))
        self._last = max(self._last, last)
        self._files[-1].last = self._last

    def _placed(self, append: _Append, group: "_Group", connection: sqlite3.Connection) -> Sequence[Appended]:
        # The one loop that every reading goes through: what it looks up is local, and named tuples are made without
        # their Python-level constructor.
        make, keys, rows = tuple.__new__, self._keys, group.rows
        row_id = append.first - 1
        placed: list[Appended] = []
        for one in append.readings:
            row_id += 1
            series = (one.thing_id, one.kind._value_, one.name)
            key = keys.get(series) or self._interned(series, group, connection)
            mid = row_id
            if one.message_id is not None:
                mid = _hashed(one.sender, one.message_id)
                identity = (mid, series)
                known = self._recent.find(identity)
                if known is None and len(self._files) > 1:
                    known = self._in_older_file(series, one.created, mid)
                if known is not None:
                    placed.append(Appended(known, True))
                    continue
                self._recent.add(identity, row_id)
                group.identified.append((identity, row_id))
            rows.append(
                (
                    row_id,
                    key,
                    one.created,
                    mid,
                    one.value,
                    one.received,
                    one.quality,
                    one.td_version,
                    one.source_time,
                )
            )
            placed.append(make(Appended, (row_id, False)))
        return placed

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
        for identity, _ in group.identified:
            self._recent.forget(identity)
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
        connection = files.writer(self._files[-1], durable=self._durable)
        self._keys = {
            (thing_id, kind, name): key
            for key, thing_id, kind, name in connection.execute("SELECT key, thing_id, kind, name FROM keys")
        }
        series = {key: one for one, key in self._keys.items()}
        lately = connection.execute(
            "SELECT key, mid, row_id FROM rows WHERE mid < 0 ORDER BY row_id DESC LIMIT ?", (MAX_RECENT,)
        )
        for key, mid, row_id in lately:
            self._recent.add((mid, series[key]), row_id)
        self._connection = connection

    def _finish(self) -> None:
        self._release()
        used = max(self._last, self._shown)
        if self._promised > used and self.failure is None:
            files.promise_row_id(self._folder, used)

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Group:
    """What one transaction adds."""

    __slots__ = ("identified", "new_series", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.identified: list[tuple[Identity, int]] = []
        self.new_series: list[Series] = []


@asynccontextmanager
async def open_history(
    folder: Path, *, reserve: Reserve | None = None, durable: bool = True
) -> AsyncIterator[HistoryStore]:
    """Open the history in `folder`, made if absent. Damaged files are set aside and listed in `damaged`. Not `durable`:
    commits survive the process, but not all of them a power cut."""

    def opened() -> tuple[list[DayFile], list[Path]]:
        folder.mkdir(parents=True, exist_ok=True)
        return files.found_files(folder)

    found, damaged = await anyio.to_thread.run_sync(opened)
    store = HistoryStore(folder, found, damaged, reserve, durable=durable)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


def _insert(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    first = 0
    for count, statement in _INSERTS:
        while len(rows) - first >= count:
            connection.execute(statement, list(chain.from_iterable(rows[first : first + count])))
            first += count


def _attempted(job: Callable[[], Any]) -> Any:
    try:
        return job()
    except Exception as error:  # keeping house failed; the rows are none the worse
        return storage_error(error, "history")


def _nothing() -> None:
    """A job that ends when everything before it is committed."""


def _hashed(sender: str, message_id: str) -> int:
    """63 bits of sender and message id, below zero: row ids, which stand in where there is none, are above."""
    return -(int.from_bytes(blake2b(f"{sender}\n{message_id}".encode(), digest_size=8).digest()) >> 1) - 1


def _is_day_before(day: str, current: str) -> bool:
    """Whether a clock set back a little reached into yesterday: then the newer file goes on."""
    return (date.fromisoformat(current) - date.fromisoformat(day)).days == 1
