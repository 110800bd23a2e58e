"""Accounts and twin on a PostgreSQL server, as a backup takes them and a restore puts them back.

All tables are read by COPY in one REPEATABLE READ transaction: the state of one moment, which no commit waits for.
Text, not PostgreSQL's binary format, so that another version of the server takes them. In a backup:

    database/tables.json     which steps the schemas had taken, and the columns of each table
    database/NAME.copy       its rows

They are put back into a schema of their own, made by the same steps of our migrations and filled; only then, in one
transaction, the tables go to where a start looks for them, and what was there into a schema aside.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from sqlalchemy import Connection, Engine, create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from authn import accounts
from authn import migrations as accounts_schema
from gateway.backup.copying import PIECE, Pace
from runtime.clocks import wall_clock
from things.errors import Conflict, Invalid, NewerSchema, StorageDamaged, StorageFailed
from twin import migrations as twin_schema
from twin import tables as twin_tables
from twin.ledger.store import LAST_SEQ, SET_LAST_SEQ

FOLDER = "database"
TABLES = f"{FOLDER}/tables.json"
SERVER = "the database server"
_DRAFT = "skep_restore_draft"
_ASIDE = "before_restore_"
_VERSIONS = {accounts_schema.TABLE: len(accounts_schema.STEPS), twin_schema.TABLE: len(twin_tables.MIGRATIONS)}
"""How many steps the schemas of this version have, by the table in which they are recorded."""


def path_of(table: str) -> str:
    """Where a backup has the rows of a table."""
    return f"{FOLDER}/{table}.copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What `tables.json` says."""

    versions: Mapping[str, int]
    columns: Mapping[str, Sequence[str]]

    def text(self) -> bytes:
        return json.dumps({"v": 1, "versions": self.versions, "columns": self.columns}, indent=1).encode() + b"\n"

    @staticmethod
    def of(content: bytes) -> "Tables":
        """Raises StorageDamaged, NewerSchema."""
        try:
            said = json.loads(content)
            if said["v"] > 1:
                raise NewerSchema(TABLES, said["v"], 1)
            return Tables(versions=dict(said["versions"]), columns=dict(said["columns"]))
        except (ValueError, KeyError, TypeError) as error:
            raise StorageDamaged(f"{TABLES} of the backup cannot be read: {error}") from error


class Snapshot:
    """The tables as they were at one moment; made by `snapshot`."""

    def __init__(self, connection: Connection, tables: Tables, seq: int) -> None:
        self._connection = connection
        self.tables = tables
        self.seq = seq
        """The ledger's last sequence number."""

    def copy(self, table: str, target: IO[bytes], pace: Pace) -> None:
        """Write the rows of a table. Raises StorageFailed."""
        statement = f'COPY "{table}" ({_listed(self.tables.columns[table])}) TO STDOUT'
        with _errors(), _driver(self._connection).cursor() as cursor, cursor.copy(statement) as rows:
            for piece in rows:
                target.write(piece)
                pace.spent(len(piece))


@contextmanager
def snapshot(url: str) -> Iterator[Snapshot]:
    """The database as it is now, for as long as the block runs. Raises StorageFailed; Invalid where this version has
    never opened it."""
    with _errors(), _engine(url) as engine, engine.connect() as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        found = inspect(connection)
        standing = [name for name in _known() if found.has_table(name)]
        versions = {
            name: int(connection.execute(text(f"SELECT max(number) FROM {name}")).scalar() or 0)
            for name in _VERSIONS
            if name in standing
        }
        if versions != _VERSIONS:
            raise Invalid(f"{SERVER} has the tables of another version: start this one once before a backup")
        columns = {name: [str(one["name"]) for one in found.get_columns(name)] for name in standing}
        last = connection.execute(text(LAST_SEQ)).one()
        yield Snapshot(connection, Tables(versions=versions, columns=columns), max(number or 0 for number in last))


