"""Schema changes: all or none, a copy before, newer and damaged files refused."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from sqlalchemy import Connection, inspect
from sqlalchemy.pool import StaticPool
from sqlmodel import SQLModel

from tests.twin.conftest import Clock, OpenTwin
from things.errors import NewerSchema, StorageDamaged
from twin.database import sqlite_engine
from twin.migrations import Migration, migrate
from twin.store import open_twin
from twin.tables import MIGRATIONS

pytestmark = pytest.mark.anyio


def _first(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE notes (note TEXT)")


def _second(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE notes ADD COLUMN author TEXT")


def _broken(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE notes ADD COLUMN more TEXT")
    connection.exec_driver_sql("not SQL at all")


ONE = (Migration(1, "notes", _first),)
TWO = (*ONE, Migration(2, "authors", _second))
BROKEN = (*TWO, Migration(3, "broken", _broken))


def run(path: Path, migrations: tuple[Migration, ...]) -> int:
    engine = sqlite_engine(path, StaticPool)
    try:
        return migrate(engine, migrations, backup_of=path)
    finally:
        engine.dispose()


def columns(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(notes)")]


def test_a_row_of_the_previous_schema_is_kept_and_a_copy_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    run(path, ONE)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO notes VALUES ('kept')")
        connection.commit()

    assert run(path, TWO) == 2
    assert run(path, TWO) == 2
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT note, author FROM notes").fetchall() == [("kept", None)]
    assert columns(tmp_path / "notes.db.before-2") == ["note"]


def test_a_failing_migration_undoes_all_of_its_start(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    run(path, ONE)

    with pytest.raises(Exception, match="syntax error"):
        run(path, BROKEN)
    assert columns(path) == ["note"]
    assert run(path, TWO) == 2


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    run(path, TWO)

    with pytest.raises(NewerSchema):
        run(path, ONE)
    assert columns(path) == ["note", "author"]


@pytest.mark.parametrize("content", [b"not a database" * 1_000, b"SQLite format 3\x00" + b"\xff" * 8_192])
async def test_a_damaged_database_is_refused_and_left_alone(tmp_path: Path, clock: Clock, content: bytes) -> None:
    path = tmp_path / "twin.db"
    path.write_bytes(content)

    with anyio.fail_after(30), pytest.raises(StorageDamaged):
        async with open_twin(tmp_path, clock=clock, reserve_bytes=4096):
            pass
    assert path.read_bytes() == content


async def test_models_describe_what_migrations_make(opened: OpenTwin) -> None:
    with anyio.fail_after(30):
        async with opened() as twin:
            found = await twin.database.read(
                lambda connection: {
                    name: {column["name"]: column["nullable"] for column in inspect(connection).get_columns(name)}
                    for name in inspect(connection).get_table_names()
                    if name != "skep_migrations"
                }
            )
            keys = await twin.database.read(
                lambda connection: {
                    name: set(inspect(connection).get_pk_constraint(name)["constrained_columns"]) for name in found
                }
            )
            applied = await twin.database.read(
                lambda connection: (
                    connection.exec_driver_sql("SELECT number FROM skep_migrations ORDER BY number").scalars().all()
                )
            )

    modelled = {name: SQLModel.metadata.tables[name] for name in found}
    assert {name: set(table.c.keys()) for name, table in modelled.items()} == {
        name: set(found_columns) for name, found_columns in found.items()
    }
    assert {name: {column.name for column in table.primary_key} for name, table in modelled.items()} == keys
    assert applied == [migration.number for migration in MIGRATIONS]
