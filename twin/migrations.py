"""Schema changes: numbered, append-only functions, recorded in the database they changed.

All of a start's missing migrations run in one transaction: all or none. Before they touch a file that has data, a copy
is set aside next to it (`twin.db.before-3`). A database that a newer skep has changed is refused, not guessed at.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, Engine, text

from things.errors import NewerSchema, StorageDamaged


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
    current = _current(engine)
    if current > len(migrations):
        raise NewerSchema(str(backup_of or "the database"), current, len(migrations))
    if current == len(migrations):
        return current
    if backup_of is not None and current > 0:
        _back_up(backup_of, backup_of.with_name(f"{backup_of.name}.before-{current + 1}"))
    with engine.begin() as connection:
        for migration in migrations[current:]:
            migration.apply(connection)
            connection.execute(
                text("INSERT INTO skep_migrations (number, name) VALUES (:number, :name)"),
                {"number": migration.number, "name": migration.name},
            )
    return len(migrations)


def _current(engine: Engine) -> int:
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE IF NOT EXISTS skep_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL)")
        )
        found = connection.execute(text("SELECT max(number) FROM skep_migrations")).scalar()
    return int(found or 0)


def _check(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
    if found != "ok":
        raise StorageDamaged(f"{path} is damaged: {found}")


def _back_up(source: Path, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    with closing(sqlite3.connect(source)) as connection, closing(sqlite3.connect(partial)) as copy:
        connection.backup(copy)
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(target)
