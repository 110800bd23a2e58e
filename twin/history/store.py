"""Every event and value, appended in groups; the row is the commit.

Readings that wait are written by one thread with a few statements of many rows and one synced commit. Row ids are given
in the loop, in the order of `append` and `place`, and rise; those of repeated messages and of readings that could not
be stored are left out. Old files are dropped whole; ids are never used again, not even those of rows that a crash took,
since somebody may have seen them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from things.callbacks import ignore
from things.errors import Invalid, SkepError, StorageDamaged
from things.records import Appended, HistoryQuery, Reading, Row
from twin.history import files, reading
from twin.history.files import DayFile
from twin.history.retention import Excess, HotBudget, excess
from twin.history.writing import Append, DayWriter, Job
from twin.reserve import Reserve
from twin.writer import GroupThread

READERS = 2
"""History reads at the same time; more wait for a thread."""
PATIENCE_S = 0.05
"""How long a placed row may lie until others are placed beside it."""
MOST_PLACED = 1_024
"""Placed rows that make one job."""
MAX_UNSTORED = 100_000
"""Placed rows that wait for the disk; beyond these nothing is placed, and the caller has to wait."""


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
        stamp: int = 0,
        max_wait_s: float = 0.0,
    ) -> None:
        self._writer = DayWriter(folder, found, durable=durable, stamp=stamp)
        self._damaged = damaged
        self._has_hole = files.has_set_aside(folder)
        self._limiter = anyio.CapacityLimiter(READERS)
        self._loop = asyncio.get_running_loop()
        self._given = self._shown = self._writer.last
        self._placed: list[Reading] = []
        """Rows that have their ids and were not handed to the thread; the newest ids are theirs."""
        self._placing: asyncio.TimerHandle
        self._unstored = 0
        """Placed rows handed to the thread and not stored yet."""
        self._lost: Callable[[int, BaseException], None] = ignore
        self._dropping: Callable[[DayFile], Awaitable[None]] = _ignore_file
        self._thread: GroupThread[Job, Any] = GroupThread(
            "history", self._writer.write, finish=self._finish, reserve=reserve, max_wait_s=max_wait_s
        )

    @property
    def last_row(self) -> int:
        """The highest row id that is committed."""
        return self._writer.last

    @property
    def first_row(self) -> int:
        """The lowest row id that is still here; one more than `last_row` when nothing is."""
        return self._writer.first

    @property
    def gone(self) -> Gone | None:
        """What has been stored but is not here any more; None while every row ever stored is."""
        if self._has_hole:
            return Gone(files.MAX_INTEGER, files.MAX_INTEGER)
        if self.first_row == 1:
            return None
        created = self._writer.gone_created
        return Gone(self.first_row, files.MAX_INTEGER if created is None else created)

    @property
    def writer(self) -> GroupThread[Any, Any]:
        """What commits, for what is measured of it."""
        return self._thread

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
        return tuple(self._writer.files)

    @property
    def size_bytes(self) -> int:
        """Bytes all files take on disk."""
        return sum(file.size_bytes for file in self._writer.files)

    def append(self, readings: Sequence[Reading]) -> "asyncio.Future[Sequence[Appended]]":
        """Queue rows; the future ends when all are committed and synced, in order of the calls. Raises (in the future)
        StorageFull, StorageFailed."""
        self._submit_placed()
        first = self._given + 1
        self._given += len(readings)
        return self._thread.submit(Append(first, readings))

    def place(self, reading: Reading) -> int | None:
        """Queue a row whose commit no one waits for and say its id at once; None where that takes a commit: it may be
        a repeat, or no id is promised. `read` sees it from now on."""
        row_id, placed = self._given + 1, self._placed
        if reading.message_id is not None or row_id > self._writer.promised:
            return None
        if not placed:
            if self.is_full or self.failure is not None or self._unstored > MAX_UNSTORED:
                return None
            self._placing = self._loop.call_later(PATIENCE_S, self._submit_placed)
        placed.append(reading)
        self._given = self._shown = row_id
        if len(placed) >= MOST_PLACED:
            self._submit_placed()
        return row_id

    def on_lost(self, callback: Callable[[int, BaseException], None]) -> None:
        """Tell `callback`, in the loop, how many placed rows could not be stored, and why."""
        self._lost = callback

    def on_drop(self, callback: Callable[[DayFile], Awaitable[None]]) -> None:
        """Wait for `callback` before a file is dropped."""
        self._dropping = callback

    def _submit_placed(self) -> None:
        """Hand over what was placed, as one job; before anything else, since ids rise from job to job."""
        placed, self._placed = self._placed, []
        if placed:
            self._placing.cancel()
            self._unstored += len(placed)
            job = Append(self._given - len(placed) + 1, placed, is_apart=True)
            self._thread.submit(job).add_done_callback(partial(self._stored, len(placed)))

    def _stored(self, count: int, stored: "asyncio.Future[Sequence[Appended]]") -> None:
        self._unstored -= count
        error = stored.exception()
        if error is not None:
            self._lost(count, error)
        elif (missing := count - len(stored.result())) > 0:
            self._lost(missing, Invalid("readings that cannot be stored"))

    async def answered(self) -> int:
        """A row up to which all who appended have been answered, and what they do then is done. Raises StorageFull,
        StorageFailed."""
        last = self.last_row
        await self._thread.submit(ignore)  # answers come in the order of the jobs
        return last

    async def read(self, query: HistoryQuery) -> Sequence[Row]:
        """The rows a query asks for, of what is committed; at most `query.limit`."""
        await self._settled()
        paths = reading.files_for(query, self._writer.files)
        return await anyio.to_thread.run_sync(self._read, query, paths, limiter=self._limiter)

    async def latest(self, query: HistoryQuery) -> Sequence[Row]:
        """The newest row, by (created, row id), of every series the query names; its cursors and limit do not count."""
        await self._settled()
        paths = reading.files_for(query, self._writer.files)
        return await anyio.to_thread.run_sync(self._latest, query, paths, limiter=self._limiter)

    async def horizon(self, query: HistoryQuery, *, max_bytes: int, received: int) -> int:
        """The row id behind which the newest rows after `query.after_row` lie that were received since then (µs) and
        take no more than so many bytes; at least that of the last row that is not here any more."""
        await self._settled()
        after = max(query.after_row or 0, self.first_row - 1)
        bounded = replace(query, after_row=after)
        paths = reading.files_for(bounded, self._writer.files)
        found = partial(self._horizon, bounded, paths, max_bytes=max_bytes, received=received)
        return await anyio.to_thread.run_sync(found, limiter=self._limiter)

    async def trim(self, budget: HotBudget, *, now: int, sealed: int) -> Excess:
        """Drop whole files until the budget is kept, as far as it may be; `sealed` is the last row the lake has."""
        found = excess(self._writer.files, budget, now=now, sealed=sealed)
        for file in found.files:
            await self.drop(file)
        return found

    async def drop(self, file: DayFile) -> None:
        """Drop a file that is not written any more."""
        await self._dropping(file)
        future: asyncio.Future[None] = self._thread.submit(partial(self._writer.drop, file), frees=True)
        await future

    async def close(self) -> None:
        """Write what waits and let go of the files. Idempotent."""
        self._submit_placed()
        await self._thread.close()

    async def _settled(self) -> None:
        """Return when every row is committed whose id was shown before its commit."""
        if self._shown > self._writer.last:
            self._submit_placed()
            with suppress(SkepError):  # what cannot be written is not there to be read
                await self._thread.submit(ignore)

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

    def _horizon(self, query: HistoryQuery, chosen: Sequence[DayFile], *, max_bytes: int, received: int) -> int:
        try:
            return reading.horizon(query, chosen, max_bytes=max_bytes, received=received)
        except reading.DamagedFile as error:
            raise StorageDamaged(f"{error.path} is damaged: {error}") from error

    # ------------------------------------------------------------ in the writer thread

    def _finish(self) -> None:
        self._writer.release()
        if self.failure is None:
            self._writer.take_back(max(self._writer.last, self._shown))


@asynccontextmanager
async def open_history(
    folder: Path, *, reserve: Reserve | None = None, durable: bool = True, stamp: int = 0, max_wait_s: float = 0.0
) -> AsyncIterator[HistoryStore]:
    """Open the history in `folder`, made if absent. Damaged files are set aside and listed in `damaged`. Not `durable`:
    commits survive the process, but not all of them a power cut. New files carry `stamp`. A reading may wait up to
    `max_wait_s` for others that share its commit."""

    def opened() -> tuple[list[DayFile], list[Path]]:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return files.found_files(folder)

    found, damaged = await anyio.to_thread.run_sync(opened)
    store = HistoryStore(folder, found, damaged, reserve, durable=durable, stamp=stamp, max_wait_s=max_wait_s)
    try:
        yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.close()


async def _ignore_file(file: DayFile) -> None:
    """Let the file go."""
