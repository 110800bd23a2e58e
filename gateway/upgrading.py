"""`skep upgrade`: the changes that a start would make, tried on copies, and the last ones undone."""

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from gateway.home import held, refuse_unfinished
from gateway.inventory import TWIN, write_inventory
from gateway.repair.databases import load
from gateway.repair.places import put_in_place, waiting
from gateway.schemas import RECORD, StoreUpgrade, read_record, schema_of
from gateway.stocktaking import SEQ_RESERVE, inventory_of
from things.errors import NotFound, StorageDamaged, StorageFull
from things.whole_files import copy_sqlite
from twin.ledger.store import LAST_SEQ, SET_LAST_SEQ


def tried(home: Path, changes: Sequence[StoreUpgrade]) -> None:
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
            except (sqlite3.Error, SQLAlchemyError, OSError) as error:
                raise StorageDamaged(f"{change.store} cannot be upgraded: {error}") from error


def go_back(home: Path) -> list[str]:
    """Put the copies that the last upgrade made in the places of what they became, which is set aside; the stores.
    Those that an upgrade which was not finished has not changed stay. Raises NotFound if there is nothing to go back
    to, Locked, StorageDamaged."""
    with held(home):
        refuse_unfinished(home)
        copies = _copies_of(home)
        beyond = _last_number(home / TWIN) + SEQ_RESERVE if TWIN in copies else 0
        inventory = inventory_of(home)
        for name in copies:
            inventory.stores.pop(name, None)
            inventory.refused.pop(name, None)
        inventory.asked.append(f"upgrade undone: {', '.join(sorted(copies))}")
        write_inventory(home, inventory)
        for name, copy in copies.items():
            with put_in_place(waiting(home / name, {name: partial(_copied, copy, beyond if name == TWIN else None)})):
                pass
        (home / RECORD).unlink()
        return sorted(copies)


def _copies_of(home: Path) -> dict[str, Path]:
    """The copies of the stores that the last upgrade has changed. Raises NotFound for none, or a missing one."""
    record = read_record(home)
    if record is None:
        raise NotFound("no upgrade is known that could be undone")
    copies = {
        name: home / one["copy"]
        for name, one in record["stores"].items()
        if one["copy"] and (record["finished"] or schema_of(home, name) != one["found"])
    }
    if not copies:
        raise NotFound("the upgrade that was begun has changed nothing that could be undone")
    for name, copy in copies.items():
        if not copy.exists():
            raise NotFound(f"{copy.name}, the copy of {name} from before the upgrade, is not there")
    return copies


def _last_number(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return max(number or 0 for number in connection.execute(LAST_SEQ).fetchone())


def _copied(copy: Path, number: int | None, target: Path) -> None:
    """Copy a store; with a `number` that of requests goes on behind it, where nobody has seen any."""
    copy_sqlite(copy, target)
    if number is None:
        return
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(SET_LAST_SEQ, {"seq": number})
