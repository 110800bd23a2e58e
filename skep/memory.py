"""Which requests an agent has had and how they ended, so that one that is delivered again has its effect once.

In the program's memory, or in a file as well: then also across the end of the program. With a file a request is written
down before its handler begins, and its outcome before it is reported; both are synced.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync

from skep.handlers import Report
from things.bounded import Recent
from things.errors import StorageFailed
from things.jsontext import decode, encode

MAX_REMEMBERED = 10_000
"""Request ids an agent remembers; older ones would be carried out again if they ever came back."""

T = TypeVar("T")


class RequestMemory:
    """Request ids seen lately, and how they ended."""

    def __init__(self, limit: int = MAX_REMEMBERED) -> None:
        self._limit = limit
        self._seen = Recent[str, Report | None](limit)

    def begin(self, request_id: str) -> bool:
        """Whether the request is new; it is remembered from now on."""
        if request_id in self._seen:
            return False
        self._keep(request_id, None)
        return True

    def end(self, report: Report) -> None:
        if report.request_id in self._seen:
            self._seen[report.request_id] = report

    def outcome(self, request_id: str) -> Report | None:
        """How it ended; None while it goes on or when it is not remembered."""
        return self._seen.get(request_id)

    async def written_begun(self, request_id: str) -> None:
        """Returns when the end of the program would not make it forget that this request has begun."""

    async def written_ended(self, report: Report) -> None:
        """Returns when the end of the program would not make it forget how this request ended."""

    async def open(self) -> None:
        """Take up what a former run remembered. Raises StorageFailed."""

    async def close(self) -> None:
        """Nothing is written afterwards."""

    def _keep(self, request_id: str, outcome: Report | None) -> None:
        self._seen[request_id] = outcome


class FileMemory(RequestMemory):
    """The same in a file, which one program uses at a time."""

    def __init__(self, path: Path, limit: int = MAX_REMEMBERED) -> None:
        super().__init__(limit)
        self._path = path
        self._turn = anyio.CapacityLimiter(1)
        self._file: sqlite3.Connection | None = None

    async def open(self) -> None:
        for request_id, outcome in await self._in_turn(self._opened):
            self._keep(request_id, outcome)

    async def written_begun(self, request_id: str) -> None:
        await self._in_turn(partial(self._begun, request_id))

    async def written_ended(self, report: Report) -> None:
        await self._in_turn(partial(self._ended, report))

    async def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            await run_sync(file.close, limiter=self._turn)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        try:
            return await run_sync(work, limiter=self._turn)
        except (sqlite3.Error, OSError) as error:
            raise StorageFailed(f"{self._path}: {error}") from error

    # ------------------------------------------------------------ in a thread, one at a time

    @property
    def _db(self) -> sqlite3.Connection:
        if self._file is None:
            raise sqlite3.ProgrammingError("the memory is closed")
        return self._file

    def _opened(self) -> list[tuple[str, Report | None]]:
        # Outcomes are nobody else's business; the files beside it take its mode.
        self._path.touch(mode=0o600)
        # Autocommit: each statement below is a synced transaction of its own.
        file = sqlite3.connect(self._path, timeout=1.0, isolation_level=None, check_same_thread=False)
        try:
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = FULL")
            file.execute(
                "CREATE TABLE IF NOT EXISTS requests"
                " (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, outcome BLOB)"
            )
            rows = file.execute("SELECT id, outcome FROM requests ORDER BY number").fetchall()
            remembered = [(id_, None if text is None else Report.of(id_, decode(text))) for id_, text in rows]
        except BaseException:
            file.close()
            raise
        self._file = file
        return remembered

    def _begun(self, request_id: str) -> None:
        added = self._db.execute("INSERT OR IGNORE INTO requests (id) VALUES (?)", (request_id,))
        if added.lastrowid is not None and added.rowcount and added.lastrowid > self._limit:
            self._db.execute("DELETE FROM requests WHERE number <= ?", (added.lastrowid - self._limit,))

    def _ended(self, report: Report) -> None:
        self._db.execute("UPDATE requests SET outcome = ? WHERE id = ?", (encode(report.document()), report.request_id))
