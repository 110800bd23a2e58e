"""The schema of the accounts database: numbered steps, only ever appended, each recorded where it was applied.

All pending steps are applied in one transaction, after a copy of a SQLite file has been put beside it; either all of
them happen or none. A database with steps this version does not know is refused, never guessed at.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from authn.keyfiles import sync_folder
from things.errors import StorageDamaged

TABLE = "authn_migrations"

STEPS: tuple[tuple[str, Sequence[str]], ...] = (
    (
        "accounts, logins, long-lived tokens",
        (
            """CREATE TABLE accounts (
                name VARCHAR(64) PRIMARY KEY, type VARCHAR(16) NOT NULL, role VARCHAR(64) NOT NULL,
                display_name VARCHAR(256) NOT NULL, password_hash VARCHAR(256), public_key TEXT,
                disabled BOOLEAN NOT NULL, created BIGINT NOT NULL, updated BIGINT NOT NULL)""",
            """CREATE TABLE logins (
                login_id VARCHAR(64) PRIMARY KEY, account VARCHAR(64) NOT NULL REFERENCES accounts(name),
                refresh_hash VARCHAR(64) NOT NULL, created BIGINT NOT NULL, refreshed BIGINT NOT NULL,
                expires BIGINT NOT NULL, source VARCHAR(64))""",
            "CREATE INDEX logins_by_account ON logins(account)",
            """CREATE TABLE long_tokens (
                token_id VARCHAR(64) PRIMARY KEY, account VARCHAR(64) NOT NULL REFERENCES accounts(name),
                label VARCHAR(128) NOT NULL, token_hash VARCHAR(64) NOT NULL, created BIGINT NOT NULL,
                expires BIGINT)""",
            "CREATE INDEX long_tokens_by_account ON long_tokens(account)",
        ),
    ),
    (
        "provisioning requests",
        (
            """CREATE TABLE device_requests (
                account VARCHAR(64) PRIMARY KEY, public_key TEXT NOT NULL, state VARCHAR(16) NOT NULL,
                display_name VARCHAR(256) NOT NULL, created BIGINT NOT NULL, updated BIGINT NOT NULL,
                source VARCHAR(64))""",
        ),
    ),
)


def migrate(engine: Engine, *, now: int, file: Path | None) -> None:
    """Bring the schema up to date; `file` is the SQLite file, None on a database server."""
    with engine.connect() as connection:
        done = _applied(connection)
    if done > len(STEPS):
        raise StorageDamaged(f"the accounts database was written by a newer version (step {done} of {len(STEPS)})")
    if done == len(STEPS):
        return
    if done and file is not None:
        _copy(file, file.with_name(f"{file.name}.before-{done + 1}"))
    with engine.begin() as connection:
        if not done:
            connection.execute(
                text(f"CREATE TABLE {TABLE} (number INTEGER PRIMARY KEY, name VARCHAR(128), applied BIGINT)")
            )
        for number, (name, statements) in enumerate(STEPS[done:], start=done + 1):
            for statement in statements:
                connection.execute(text(statement))
            connection.execute(
                text(f"INSERT INTO {TABLE} (number, name, applied) VALUES (:number, :name, :applied)"),
                {"number": number, "name": name, "applied": now},
            )


def _applied(connection: Connection) -> int:
    if not inspect(connection).has_table(TABLE):
        return 0
    return int(connection.execute(text(f"SELECT COALESCE(MAX(number), 0) FROM {TABLE}")).scalar_one())


def _copy(file: Path, to: Path) -> None:
    source, target = sqlite3.connect(file), sqlite3.connect(to)
    try:
        to.chmod(0o600)
        source.backup(target)
    finally:
        target.close()
        source.close()
    sync_folder(to.parent)
