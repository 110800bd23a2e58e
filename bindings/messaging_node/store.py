"""The node's own file: sessions over a restart, named addresses, registrations.

One writer thread; what a method stored is synced when it returns. It stands apart from the twin's database because it
is the binding's own: bindings know no store, and the file can be deleted without losing a reading.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread
from pydantic_core import from_json, to_json

from bindings.messaging_node.named import Owner
from things.errors import NewerSchema, StorageDamaged, StorageFailed, StorageFull
from things.identity import AccountType, Principal
from things.whole_files import refuse_unless_damage

T = TypeVar("T")

Step = tuple[str, tuple[Any, ...]]
"""One statement and its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One session as it is kept."""

    session_id: str
    token_hash: str | None
    """None for runtimes that connect without a handshake."""
    runtime_url: str
    principal: Principal
    until: int | None
    """When it ends unless it comes back (µs UTC); None while it has a connection."""


@dataclass(slots=True)
class KeptSession:
    """A session as it was found, with what it had."""

    row: SessionRow
    held: list[tuple[str, bool, str | None]] = field(default_factory=list)
    """Address, whether it was only claimed by listening, allocation key."""
    heard: list[str] = field(default_factory=list)


def _first_schema(connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE sessions (token TEXT PRIMARY KEY, until INTEGER NOT NULL, document BLOB NOT NULL) WITHOUT ROWID"
    )
    connection.execute("CREATE TABLE addresses (address TEXT PRIMARY KEY, account TEXT NOT NULL) WITHOUT ROWID")
    connection.execute("CREATE TABLE registrations (url TEXT PRIMARY KEY, document BLOB NOT NULL) WITHOUT ROWID")


def _sessions_by_address(connection: sqlite3.Connection) -> None:
    """What a session has, a row each, so that one change is one row. Those kept in one piece end here: they would have
    lived for minutes, and did not say who their clients were."""
    connection.execute("DROP TABLE sessions")
    connection.execute(
        "CREATE TABLE sessions (session TEXT PRIMARY KEY, token TEXT, runtime_url TEXT NOT NULL,"
        " principal BLOB NOT NULL, until INTEGER) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE held (session TEXT NOT NULL, address TEXT NOT NULL, claimed INTEGER NOT NULL, key TEXT,"
        " PRIMARY KEY (session, address)) WITHOUT ROWID"
    )
    connection.execute(
        "CREATE TABLE heard (session TEXT NOT NULL, address TEXT NOT NULL,"
        " PRIMARY KEY (session, address)) WITHOUT ROWID"
    )


def _owners_by_id(connection: sqlite3.Connection) -> None:
    """Accounts of one name told apart; those that named addresses before are the ones of the name."""
    connection.execute("ALTER TABLE addresses ADD COLUMN account_id TEXT")


_DROPPED = (
    "DELETE FROM sessions WHERE session = ?",
    "DELETE FROM held WHERE session = ?",
    "DELETE FROM heard WHERE session = ?",
)

_MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_first_schema, _sessions_by_address, _owners_by_id)
SCHEMA = len(_MIGRATIONS)


class NodeStore:
    """Registrations as JSON documents, whose shape their readers know; sessions by rows."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._limiter = CapacityLimiter(1)
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Open the file and read all of it once. Raises StorageDamaged, also for what no start could go on with;
        NewerSchema."""
        await self._run(self._open)
        try:
            for load in (self.registrations, self.named, self.sessions):
                await load()
        except (sqlite3.Error, ValueError, TypeError, LookupError) as error:
            await self.close()
            refuse_unless_damage(self._path or Path(), error)
            raise StorageDamaged(f"{self._path} holds what cannot be read ({error}); move it away") from error

    async def close(self) -> None:
        with CancelScope(shield=True):
            await self._run(self._close)

    async def write(self, steps: Sequence[Step]) -> None:
        """Carry out steps in their order, in one transaction. Raises StorageFull, StorageFailed; then none counts."""
        # A caller who leaves must not leave half a transaction behind.
        with CancelScope(shield=True):
            await self._run(partial(self._written, steps))

    # ------------------------------------------------------------ registrations

    async def registrations(self) -> list[dict[str, Any]]:
        return [from_json(row[0]) for row in await self._read("SELECT document FROM registrations")]

    async def put_registrations(self, documents: dict[str, dict[str, Any]]) -> None:
        put = "INSERT OR REPLACE INTO registrations VALUES (?, ?)"
        await self.write([(put, (url, to_json(document))) for url, document in documents.items()])

    async def drop_registrations(self, urls: Iterable[str]) -> None:
        await self.write([("DELETE FROM registrations WHERE url = ?", (url,)) for url in urls])

    # ------------------------------------------------------------ named addresses

    async def named(self) -> dict[str, Owner]:
        """Owners by the addresses they named."""
        rows = await self._read("SELECT address, account, account_id FROM addresses")
        return {address: Owner(account, account_id) for address, account, account_id in rows}

    async def put_named(self, addresses: Iterable[str], owner: Owner) -> None:
        put = "INSERT OR REPLACE INTO addresses (address, account, account_id) VALUES (?, ?, ?)"
        await self.write([(put, (address, *owner)) for address in addresses])

    async def drop_named(self, addresses: Iterable[str]) -> None:
        await self.write([("DELETE FROM addresses WHERE address = ?", (address,)) for address in addresses])

    # ------------------------------------------------------------ sessions

    async def sessions(self) -> list[KeptSession]:
        """All that were kept, with what they had."""
        found: dict[str, KeptSession] = {}
        for session, token, runtime_url, principal, until in await self._read("SELECT * FROM sessions"):
            document = from_json(principal)
            row = SessionRow(
                session_id=session,
                token_hash=token,
                runtime_url=runtime_url,
                principal=Principal(**{**document, "type": AccountType(document["type"])}),
                until=until,
            )
            found[session] = KeptSession(row)
        for session, address, claimed, key in await self._read("SELECT session, address, claimed, key FROM held"):
            if session in found:
                found[session].held.append((address, bool(claimed), key))
        for session, address in await self._read("SELECT session, address FROM heard"):
            if session in found:
                found[session].heard.append(address)
        return list(found.values())

    @staticmethod
    def session_put(row: SessionRow) -> Step:
        values = (row.session_id, row.token_hash, row.runtime_url, to_json(asdict(row.principal)), row.until)
        return "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?)", values

    @staticmethod
    def session_away(session_id: str, until: int | None) -> Step:
        return "UPDATE sessions SET until = ? WHERE session = ?", (until, session_id)

    @staticmethod
    def session_dropped(session_id: str) -> Sequence[Step]:
        return [(statement, (session_id,)) for statement in _DROPPED]

    @staticmethod
    def address_held(session_id: str, address: str, is_claimed: bool, key: str | None) -> Step:
        return "INSERT OR REPLACE INTO held VALUES (?, ?, ?, ?)", (session_id, address, is_claimed, key)

    @staticmethod
    def address_released(session_id: str, address: str) -> Step:
        return "DELETE FROM held WHERE session = ? AND address = ?", (session_id, address)

    @staticmethod
    def address_heard(session_id: str, address: str) -> Step:
        return "INSERT OR IGNORE INTO heard VALUES (?, ?)", (session_id, address)

    @staticmethod
    def address_unheard(session_id: str, address: str) -> Step:
        return "DELETE FROM heard WHERE session = ? AND address = ?", (session_id, address)

    # ------------------------------------------------------------ in the thread

    async def _run(self, work: Callable[[], T]) -> T:
        return await to_thread.run_sync(work, limiter=self._limiter)

    async def _read(self, query: str) -> list[Any]:
        return await self._run(lambda: self._opened.execute(query).fetchall())

    @property
    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageFailed("the node's file is closed")
        return self._connection

    def _written(self, steps: Sequence[Step]) -> None:
        connection = self._opened
        try:
            with connection:
                for statement, rows in groupby(steps, key=itemgetter(0)):
                    connection.executemany(statement, (values for _, values in rows))
        except sqlite3.Error as error:
            if error.sqlite_errorname == "SQLITE_FULL":
                raise StorageFull from error
            raise StorageFailed(f"the node's file cannot be written: {error}") from error

    def _open(self) -> None:
        if self._path is not None:
            self._path.touch(mode=0o600)  # what SQLite puts beside it gets the same mode
        try:
            connection = sqlite3.connect(self._path or ":memory:", check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for number in range(version, SCHEMA):
                with connection:
                    connection.execute("BEGIN")
                    _MIGRATIONS[number](connection)
                    connection.execute(f"PRAGMA user_version = {number + 1}")
        except sqlite3.DatabaseError as error:
            refuse_unless_damage(self._path or Path(), error)
            raise StorageDamaged(f"{self._path} cannot be read ({error}); move it away to start afresh") from error
        if version > SCHEMA:
            connection.close()
            raise NewerSchema(str(self._path), version, SCHEMA)
        self._connection = connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
