"""The database of directory, latest values and ledger: `twin.db` (SQLite) or a PostgreSQL URL, with one writer.

Writes are jobs (`Callable[[Connection], T]`) of the writer thread: all that wait share one transaction, with a
savepoint each, so that a refused one undoes itself only, and one synced commit. Parts of one kind (`submit_part`) are
carried out together, with statements of many rows. Reads run in worker threads on
connections of their own and never wait for the writer. `Prepared` statements are written with SQLAlchemy Core, compiled
once and run on the driver: the same text serves both databases at several times the speed of executing Core objects.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool, StaticPool
from sqlalchemy.sql.expression import ClauseElement

from things.errors import SkepError, StorageFailed
from twin.migrations import Migration, migrate
from twin.reserve import Reserve
from twin.writer import GroupThread, is_storage_error, storage_error

P = TypeVar("P")
T = TypeVar("T")

READERS = 3
"""Reads at the same time; more wait for a thread."""

_BEGIN = "BEGIN IMMEDIATE"


class Prepared:
    """A Core statement compiled for one dialect. Parameters are given by name and pass to the driver as they are, so
    columns used with it hold only text, numbers and bytes."""

    __slots__ = ("_fixed", "_names", "_sql")

    def __init__(self, statement: ClauseElement, engine: Engine) -> None:
        compiled = statement.compile(dialect=engine.dialect)
        self._sql = str(compiled)
        # Values that are part of the statement, such as the OFFSET 0 that SQLite's LIMIT gets.
        self._fixed = {name: value for name, value in compiled.params.items() if value is not None}
        self._names: tuple[str, ...] | None = None
        positions = getattr(compiled, "positiontup", None)
        if positions is not None:
            self._names = tuple(positions)

    def run(self, connection: Connection, **parameters: object) -> Any:
        """Execute; returns the driver's cursor."""
        driver = connection.connection.driver_connection
        assert driver is not None
        return driver.execute(self._sql, self._given(parameters))

    def rows(self, connection: Connection, **parameters: object) -> list[tuple[Any, ...]]:
        """Execute and fetch all."""
        found: list[tuple[Any, ...]] = self.run(connection, **parameters).fetchall()
        return found

    def row(self, connection: Connection, **parameters: object) -> tuple[Any, ...] | None:
        """Execute and fetch the first row."""
        found: tuple[Any, ...] | None = self.run(connection, **parameters).fetchone()
        return found

    def many(self, connection: Connection, parameters: Sequence[Mapping[str, object]]) -> None:
        """Execute for each set of parameters."""
        if not parameters:
            return
        driver = connection.connection.driver_connection
        assert driver is not None
        cursor = driver.cursor()
        try:
            cursor.executemany(self._sql, [self._given(one) for one in parameters])
        finally:
            cursor.close()

    def _given(self, parameters: Mapping[str, object]) -> object:
        if self._fixed:
            parameters = {**self._fixed, **parameters}
        if self._names is None:
            return parameters
        return [parameters[name] for name in self._names]


