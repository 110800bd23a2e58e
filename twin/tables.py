"""The tables of the twin's database, as SQLModel describes them, and the migrations that make them.

The models are for building queries; the migrations are the schema's history and are never edited. A test compares the
two. Columns hold text, numbers and nothing else (JSON as text), so that prepared statements need no conversion.
"""

from sqlalchemy import BigInteger, Column, Connection, Float, Integer, String, Table
from sqlmodel import Field, SQLModel

from twin.migrations import TABLE as MIGRATED
from twin.migrations import Migration

Big = BigInteger().with_variant(Integer, "sqlite")
"""64 bits everywhere; plain INTEGER in SQLite, where it is the row's own key."""


class EntryRow(SQLModel, table=True):
    """A directory entry as it stands; its TD is the version of the same number."""

    __tablename__ = "entries"

    thing_id: str = Field(primary_key=True)
    agent: str | None = None
    version: int
    created: int = Field(sa_column=Column(Big, nullable=False))
    modified: int = Field(sa_column=Column(Big, nullable=False))
    expires: int | None = Field(default=None, sa_column=Column(Big))
    overlay: str | None = None


class TDVersionRow(SQLModel, table=True):
    """Every TD a Thing ever had; `td` is NULL where it was removed."""

    __tablename__ = "td_versions"

    thing_id: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    published: int = Field(sa_column=Column(Big, nullable=False))
    title: str | None = None
    types: str | None = None
    td: str | None = None


class LatestRow(SQLModel, table=True):
    """A checkpointed latest value."""

    __tablename__ = "latest"

    thing_id: str = Field(primary_key=True)
    kind: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    value: str
    created: int = Field(sa_column=Column(Big, nullable=False))
    received: int = Field(sa_column=Column(Big, nullable=False))
    row_id: int = Field(sa_column=Column(Big, nullable=False))
    quality: int


class MarkRow(SQLModel, table=True):
    """Numbers that only rise: the ledger's last sequence number, the history row applied to the latest values."""

    __tablename__ = "marks"

    name: str = Field(primary_key=True)
    value: int = Field(sa_column=Column(Big, nullable=False))


class RequestRow(SQLModel, table=True):
    """A request. `opened` is the sequence number of its first transition and so its place in the queue; `due` is when
    the clock that now runs for it runs out."""

    __tablename__ = "requests"

    opened: int = Field(sa_column=Column(Big, primary_key=True, autoincrement=False))
    request_id: str
    caller: str
    caller_ref: str
    operation: str
    thing_id: str
    agent: str
    name: str
    input: str | None = None
    state: str
    expires: int | None = Field(default=None, sa_column=Column(Big))
    deadline_s: float = Field(sa_column=Column(Float, nullable=False))
    deadline: int | None = Field(default=None, sa_column=Column(Big))
    due: int | None = Field(default=None, sa_column=Column(Big))
    created: int = Field(sa_column=Column(Big, nullable=False))
    updated: int = Field(sa_column=Column(Big, nullable=False))
    attempts: int
    progress: float | None = Field(default=None, sa_column=Column(Float))
    seq: int = Field(sa_column=Column(Big, nullable=False))
    authority: str | None = None


class TransitionRow(SQLModel, table=True):
    """One step of a request's life, as it is reported to `caller`."""

    __tablename__ = "transitions"

    seq: int = Field(sa_column=Column(Big, primary_key=True, autoincrement=False))
    opened: int = Field(sa_column=Column(Big, nullable=False))
    caller: str
    state: str
    at: int = Field(sa_column=Column(Big, nullable=False))
    reason: str | None = None
    error: str | None = Field(default=None, sa_column=Column(String))
    output: str | None = Field(default=None, sa_column=Column(String))
    progress: float | None = Field(default=None, sa_column=Column(Float))


class PresenceRow(SQLModel, table=True):
    """An agent became reachable, or no longer was."""

    __tablename__ = "presence"

    change: int | None = Field(default=None, sa_column=Column(Big, primary_key=True, autoincrement=True))
    agent: str
    online: bool
    at: int = Field(sa_column=Column(Big, nullable=False))


class ChangeRow(SQLModel, table=True):
    """One of the directory's last changes; the ring of slots is written over and over."""

    __tablename__ = "changes"

    slot: int = Field(primary_key=True)
    id: int = Field(sa_column=Column(Big, nullable=False))
    what: str
    thing_id: str
    patch: str


class ModelRow(SQLModel, table=True):
    """Every Thing Model that was ever stored under an id; `model` is NULL where it was removed."""

    __tablename__ = "thing_models"

    model_id: str = Field(primary_key=True)
    version: int = Field(primary_key=True)
    published: int = Field(sa_column=Column(Big, nullable=False))
    title: str | None = None
    model: str | None = None


def table(model: type[SQLModel]) -> Table:
    """The Core table of a model."""
    return SQLModel.metadata.tables[str(model.__tablename__)]


