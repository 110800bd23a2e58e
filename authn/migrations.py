"""The schema of the accounts database: its steps, what they are recorded in, and the copy set aside before them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from things.migrations import Step, apply_missing
from things.whole_files import copy_sqlite

TABLE = "authn_migrations"

CERTIFICATES = "client certificates"
CREDENTIALS = "one register of credentials"


def _moved(values: str, rows: str, *also: str) -> str:
    """What earlier tables say of credentials, taken into the one table."""
    columns = ", ".join((*_COLUMNS, *also))
    return f"INSERT INTO credentials ({columns}) SELECT {values} FROM {rows}"


_COLUMNS = (
    "credential_id",
    "kind",
    "account_id",
    "account",
    "parent",
    "made_by",
    "label",
    "proof",
    "source",
    "created",
    "used",
    "expires",
)

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
    (
        "accounts that are told from others of the same name, logins from those by another password",
        (
            "ALTER TABLE accounts ADD COLUMN account_id VARCHAR(64) NOT NULL DEFAULT ''",
            # Two accounts of one name cannot have been made in the same microsecond; new ones get a random id.
            "UPDATE accounts SET account_id = CAST(created AS VARCHAR(24)) || '-'",
            "ALTER TABLE accounts ADD COLUMN password_id VARCHAR(32)",
            "UPDATE accounts SET password_id = 'first' WHERE password_hash IS NOT NULL",
            "ALTER TABLE logins ADD COLUMN password_id VARCHAR(32)",
            "UPDATE logins SET password_id = 'first'",
        ),
    ),
    (
        "the number of changes",
        (
            "CREATE TABLE revisions (number BIGINT NOT NULL)",
            "INSERT INTO revisions (number) VALUES (1)",
        ),
    ),
    (
        CERTIFICATES,
        (
            """CREATE TABLE certificates (
                serial VARCHAR(64) PRIMARY KEY, account VARCHAR(64) NOT NULL REFERENCES accounts(name),
                created BIGINT NOT NULL, expires BIGINT NOT NULL, last_used BIGINT, ended BIGINT)""",
            "CREATE INDEX certificates_by_account ON certificates(account)",
        ),
    ),
    (
        CREDENTIALS,
        (
            """CREATE TABLE credentials (
                credential_id VARCHAR(96) PRIMARY KEY, kind VARCHAR(16) NOT NULL, account_id VARCHAR(64) NOT NULL,
                account VARCHAR(64) NOT NULL, parent VARCHAR(96), made_by VARCHAR(64) NOT NULL,
                label VARCHAR(128) NOT NULL, proof TEXT, source VARCHAR(64), created BIGINT NOT NULL, used BIGINT,
                expires BIGINT, ended BIGINT)""",
            "CREATE INDEX credentials_by_account ON credentials(account_id)",
            # The passwords of an earlier version all have the id `first`.
            "UPDATE logins SET password_id = 'first-' || (SELECT account_id FROM accounts WHERE name = logins.account)"
            " WHERE password_id = 'first'",
            "UPDATE accounts SET password_id = 'first-' || account_id WHERE password_id = 'first'",
            _moved(
                "password_id, 'password', account_id, name, NULL, '', '', password_hash, NULL, created, NULL, NULL",
                "accounts WHERE password_hash IS NOT NULL",
            ),
            _moved(
                "'key-' || account_id, 'key', account_id, name, NULL, '', '', public_key, NULL, created, NULL, NULL",
                "accounts WHERE public_key IS NOT NULL",
            ),
            _moved(
                "login_id, 'login', a.account_id, account, one.password_id, account, '', refresh_hash, source,"
                " one.created, refreshed, expires",
                "logins one JOIN accounts a ON a.name = one.account",
            ),
            _moved(
                "token_id, 'token', a.account_id, account,"
                " CASE WHEN label = 'provisioned' AND a.public_key IS NOT NULL THEN 'key-' || a.account_id END,"
                " '', label, token_hash, NULL, one.created, NULL, expires",
                "long_tokens one JOIN accounts a ON a.name = one.account",
            ),
            _moved(
                "serial, 'certificate', a.account_id, account, NULL, '', '', NULL, NULL, one.created, last_used,"
                " expires, ended",
                "certificates one JOIN accounts a ON a.name = one.account",
                "ended",
            ),
            "DROP TABLE logins",
            "DROP TABLE long_tokens",
            "DROP TABLE certificates",
            "ALTER TABLE accounts DROP COLUMN password_hash",
            "ALTER TABLE accounts DROP COLUMN password_id",
            "ALTER TABLE accounts DROP COLUMN public_key",
        ),
    ),
    (
        "why a credential ended",
        ("ALTER TABLE credentials ADD COLUMN because VARCHAR(64)",),
    ),
)


REGISTER = [name for name, _ in STEPS].index(CREDENTIALS)
"""How many steps there were before all that proves an account stood in one table."""


def migrate(engine: Engine, *, now: int, file: Path | None, most: int | None = None) -> None:
    """Bring the schema up to date, or take its first steps only; `file` is the SQLite file, None on a database
    server."""
    apply_missing(
        _Schema(engine, file, now), [Step(name, partial(_execute, statements)) for name, statements in STEPS[:most]]
    )


@dataclass(frozen=True, slots=True)
class _Schema:
    engine: Engine
    file: Path | None
    now: int
    name: str = "the accounts database"

    def done(self) -> int:
        with self.engine.connect() as connection:
            if not inspect(connection).has_table(TABLE):
                return 0
            return int(connection.execute(text(f"SELECT COALESCE(MAX(number), 0) FROM {TABLE}")).scalar_one())

    def set_aside(self, number: int) -> None:
        if self.file is not None:
            copy_sqlite(self.file, self.file.with_name(f"{self.file.name}.before-{number}"))

    def changing(self) -> AbstractContextManager[Connection]:
        return self.engine.begin()

    def record(self, connection: Connection, number: int, name: str) -> None:
        if number == 1:
            connection.execute(
                text(f"CREATE TABLE {TABLE} (number INTEGER PRIMARY KEY, name VARCHAR(128), applied BIGINT)")
            )
        connection.execute(
            text(f"INSERT INTO {TABLE} (number, name, applied) VALUES (:number, :name, :applied)"),
            {"number": number, "name": name, "applied": self.now},
        )


def _execute(statements: Sequence[str], connection: Connection) -> None:
    for statement in statements:
        connection.execute(text(statement))


def applied_at(connection: Connection, name: str) -> int:
    """When a step was applied (µs UTC)."""
    found = connection.execute(text(f"SELECT applied FROM {TABLE} WHERE name = :name"), {"name": name})
    return int(found.scalar_one())
