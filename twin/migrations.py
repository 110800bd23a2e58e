"""The schema of `twin.db`: what its changes are recorded in, and the copy that is set aside before them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, text

from things.errors import StorageDamaged
from things.migrations import Step, apply_missing
from things.whole_files import copy_sqlite, sqlite_check

TABLE = "skep_migrations"


class Migration(NamedTuple):
    """One step of a schema; `number` rises by one from 1."""

    number: int
    name: str
    apply: Callable[[Connection], None]


def migrate(engine: Engine, migrations: Sequence[Migration], *, backup_of: Path | None = None) -> int:
    """Bring the schema up to date; returns its number. `backup_of` is the SQLite file to copy first. Raises
    NewerSchema, StorageDamaged for a failing check; whatever a migration raises undoes all of them."""
    for expected, migration in enumerate(migrations, start=1):
        assert migration.number == expected, "migrations are numbered from 1 without gaps"
    if backup_of is not None:
        _check(engine, backup_of)
    steps = [Step(migration.name, migration.apply) for migration in migrations]
    return apply_missing(_Schema(engine, backup_of), steps)


@dataclass(frozen=True, slots=True)
class _Schema:
    engine: Engine
    file: Path | None

    @property
    def name(self) -> str:
        return str(self.file or "the database")

    def done(self) -> int:
        with self.engine.begin() as connection:
            connection.execute(
                text(f"CREATE TABLE IF NOT EXISTS {TABLE} (number INTEGER PRIMARY KEY, name TEXT NOT NULL)")
            )
            found = connection.execute(text(f"SELECT max(number) FROM {TABLE}")).scalar()
        return int(found or 0)

    def set_aside(self, number: int) -> None:
        if self.file is not None:
            copy_sqlite(self.file, self.file.with_name(f"{self.file.name}.before-{number}"))

    def changing(self) -> AbstractContextManager[Connection]:
        return self.engine.begin()

    def record(self, connection: Connection, number: int, name: str) -> None:
        connection.execute(
            text(f"INSERT INTO {TABLE} (number, name) VALUES (:number, :name)"), {"number": number, "name": name}
        )


def _check(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        try:
            found = connection.exec_driver_sql(sqlite_check(path)).scalar()
        except ValueError as error:  # the driver could not decode what the check says
            found = str(error)
    if found != "ok":
        raise StorageDamaged(
            f"{path} is damaged ({found}); it was left as it is: restore a backup, save what can be read "
            "(skep repair), or begin anew by: "
            f"skep stores reset {path.name}"
        )
