"""The node's own file: sessions over a restart, named addresses, registrations.

One writer thread; what a method stored is synced when it returns. It stands apart from the twin's database because it
is the binding's own: bindings know no store, and the file can be deleted without losing a reading.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread
from pydantic_core import from_json, to_json

from things.errors import NewerSchema, StorageDamaged, StorageFailed, StorageFull

T = TypeVar("T")

SCHEMA = 1

_TABLES = """
CREATE TABLE sessions (token TEXT PRIMARY KEY, until INTEGER NOT NULL, document BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE addresses (address TEXT PRIMARY KEY, account TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE registrations (url TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID;
"""


class NodeStore:
    """Rows as plain JSON documents; who reads them knows their shape."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._limiter = CapacityLimiter(1)
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Raises StorageDamaged, NewerSchema."""
        await self._run(self._open)

    async def close(self) -> None:
        with CancelScope(shield=True):
            await self._run(self._close)

    # ------------------------------------------------------------ registrations

    async def registrations(self) -> list[dict[str, Any]]:
        return [from_json(row[0]) for row in await self._read("SELECT document FROM registrations")]

    async def put_registration(self, url: str, document: dict[str, Any]) -> None:
        await self._write([("INSERT OR REPLACE INTO registrations VALUES (?, ?)", [(url, to_json(document))])])

    async def put_registrations(self, documents: dict[str, dict[str, Any]]) -> None:
        rows = [(url, to_json(document)) for url, document in documents.items()]
        await self._write([("INSERT OR REPLACE INTO registrations VALUES (?, ?)", rows)])

    async def drop_registrations(self, urls: list[str]) -> None:
        await self._write([("DELETE FROM registrations WHERE url = ?", [(url,) for url in urls])])

    # ------------------------------------------------------------ named addresses

    async def named(self) -> dict[str, str]:
        """Accounts by the addresses they named."""
        return dict(await self._read("SELECT address, account FROM addresses"))

    async def put_named(self, addresses: list[str], account: str) -> None:
        rows = [(address, account) for address in addresses]
        await self._write([("INSERT OR REPLACE INTO addresses VALUES (?, ?)", rows)])

    async def drop_named(self, addresses: list[str]) -> None:
        await self._write([("DELETE FROM addresses WHERE address = ?", [(address,) for address in addresses])])

    # ------------------------------------------------------------ sessions

    async def sessions(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Token hash, when it ends, and what was kept."""
        rows = await self._read("SELECT token, until, document FROM sessions")
        return [(token, until, from_json(document)) for token, until, document in rows]

    async def put_sessions(self, sessions: list[tuple[str, int, dict[str, Any]]]) -> None:
        """Take the place of all that were kept."""
        rows = [(token, until, to_json(document)) for token, until, document in sessions]
        await self._write([("DELETE FROM sessions", [()]), ("INSERT INTO sessions VALUES (?, ?, ?)", rows)])

    # ------------------------------------------------------------ in the thread

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._limiter)

    async def _read(self, query: str) -> list[Any]:
        return await self._run(lambda: self._opened.execute(query).fetchall())

    async def _write(self, steps: list[tuple[str, list[Any]]]) -> None:
        # A caller who leaves must not leave half a transaction behind.
        with CancelScope(shield=True):
            await self._run(partial(self._written, steps))

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageFailed("the node's file is closed")
        return self._connection

    def _written(self, steps: list[tuple[str, list[Any]]]) -> None:
        connection = self._opened
        try:
            with connection:
                for statement, rows in steps:
                    connection.executemany(statement, rows)
        except sqlite3.Error as error:
            if error.sqlite_errorname == "SQLITE_FULL":
                raise StorageFull from error
            raise StorageFailed(f"the node's file cannot be written: {error}") from error

    def _open(self) -> None:
        try:
            connection = sqlite3.connect(self._path or ":memory:", check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        except sqlite3.DatabaseError as error:
            raise StorageDamaged(f"{self._path} cannot be read ({error}); move it away to start afresh") from error
        if version > SCHEMA:
            connection.close()
            raise NewerSchema(str(self._path), version, SCHEMA)
        if self._path is not None:
            self._path.chmod(0o600)
        self._connection = connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