TABLES = (*SQLModel.metadata.tables, MIGRATED)
"""The names of all tables. None but the models above are described there: the accounts have metadata of their own."""


def _first(connection: Connection) -> None:
    big = "INTEGER" if connection.dialect.name == "sqlite" else "BIGINT"
    for statement in _FIRST:
        connection.exec_driver_sql(statement.replace("BIG", big))


_FIRST = (
    """CREATE TABLE entries (thing_id TEXT PRIMARY KEY, agent TEXT, version INTEGER NOT NULL, created BIG NOT NULL,
    modified BIG NOT NULL, expires BIG, overlay TEXT)""",
    """CREATE TABLE td_versions (thing_id TEXT NOT NULL, version INTEGER NOT NULL, published BIG NOT NULL, title TEXT,
    types TEXT, td TEXT, PRIMARY KEY (thing_id, version))""",
    """CREATE TABLE latest (thing_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
    created BIG NOT NULL, received BIG NOT NULL, row_id BIG NOT NULL, quality INTEGER NOT NULL,
    PRIMARY KEY (thing_id, kind, name))""",
    "CREATE TABLE marks (name TEXT PRIMARY KEY, value BIG NOT NULL)",
    """CREATE TABLE requests (opened BIG PRIMARY KEY, request_id TEXT NOT NULL UNIQUE, caller TEXT NOT NULL,
    caller_ref TEXT NOT NULL, operation TEXT NOT NULL, thing_id TEXT NOT NULL, agent TEXT NOT NULL, name TEXT NOT NULL,
    input TEXT, state TEXT NOT NULL, expires BIG, deadline_s DOUBLE PRECISION NOT NULL, deadline BIG, due BIG,
    created BIG NOT NULL, updated BIG NOT NULL, attempts INTEGER NOT NULL, progress DOUBLE PRECISION, seq BIG NOT NULL,
    UNIQUE (caller, caller_ref))""",
    "CREATE INDEX requests_waiting ON requests (agent, opened) WHERE state = 'pending'",
    """CREATE INDEX requests_unanswered ON requests (agent, opened)
    WHERE state IN ('delivered', 'waiting', 'running', 'applied')""",
    "CREATE INDEX requests_due ON requests (due) WHERE due IS NOT NULL",
    """CREATE INDEX requests_queued_writes ON requests (thing_id, name, opened)
    WHERE state = 'pending' AND operation = 'write_property'""",
    "CREATE INDEX requests_ended ON requests (updated) WHERE state IN ('completed', 'failed', 'cancelled')",
    "CREATE INDEX requests_of_caller ON requests (caller, opened)",
    "CREATE INDEX requests_of_thing ON requests (thing_id, opened)",
    """CREATE TABLE transitions (seq BIG PRIMARY KEY, opened BIG NOT NULL, caller TEXT NOT NULL, state TEXT NOT NULL,
    at BIG NOT NULL, reason TEXT, error TEXT, output TEXT, progress DOUBLE PRECISION)""",
    "CREATE INDEX transitions_of_request ON transitions (opened, seq)",
    "CREATE INDEX transitions_of_caller ON transitions (caller, seq)",
)


def _second(connection: Connection) -> None:
    key = "INTEGER PRIMARY KEY" if connection.dialect.name == "sqlite" else "BIGSERIAL PRIMARY KEY"
    big = "INTEGER" if connection.dialect.name == "sqlite" else "BIGINT"
    connection.exec_driver_sql(
        f"CREATE TABLE presence (change {key}, agent TEXT NOT NULL, online BOOLEAN NOT NULL, at {big} NOT NULL)"
    )
    connection.exec_driver_sql("CREATE INDEX presence_of_agent ON presence (agent, change)")


def _third(connection: Connection) -> None:
    big = "INTEGER" if connection.dialect.name == "sqlite" else "BIGINT"
    connection.exec_driver_sql(
        f"""CREATE TABLE changes (slot INTEGER PRIMARY KEY, id {big} NOT NULL, what TEXT NOT NULL,
        thing_id TEXT NOT NULL, patch TEXT NOT NULL)"""
    )


def _fourth(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE requests ADD COLUMN authority TEXT")


def _fifth(connection: Connection) -> None:
    big = "INTEGER" if connection.dialect.name == "sqlite" else "BIGINT"
    connection.exec_driver_sql(
        f"""CREATE TABLE thing_models (model_id TEXT NOT NULL, version INTEGER NOT NULL, published {big} NOT NULL,
        title TEXT, model TEXT, PRIMARY KEY (model_id, version))"""
    )


MIGRATIONS = (
    Migration(1, "directory, latest values, ledger", _first),
    Migration(2, "presence of agents", _second),
    Migration(3, "changes of the directory", _third),
    Migration(4, "by whom requests were made", _fourth),
    Migration(5, "Thing Models", _fifth),
)
