"""What of a home's stores an older skep made, looked at by each start before it brings their schemas up to date.

All steps that a database lacks are done in one transaction, after a copy of it was made. `upgrade.json` says, before
the first step, which copies belong together; a killed upgrade is gone on with by the next start.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from authn import migrations as accounts_schema
from gateway.config import Config
from gateway.home import write_whole
from gateway.inventory import ACCOUNTS, TWIN
from gateway.sqlite_files import moved_aside
from runtime.clocks import wall_clock
from things.errors import NewerSchema, StorageFailed
from things.times import rfc3339
from twin import migrations as twin_schema
from twin.tables import MIGRATIONS

RECORD = "upgrade.json"
SERVER = "the database server"

_STEPS = {
    ACCOUNTS: (accounts_schema.TABLE, tuple(name for name, _ in accounts_schema.STEPS)),
    TWIN: (twin_schema.TABLE, tuple(one.name for one in MIGRATIONS)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUpgrade:
    """What a start is going to do to one store."""

    store: str
    found: int
    wanted: int
    steps: tuple[str, ...]
    bytes: int
    """Of the store now."""
    copy: str | None
    """Where it is copied to first; None on a server, whose copies are its owner's to make."""


def due(home: Path, config: Config) -> list[StoreUpgrade]:
    """What would be changed. Raises NewerSchema, StorageDamaged, StorageFailed."""
    found = []
    for name, (table, steps) in _STEPS.items():
        done = _done_on_server(config.database_url, table) if config.database_url else schema_of(home, name)
        if done > len(steps):
            raise NewerSchema(SERVER if config.database_url else name, done, len(steps))
        if 0 < done < len(steps):
            found.append(
                StoreUpgrade(
                    store=SERVER if config.database_url else name,
                    found=done,
                    wanted=len(steps),
                    steps=steps[done:],
                    bytes=0 if config.database_url else (home / name).stat().st_size,
                    copy=None if config.database_url else f"{name}.before-{done + 1}",
                )
            )
    return found


def note_begun(home: Path, changes: Sequence[StoreUpgrade]) -> None:
    """Write down what is about to be changed. An upgrade that was not finished is gone on with: the way back leads to
    before its beginning. What lies in the place of a copy is of another time, and moved away."""
    if not changes:
        return
    record = read_record(home)
    stores: dict[str, Any] = record["stores"] if record and not record["finished"] else {}
    for change in changes:
        begun = stores.get(change.store)
        if begun is not None and begun["found"] < change.found:
            stores[change.store] = asdict(replace(change, found=begun["found"], copy=begun["copy"]))
            continue
        if change.copy is not None:
            if begun is None:
                moved_aside(home / change.copy, "set-aside")
            else:  # of an attempt that changed nothing; the next one makes it anew
                (home / change.copy).unlink(missing_ok=True)
        stores[change.store] = asdict(change)
    _write(home, {"at": rfc3339(wall_clock()), "finished": False, "stores": stores})


def note_finished(home: Path) -> None:
    """All stores were opened."""
    record = read_record(home)
    if record and not record["finished"]:
        _write(home, {**record, "finished": True})


def schema_of(home: Path, name: str) -> int:
    """How many steps were applied to a store that is a file; 0 where there is none yet, or none that can be read."""
    path, table = home / name, _STEPS[name][0]
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                return 0
            return int(connection.execute(f"SELECT max(number) FROM {table}").fetchone()[0] or 0)
    except (sqlite3.Error, ValueError, TypeError):
        return 0  # the store's own check says what is wrong with it


def _done_on_server(url: str, table: str) -> int:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            if not engine.dialect.has_table(connection, table):
                return 0
            return int(connection.exec_driver_sql(f"SELECT max(number) FROM {table}").scalar() or 0)
    except Exception as error:
        raise StorageFailed(f"the database cannot be opened: {error}") from error
    finally:
        engine.dispose()


def read_record(home: Path) -> dict[str, Any] | None:
    """What `upgrade.json` says; None where it says nothing."""
    try:
        found: dict[str, Any] = json.loads((home / RECORD).read_bytes())
        return found if {"finished", "stores"} <= found.keys() else None
    except (FileNotFoundError, ValueError, AttributeError):
        return None


def _write(home: Path, record: dict[str, Any]) -> None:
    write_whole(home / RECORD, json.dumps(record, indent=1).encode() + b"\n")
