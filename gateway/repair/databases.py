"""Accounts and twin: whether they are whole, and new ones made of what can be read of them.

Everything happens in a scratch folder, on copies. What is lost must widen nobody's rights: what belongs to an account
that is gone goes with it, and a certificate that is not in the list any more is refused.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from authn import migrations as accounts_schema
from authn.accounts import AccountStore
from gateway.inventory import ACCOUNTS
from gateway.repair.logs import Log
from gateway.repair.pages import Pages
from gateway.repair.salvage import Salvaged, salvage
from gateway.repair.soundness import is_sound
from gateway.sqlite_files import is_readable
from runtime.clocks import wall_clock
from things.errors import SkepError
from things.records import HistoryQuery, Row
from twin.database import open_database, sqlite_engine
from twin.directory import DirectoryStore
from twin.ledger import LedgerStore
from twin.migrations import TABLE as TWIN_STEPS
from twin.migrations import migrate
from twin.tables import MIGRATIONS
from twin.values import MARK as VALUES_MARK
from twin.values import LatestValues

_LOADED = (ValueError, TypeError, LookupError, OverflowError, sqlite3.Error, SQLAlchemyError, SkepError)


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def is_whole(path: Path, scratch: Path) -> bool:
    """Whether a store can be read to its end, and holds what a start can go on with."""
    if Log(log_of(path)).bad_frames:
        return False
    copy = scratch / path.name
    for source, target in ((path, copy), (log_of(path), log_of(copy))):
        target.unlink(missing_ok=True)
        if source.exists():
            shutil.copyfile(source, target)
    if not is_readable(copy):
        return False
    try:
        load(copy)
    except _LOADED:
        return False
    return True


def load(path: Path) -> None:
    """Read a store as a start does, which brings its schema up to date first. Raises what is wrong with it."""
    if path.name == ACCOUNTS:
        with closing(AccountStore(path.parent, now=wall_clock())) as store:
            store.accounts()
            store.credentials()
    else:
        anyio.run(_load_twin, path)


async def _load_twin(path: Path) -> None:
    async with open_database(path, MIGRATIONS) as database:
        directory = await DirectoryStore.load(database, wall_clock)
        await LatestValues.load(database, _no_rows, lambda thing_id: directory.get(thing_id) is not None)
        await LedgerStore.load(database)


async def _no_rows(_query: HistoryQuery) -> list[Row]:
    return []


def made_again(path: Path, log: Path, scratch: Path, *, least_revision: int) -> tuple[Path, Salvaged]:
    """A new database in `scratch` with what can be read of the one at `path` and its log. `least_revision`: how often
    the accounts were changed at least."""
    (scratch / path.name).unlink(missing_ok=True)
    draft = scratch / path.name
    is_accounts = path.name == ACCOUNTS
    is_earlier = is_accounts and _is_before_register(path, log)
    if is_earlier:
        engine = sqlite_engine(draft, StaticPool)
        accounts_schema.migrate(engine, now=wall_clock(), file=None, most=accounts_schema.REGISTER)
        engine.dispose()
    elif is_accounts:
        AccountStore(scratch, now=wall_clock()).close()
    else:
        engine = sqlite_engine(draft, StaticPool)
        migrate(engine, MIGRATIONS)
        engine.dispose()
    with closing(sqlite3.connect(draft)) as connection:
        steps = accounts_schema.TABLE if is_accounts else TWIN_STEPS
        fresh = connection.execute(f"SELECT * FROM {steps}").fetchall()
        connection.execute(f"DELETE FROM {steps}")
        if is_accounts:
            connection.execute("DELETE FROM revisions")
        found = salvage(path, log, connection, is_sound=is_sound)
        with connection:
            if is_accounts:
                # A step without its time: all certificates that were ever given count as listed, or are refused.
                fresh = [(number, name, applied if found.rows[steps] else 0) for number, name, applied in fresh]
            marks = ", ".join("?" * len(fresh[0]))
            connection.executemany(f"INSERT OR IGNORE INTO {steps} VALUES ({marks})", fresh)
            (_complete_accounts if is_accounts else _complete_twin)(connection, found, least_revision)
        connection.execute("PRAGMA journal_mode=DELETE")  # nothing is left beside the file
    if is_earlier:
        AccountStore(scratch, now=wall_clock()).close()
        with closing(sqlite3.connect(draft)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    for table in (steps, "revisions", "marks"):
        found.rows.pop(table, None)  # of no interest to people
    return draft, found


def _is_before_register(path: Path, log: Path) -> bool:
    """Whether a damaged file is of an earlier version, with a table for each kind of credential."""
    with closing(Pages(path, Log(log))) as pages:
        tables = set(pages.roots())
    return "credentials" not in tables and not tables.isdisjoint(_BEFORE_REGISTER)


_BEFORE_REGISTER = ("logins", "long_tokens", "certificates")


def _complete_accounts(connection: sqlite3.Connection, found: Salvaged, least_revision: int) -> None:
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    # Those of accounts that were removed are there as ended.
    orphans = {"credentials": "ended IS NULL AND account_id NOT IN (SELECT account_id FROM accounts)"}
    orphans |= dict.fromkeys(_BEFORE_REGISTER, "account NOT IN (SELECT name FROM accounts)")
    for table in there & set(orphans):
        gone = connection.execute(f"DELETE FROM {table} WHERE {orphans[table]}").rowcount
        found.refused[table] += gone
        found.rows[table] -= gone
    (counted,) = connection.execute("SELECT max(number) FROM revisions").fetchone()
    connection.execute("DELETE FROM revisions")
    connection.execute("INSERT INTO revisions (number) VALUES (?)", (max(counted or 0, least_revision) + 1,))


def _complete_twin(connection: sqlite3.Connection, found: Salvaged, _least: int) -> None:
    if not found.is_whole:
        # Latest values that are gone are taken from the hot history once more.
        connection.execute("DELETE FROM marks WHERE name = ?", (VALUES_MARK,))
