"""From the schema that an older skep left to this one's, and back.

A start upgrades by itself: all steps of a database in one transaction, after a copy of it was made. `upgrade.json`
says, before the first step, which copies belong together; a killed upgrade is taken up by the next start. `tried` does
the same to copies beforehand, and `go_back` puts the copies of the last upgrade in place again.
"""

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from authn import migrations as accounts_schema
from gateway.config import Config
from gateway.home import held, refuse_unfinished, write_whole
from gateway.inventory import ACCOUNTS, TWIN, write_inventory
from gateway.repair.databases import load
from gateway.repair.places import put_in_place, written
from gateway.stocktaking import SEQ_RESERVE, inventory_of
from runtime.clocks import wall_clock
from things.errors import NewerSchema, NotFound, StorageDamaged, StorageFailed, StorageFull
from things.times import rfc3339
from things.whole_files import copy_sqlite
from twin import migrations as twin_schema
from twin.ledger.store import LAST_SEQ, SET_LAST_SEQ
from twin.tables import MIGRATIONS

RECORD = "upgrade.json"
SERVER = "the database server"

_STEPS = {
    ACCOUNTS: (accounts_schema.TABLE, tuple(name for name, _ in accounts_schema.STEPS)),
    TWIN: (twin_schema.TABLE, tuple(one.name for one in MIGRATIONS)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a start is going to do to one store."""

    store: str
    found: int
    wanted: int
    steps: tuple[str, ...]
    bytes: int
    """Of the store now."""
    copy: str | None
    """Where it is copied to first; None on a server, whose copies are its owner's to make."""


def due(home: Path, config: Config) -> list[Change]:
    """What would be changed. Raises NewerSchema, StorageDamaged, StorageFailed."""
    found = []
    for name, (table, steps) in _STEPS.items():
        done = _done_on_server(config.database_url, table) if config.database_url else _done(home / name, table)
        if done > len(steps):
            raise NewerSchema(SERVER if config.database_url else name, done, len(steps))
        if 0 < done < len(steps):
            found.append(
                Change(
                    store=SERVER if config.database_url else name,
                    found=done,
                    wanted=len(steps),
                    steps=steps[done:],
                    bytes=0 if config.database_url else (home / name).stat().st_size,
                    copy=None if config.database_url else f"{name}.before-{done + 1}",
                )
            )
    return found


def tried(home: Path, changes: Sequence[Change]) -> None:
    """Carry the changes out on copies and load what comes out of them. A runtime may run meanwhile. Raises
    StorageFull where there is no room for the copies, StorageDamaged where the changes would fail."""
    files = [change for change in changes if change.copy is not None]
    needed = 3 * sum(change.bytes for change in files)
    if shutil.disk_usage(home).free < needed:
        raise StorageFull(f"{needed / 1e6:.0f} MB are needed beside what is there, for copies")
    with tempfile.TemporaryDirectory(prefix=".upgrade-", dir=home) as scratch:
        for change in files:
            copy = Path(scratch, change.store)
            try:
                copy_sqlite(home / change.store, copy)
                load(copy)
            except (sqlite3.Error, OSError) as error:
                raise StorageDamaged(f"{change.store} cannot be upgraded: {error}") from error


def note_begun(home: Path, changes: Sequence[Change]) -> None:
    """Write down what is about to be changed. An upgrade that was not finished is gone on with."""
    if not changes:
        return
    record = _record(home)
    stores = record["stores"] if record and not record["finished"] else {}
    stores |= {change.store: asdict(change) for change in changes}
    _write(home, {"at": rfc3339(wall_clock()), "by": version("skep"), "finished": False, "stores": stores})


def note_finished(home: Path) -> None:
    """All stores were opened."""
    record = _record(home)
    if record and not record["finished"]:
        _write(home, {**record, "finished": True})


def go_back(home: Path) -> list[str]:
    """Put the copies that the last upgrade made in the places of what they became, which is set aside; the stores.
    Raises NotFound if there is nothing to go back to, Locked, StorageDamaged."""
    with held(home):
        refuse_unfinished(home)
        record = _record(home)
        copies = {name: home / one["copy"] for name, one in (record or {"stores": {}})["stores"].items() if one["copy"]}
        if not copies:
            raise NotFound("no upgrade is known that could be undone")
        for name, copy in copies.items():
            if not copy.exists():
                raise NotFound(f"{copy.name}, the copy of {name} from before the upgrade, is not there")
        last = _last_number(home / TWIN) if TWIN in copies else 0
        inventory = inventory_of(home)
        for name in copies:
            inventory.stores.pop(name, None)
            inventory.refused.pop(name, None)
        inventory.asked.append(f"upgrade undone: {', '.join(sorted(copies))}")
        write_inventory(home, inventory)
        for name, copy in copies.items():
            put_in_place(written(home / name, lambda draft, copy=copy: copy_sqlite(copy, draft)))  # type: ignore[misc]
        if TWIN in copies:
            _go_on_after(home / TWIN, last + SEQ_RESERVE)
        (home / RECORD).unlink()
        return sorted(copies)


def _done(path: Path, table: str) -> int:
    """How many steps were applied; 0 where there is no store yet."""
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


def _last_number(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return max(number or 0 for number in connection.execute(LAST_SEQ).fetchone())


def _go_on_after(path: Path, number: int) -> None:
    """Let numbers of requests go on where nobody has seen any."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(SET_LAST_SEQ, (number,))


def _record(home: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((home / RECORD).read_bytes())
        return found if {"finished", "stores"} <= found.keys() else None
    except (FileNotFoundError, ValueError, AttributeError):
        return None


def _write(home: Path, record: dict[str, Any]) -> None:
    write_whole(home / RECORD, json.dumps(record, indent=1).encode() + b"\n")
