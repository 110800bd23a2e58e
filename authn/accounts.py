"""The accounts database: who exists, what proves them or did, which devices asked.

A synchronous store with one writer; every method is one transaction, committed and synced when it returns, and hands
out values of ours, never rows. SQLite (WAL, full sync) in a file of its own, or PostgreSQL by URL.
"""

import logging
import os
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sqlalchemy import BigInteger, Engine, MetaData, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InterfaceError, NoResultFound, OperationalError
from sqlmodel import Field, Session, SQLModel, col, delete, select

from authn.credentials import Credential, CredentialKind
from authn.migrations import TABLE as MIGRATED
from authn.migrations import applied_at, migrate
from things.errors import Conflict, StorageDamaged, StorageFailed, StorageFull
from things.identity import AccountType
from things.whole_files import refuse_unless_damage, sqlite_check

log = logging.getLogger(__name__)

RESERVE_BYTES = 1 << 20
"""Given back to the file system when it is full: revoking somebody must go on, and even that needs space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One account; what proves it are its credentials.

    `account_id` begins with the time the account was made (µs UTC) and is never used again, also when another account
    gets the name.
    """

    account_id: str = ""
    name: str
    type: AccountType
    role: str
    display_name: str = ""
    disabled: bool = False
    created: int
    updated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A device that asked to be let in, or was announced; state is pending, approved or rejected."""

    account: str
    public_key: str
    state: str
    display_name: str = ""
    created: int
    updated: int
    source: str | None = None


Kept = Account | Credential | DeviceRequest
"""What the database keeps."""
KnownAs = tuple[type[Kept], str]
"""Which one of these: an account by its name, a credential by its id, a device request by its account."""


def known_as(value: Kept) -> KnownAs:
    match value:
        case Account():
            return Account, value.name
        case Credential():
            return Credential, value.credential_id
        case DeviceRequest():
            return DeviceRequest, value.account


_METADATA = MetaData()


class _Row(SQLModel):
    metadata: ClassVar[MetaData] = _METADATA


class _AccountRow(_Row, table=True):
    __tablename__ = "accounts"
    name: str = Field(primary_key=True)
    account_id: str
    type: str
    role: str
    display_name: str
    disabled: bool
    created: int = Field(sa_type=BigInteger)
    updated: int = Field(sa_type=BigInteger)


class _CredentialRow(_Row, table=True):
    __tablename__ = "credentials"
    credential_id: str = Field(primary_key=True)
    kind: str
    account_id: str
    account: str
    parent: str | None
    made_by: str
    label: str
    proof: str | None
    source: str | None
    created: int = Field(sa_type=BigInteger)
    used: int | None = Field(sa_type=BigInteger)
    expires: int | None = Field(sa_type=BigInteger)
    ended: int | None = Field(sa_type=BigInteger)
    because: str | None


class _DeviceRequestRow(_Row, table=True):
    __tablename__ = "device_requests"
    account: str = Field(primary_key=True)
    public_key: str
    state: str
    display_name: str
    created: int = Field(sa_type=BigInteger)
    updated: int = Field(sa_type=BigInteger)
    source: str | None


TABLES = (*_METADATA.tables, "revisions", MIGRATED)
"""The names of all tables."""

_T = TypeVar("_T")


class AccountStore:
    """Accounts, credentials and device requests on disk."""

    def __init__(self, home: Path, *, now: int, database_url: str | None = None, least_revision: int = 0) -> None:
        """`least_revision`: the number of changes it is known to have held. Raises StorageDamaged, StorageFull."""
        self._file = None if database_url else home / "accounts.db"
        self._reserve = home / "accounts.reserve"
        if self._file is not None:
            _check_file(self._file)
        self._engine = _engine(self._file, database_url)
        with self._errors():
            migrate(self._engine, now=now, file=self._file)
            with self._engine.connect() as connection:
                counted = connection.execute(text("SELECT number FROM revisions")).scalar()
        if not isinstance(counted, int):
            raise StorageDamaged("accounts.db is damaged: it does not know how often it was changed")
        self.revision = counted
        """Rises with every change; a store that comes back with a lower one has lost some."""
        if self.revision < least_revision:
            self._engine.dispose()
            raise StorageDamaged(
                f"accounts.db is shortened: it ends at change {self.revision} of at least {least_revision}. What "
                "is gone may be the end of a credential, so that nothing starts. Restore a backup, or ask for what is "
                "wanted: skep stores accept accounts.db (go on with what is there)"
            )
        if self._file is not None:
            self._keep_reserve()

    def close(self) -> None:
        self._engine.dispose()

    def accounts(self) -> list[Account]:
        return self._all(
            select(_AccountRow), lambda row: Account(**{**row.model_dump(), "type": AccountType(row.type)})
        )

    def credentials(self) -> list[Credential]:
        """Also those that have ended, of accounts that were removed too."""
        return self._all(
            select(_CredentialRow), lambda row: Credential(**{**row.model_dump(), "kind": CredentialKind(row.kind)})
        )

    def since(self, step: str) -> int:
        """When the schema took this step (µs UTC): what is older is not recorded as it asks."""
        with self._errors(), self._engine.connect() as connection:
            return applied_at(connection, step)

    def device_requests(self) -> list[DeviceRequest]:
        return self._all(select(_DeviceRequestRow), lambda row: DeviceRequest(**row.model_dump()))

    def add(self, account: Account, *credentials: Credential) -> None:
        """Store a new account with what it begins with; raises Conflict if the name is taken."""

        def work(session: Session) -> None:
            if session.get(_AccountRow, account.name) is not None:
                raise Conflict(f"there is already an account {account.name!r}")
            session.add(_row(account))
            session.add_all(_row(credential) for credential in credentials)

        self._commit(work)

    def save(self, *values: Kept, without: Collection[KnownAs] = ()) -> None:
        """Store or replace `values` and delete what is `without`, all of it or nothing."""

        def work(session: Session) -> None:
            for value in values:
                session.merge(_row(value))
                session.flush()
            _delete(session, without)

        self._commit(work)

    def _all(self, statement: Any, value: Callable[[Any], _T]) -> list[_T]:
        with self._errors(), Session(self._engine) as session:
            try:
                return [value(row) for row in session.exec(statement)]
            except (ValueError, TypeError, OverflowError) as error:
                raise StorageDamaged(f"accounts.db holds what cannot be read: {error}") from error

    def _commit(self, work: Callable[[Session], object]) -> None:
        try:
            self._transact(work)
        except StorageFull:
            if not self._reserve.exists():
                raise
            self._reserve.unlink()
            self._transact(work)

    def _transact(self, work: Callable[[Session], object]) -> None:
        with self._errors(), Session(self._engine) as session, session.begin():
            work(session)
            session.connection().execute(text("UPDATE revisions SET number = number + 1"))
        self.revision += 1

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError) as error:
            if "full" in str(error.orig).lower() or "No space left" in str(error.orig):
                raise StorageFull("no space left for accounts") from error
            if isinstance(error.orig, sqlite3.Error) and _is_damage(error.orig):
                raise StorageDamaged(f"the accounts database cannot be trusted: {_reason(error)}") from error
            # Where the database is concerns nobody who tries to log in.
            log.error("the accounts database refused", extra={"why": _reason(error)})
            raise StorageFailed("the accounts database refused; the log says why") from error
        except DBAPIError as error:
            raise StorageDamaged(f"the accounts database cannot be trusted: {_reason(error)}") from error
        except NoResultFound as error:  # a counter without its row
            raise StorageDamaged("the accounts database cannot be trusted: rows that it began with are gone") from error

    def _keep_reserve(self) -> None:
        if self._reserve.exists():
            return
        try:
            self._reserve.touch(mode=0o600)
            self._reserve.write_bytes(b"\xff" * RESERVE_BYTES)
        except OSError:  # the disk is full already; the next start tries again
            self._reserve.unlink(missing_ok=True)


def _is_damage(error: sqlite3.Error) -> bool:
    """Text that is none, or a schema that lacks what the migrations made: nothing a good file makes the driver say."""
    return (getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR") == "SQLITE_ERROR"


def _reason(error: DBAPIError) -> str:
    """What the driver says, without the statement and its values."""
    return str(error.orig).partition("\n")[0] or type(error.orig).__name__


def _row(value: Kept) -> _Row:
    match value:
        case Account():
            return _AccountRow(**asdict(value))
        case Credential():
            return _CredentialRow(**asdict(value))
        case DeviceRequest():
            return _DeviceRequestRow(**asdict(value))


def _delete(session: Session, without: Collection[KnownAs]) -> None:
    for kind, table, column in (
        (Account, _AccountRow, col(_AccountRow.name)),
        (Credential, _CredentialRow, col(_CredentialRow.credential_id)),
        (DeviceRequest, _DeviceRequestRow, col(_DeviceRequestRow.account)),
    ):
        names = [name for of, name in without if of is kind]
        for start in range(0, len(names), 500):
            session.exec(delete(table).where(column.in_(names[start : start + 500])))


def _check_file(file: Path) -> None:
    """Refuse a damaged file before anything writes to it."""
    if not file.exists():
        return
    connection = sqlite3.connect(f"file:{file}?mode=rw", uri=True)
    try:
        verdict = connection.execute(sqlite_check(file)).fetchone()[0]
    except (sqlite3.Error, ValueError) as error:  # the driver may fail to decode what the check says
        refuse_unless_damage(file, error)
        verdict = str(error)
    finally:
        connection.close()
    if verdict != "ok":
        raise StorageDamaged(
            f"{file} is damaged ({verdict}); it was left as it is: restore a backup, save what can be read "
            "(skep repair), or begin anew by: "
            "skep stores reset accounts.db"
        )


def _engine(file: Path | None, database_url: str | None) -> Engine:
    if file is None:
        assert database_url is not None
        return create_engine(database_url, pool_pre_ping=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    # Made first: SQLite gives the write-ahead log beside it the same mode.
    os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    file.chmod(0o600)
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 10, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own transactions would leave schema changes outside; ours begin with BEGIN below.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