class Database:
    """One open database; made by `open_database`."""

    def __init__(self, name: str, engine: Engine, readers: Engine, reserve: Reserve | None) -> None:
        self.name = name
        self.engine = engine
        self._readers = readers
        self._limiter = anyio.CapacityLimiter(READERS)
        self._connection: Connection | None = None
        self._undone: list[Callable[[], None]] = []
        # A server that went away comes back with what it had committed; a local file whose sync failed does not.
        self._thread: GroupThread[_Job | _Part, Any] = GroupThread(
            name, self._write, finish=self._disconnect, reserve=reserve, gives_up=engine.dialect.name == "sqlite"
        )

    @property
    def writer(self) -> GroupThread[Any, Any]:
        """What commits, for what is measured of it."""
        return self._thread

    @property
    def failure(self) -> SkepError | None:
        """Why nothing is acknowledged any more; None while the database works."""
        return self._thread.failure

    @property
    def is_full(self) -> bool:
        """Whether writes are refused for lack of space."""
        return self._thread.is_full

    def submit(
        self, job: Callable[[Connection], T], *, frees: bool = False, refuses_first: bool = False, soon: bool = True
    ) -> "asyncio.Future[T]":
        """Queue a write; the future ends after the commit, or with the job's own exception, its changes undone.

        `frees` marks jobs that make room and are let through on a full disk; `refuses_first` those that raise before
        they change anything or not at all, and so need no savepoint; not `soon`: nobody waits for it.
        """
        return self._thread.submit(_Job(job, refuses_first), frees=frees, soon=soon)

    def submit_part(
        self,
        together: Callable[[Connection, Sequence[P]], Sequence[T | SkepError]],
        part: P,
        *,
        frees: bool = False,
        soon: bool = True,
    ) -> "asyncio.Future[T]":
        """Queue a write that is carried out with others: `together` gets all parts that were queued for it one after
        the other, and answers each with an outcome, or with a refusal where it changed nothing. Otherwise as
        `submit`."""
        return self._thread.submit(_Part(together, part), frees=frees, soon=soon)

    def when_undone(self, forget: Callable[[], None]) -> None:
        """Call this, in the writer thread, whenever writes were undone: what is remembered of them is wrong."""
        self._undone.append(forget)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query in a worker thread; all of its statements see the same committed state."""
        return await anyio.to_thread.run_sync(self._read, query, limiter=self._limiter)

    async def close(self) -> None:
        """Write what waits and let go of the file. Idempotent."""
        await self._thread.close()
        self.engine.dispose()
        self._readers.dispose()

    def _read(self, query: Callable[[Connection], T]) -> T:
        try:
            # Begun expressly: prepared statements pass SQLAlchemy by, and each would see a state of its own.
            with self._readers.connect() as connection, connection.begin():
                return query(connection)
        except Exception as error:
            if is_storage_error(error):
                raise storage_error(error, self.name) from error
            raise

    # ------------------------------------------------------------ in the writer thread

    def _write(self, jobs: "Sequence[_Job | _Part]") -> Sequence[Any]:
        try:
            return self._committed(jobs, self._together)
        except Exception as error:
            if is_storage_error(error):
                raise
        # A job broke a promise or was given what no column holds. Nothing of the group is stored yet: once more, with
        # a savepoint for each, so that the others do not pay for it.
        return self._committed(jobs, self._one_by_one)

    def _committed(
        self, jobs: "Sequence[_Job | _Part]", carried_out: "Callable[[Sequence[_Job | _Part], Connection], list[Any]]"
    ) -> Sequence[Any]:
        try:
            if self._connection is None:
                self._connection = self._connected()
            connection = self._connection
            driver: Any = connection.connection.driver_connection
            if self.engine.dialect.name == "sqlite":
                driver.execute(_BEGIN)
            try:
                outcomes = carried_out(jobs, connection)
                driver.commit()
            except BaseException:
                driver.rollback()
                raise
        except BaseException:
            self._disconnect()
            raise
        return outcomes

    def _connected(self) -> Connection:
        """A connection on which transactions are begun and ended by the driver: for small groups SQLAlchemy's way there
        costs more than the statements. To SQLAlchemy it is one transaction for as long as it lives."""
        connection = self.engine.connect()
        connection.begin()
        driver: Any = connection.connection.driver_connection
        driver.rollback()
        return connection

    def _together(self, jobs: "Sequence[_Job | _Part]", connection: Connection) -> list[Any]:
        outcomes: list[Any] = []
        for run, same in groupby(jobs, key=_run_of):
            group = tuple(same)
            parts = [job.given for job in group if isinstance(job, _Part)]
            outcomes += run(connection, parts) if parts else [self._trusted(job, connection) for job in group]
        return outcomes

    def _one_by_one(self, jobs: "Sequence[_Job | _Part]", connection: Connection) -> list[Any]:
        return [self._guarded(job, connection) for job in jobs]

    def _trusted(self, job: "_Job | _Part", connection: Connection) -> Any:
        if isinstance(job, _Part) or not job.refuses_first:
            return self._guarded(job, connection)
        try:
            return job.run(connection)
        except SkepError as refusal:
            return refusal

    def _guarded(self, job: "_Job | _Part", connection: Connection) -> Any:
        # A savepoint through the driver: SQLAlchemy's own costs more than the statements it protects.
        driver: Any = connection.connection.driver_connection
        driver.execute("SAVEPOINT job")
        try:
            outcome = job.run(connection, (job.given,))[0] if isinstance(job, _Part) else job.run(connection)
        except Exception as error:
            if is_storage_error(error):
                raise
            driver.execute("ROLLBACK TO SAVEPOINT job")
            self._forget()
            outcome = error
        driver.execute("RELEASE SAVEPOINT job")
        return outcome

    def _disconnect(self) -> None:
        self._forget()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _forget(self) -> None:
        for forget in self._undone:
            forget()


class _Job(NamedTuple):
    run: Callable[[Connection], Any]
    refuses_first: bool


class _Part(NamedTuple):
    run: Callable[[Connection, Sequence[Any]], Sequence[Any]]
    given: Any


_run_of = attrgetter("run")


@asynccontextmanager
async def open_database(
    path: Path, migrations: Sequence[Migration], *, database_url: str | None = None, reserve: Reserve | None = None
) -> AsyncIterator[Database]:
    """Open (and bring up to date) the database at `path`, or at `database_url`. Raises StorageDamaged for a file that
    cannot be trusted or that a newer skep wrote, StorageFailed if it cannot be opened."""
    database = await anyio.to_thread.run_sync(_engines, path, migrations, database_url)
    opened = Database(path.name if database_url is None else "the database", *database, reserve)
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await opened.close()


def _engines(path: Path, migrations: Sequence[Migration], database_url: str | None) -> tuple[Engine, Engine]:
    if database_url is not None:
        writer = create_engine(database_url, pool_size=1, max_overflow=0, pool_pre_ping=True)
        readers = create_engine(
            database_url,
            pool_size=READERS,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="REPEATABLE READ",  # a server's default gives each statement a state of its own
        )
    else:
        path.touch(mode=0o600)  # SQLite gives what it puts beside a file the same mode
        writer = sqlite_engine(path, StaticPool)
        readers = sqlite_engine(path, QueuePool, pool_size=READERS, max_overflow=0)
    try:
        migrate(writer, migrations, backup_of=path if database_url is None else None)
    except SkepError:
        raise
    except Exception as error:
        found = storage_error(error, path.name if database_url is None else "the database")
        raise (found if database_url is None else StorageFailed(f"the database cannot be opened: {error}")) from error
    return writer, readers


def sqlite_engine(path: Path, pool: type[Any], **options: Any) -> Engine:
    """An engine over a SQLite file in WAL with full sync; transactions begin as writers."""
    engine = create_engine(
        f"sqlite:///{path}", poolclass=pool, connect_args={"check_same_thread": False, "timeout": 30}, **options
    )

    def configured(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # BEGIN is ours (below), not the driver's
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000", "cache_size=-8192"):
            connection.execute(f"PRAGMA {pragma}")

    beginning = _BEGIN if pool is StaticPool else "BEGIN"

    def begun(connection: Connection) -> None:
        # On the driver: for small groups SQLAlchemy's way there would cost more than the statements.
        driver: Any = connection.connection.driver_connection
        driver.execute(beginning)

    event.listen(engine, "connect", configured)
    event.listen(engine, "begin", begun)
    return engine