class Draft:
    """Tables that are being put back, where nobody looks for them yet; made by `draft`."""

    def __init__(self, engine: Engine, tables: Tables, target: str) -> None:
        self._engine = engine
        self._tables = tables
        self._target = target

    def fill(self, table: str, content: IO[bytes]) -> None:
        """Take the rows of a table. Raises StorageDamaged where they are not its own, StorageFailed."""
        with _errors(), self._engine.begin() as connection, _driver(connection).cursor() as cursor:
            cursor.execute(f'TRUNCATE "{table}"')  # what the steps of the schemas note
            with cursor.copy(f'COPY "{table}" ({_listed(self._tables.columns[table])}) FROM STDIN') as rows:
                while piece := content.read(PIECE):
                    rows.write(piece)

    def place(self, *, ahead: int, replace: bool) -> str | None:
        """Let them be those that a start finds, all at once, with numbers of requests that go on `ahead`; the schema
        that has what was there. Raises Conflict for that where it is not to be replaced, StorageFailed."""
        with _errors(), self._engine.begin() as connection:
            last = max(number or 0 for number in connection.execute(text(LAST_SEQ)).one())
            connection.execute(text(SET_LAST_SEQ), {"seq": last + ahead})
            connection.execute(text(_COUNTED))
            aside = _moved_aside(connection, self._target, replace=replace)
            for name in self._tables.columns:
                connection.execute(text(f'ALTER TABLE "{name}" SET SCHEMA "{self._target}"'))
            connection.execute(text(f"DROP SCHEMA {_DRAFT} CASCADE"))
        return aside


@contextmanager
def draft(url: str, tables: Tables, *, replace: bool) -> Iterator[Draft]:
    """Empty tables by the same steps; they are gone with the block unless they were placed. Raises StorageFailed;
    Conflict where tables of skep stand already and are not to be replaced; NewerSchema, StorageDamaged."""
    for name, known in _VERSIONS.items():
        if tables.versions.get(name, 0) > known:
            raise NewerSchema(TABLES, tables.versions[name], known)
    with _errors(), _engine(url) as engine, engine.begin() as connection:
        target = str(connection.execute(text("SELECT current_schema()")).scalar())
        if not replace:
            _refuse_standing(connection, target)
        connection.execute(text(f"DROP SCHEMA IF EXISTS {_DRAFT} CASCADE"))
        connection.execute(text(f"CREATE SCHEMA {_DRAFT}"))
    try:
        with _engine(url, schema=_DRAFT) as engine:
            with _errors():
                twin_schema.migrate(engine, twin_tables.MIGRATIONS[: tables.versions[twin_schema.TABLE]])
                most = tables.versions[accounts_schema.TABLE]
                accounts_schema.migrate(engine, now=wall_clock(), file=None, most=most)
                if set(inspect(engine).get_table_names()) != set(tables.columns):
                    raise StorageDamaged(f"{TABLES} of the backup does not name the tables of its version")
            yield Draft(engine, tables, target)
    finally:
        with _errors(), _engine(url) as engine, engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA IF EXISTS {_DRAFT} CASCADE"))


_COUNTED = """SELECT setval(pg_get_serial_sequence('presence', 'change'), coalesce(max(change), 1), count(*) > 0)
FROM presence"""
"""The table's own counter goes on behind its rows."""


def _moved_aside(connection: Connection, target: str, *, replace: bool) -> str | None:
    standing = _standing(connection, target)
    if not standing:
        return None
    if not replace:
        _refuse_standing(connection, target)
    schemas, number = inspect(connection).get_schema_names(), 1
    while f"{_ASIDE}{number}" in schemas:
        number += 1
    connection.execute(text(f"CREATE SCHEMA {_ASIDE}{number}"))
    for name in standing:
        connection.execute(text(f'ALTER TABLE "{target}"."{name}" SET SCHEMA {_ASIDE}{number}'))
    return f"{_ASIDE}{number}"


def _refuse_standing(connection: Connection, target: str) -> None:
    if _standing(connection, target):
        raise Conflict(f"{SERVER} holds tables of skep already; --replace sets them aside, in a schema of their own")


def _standing(connection: Connection, schema: str) -> Sequence[str]:
    names = set(inspect(connection).get_table_names(schema=schema))
    return [name for name in _known() if name in names]


def _known() -> Sequence[str]:
    """All tables of accounts and twin, as this version has them."""
    return sorted({*accounts.TABLES, *twin_tables.TABLES})


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)


@contextmanager
def _engine(url: str, *, schema: str | None = None) -> Iterator[Engine]:
    options = {} if schema is None else {"options": f"-csearch_path={schema}"}
    engine = create_engine(url, connect_args=options)
    try:
        yield engine
    finally:
        engine.dispose()


def _driver(connection: Connection) -> Any:
    """The driver's connection, in the same transaction: COPY is not SQLAlchemy's to speak."""
    return connection.connection.driver_connection


@contextmanager
def _errors() -> Iterator[None]:
    import psycopg  # of the extra `postgres`, which a server needs

    try:
        yield
    except psycopg.DataError as error:
        raise StorageDamaged(f"the rows in the backup are not those of its tables: {error}") from error
    except (SQLAlchemyError, psycopg.Error) as error:
        raise StorageFailed(f"{SERVER} refuses: {error}") from error
