"""`skep repair`: what can still be read of a damaged store, in a new one; the damaged one is set aside.

Nothing is changed before the new store is complete, and only where it helps: a store that is whole, or of which nothing
can be read, stays as it is.
"""

import itertools
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.backup.contents import LAKE
from gateway.backup.places import Source
from gateway.config import Config
from gateway.home import is_begun, unfinished_repairs
from gateway.inventory import ACCOUNTS, HISTORY, TWIN, Inventory, write_inventory
from gateway.repair import databases, history
from gateway.repair.lake import has_lake, mended_lake
from gateway.repair.logs import Log
from gateway.repair.places import put_in_place, store_of, waiting
from gateway.repair.sealed import sealed_rows
from gateway.sqlite_files import FileKind, is_readable, kind_of, put_stamp
from gateway.stocktaking import ROW_IDS, inventory_of, note_set_aside
from things.errors import Locked, SkepError, StorageDamaged
from twin.history import files

_SCRATCH = ".repair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one store."""

    store: str
    detail: str
    is_repaired: bool = False
    is_lost: bool = False
    """It is damaged, and nothing could be done."""


def repair(home: Path, config: Config, only: Sequence[str] = (), backup: Source | None = None) -> list[Outcome]:
    """Repair the stores of a held home that are damaged; `only` those. Parts of the lake come from `backup` where it
    has them. Raises Locked if a runtime is coming up."""
    if is_begun(home):
        raise Locked(f"a runtime of {home} is coming up")
    inventory = inventory_of(home)
    outcomes = [
        _put(home, inventory, folder, "a repair that was killed is finished") for folder in unfinished_repairs(home)
    ]
    with _scratch(home / _SCRATCH) as scratch:
        if not config.database_url:
            outcomes += [
                _database(home, name, inventory, scratch) for name in (ACCOUNTS, TWIN) if not only or name in only
            ]
        outcomes += _histories(home, config, inventory, scratch, only)
    if LAKE in only or (not only and has_lake(home, config)):
        outcomes.append(_lake(home, config, inventory, backup))
    return outcomes


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _unlogged(path: Path, scratch: Path) -> Path:
    """The store for looking at it: opening one with a log would finish what a crash left, so that is done to a copy."""
    if not databases.log_of(path).exists() or not path.exists():
        return path
    folder = scratch / "look"
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    for source, target in ((path, copy), (databases.log_of(path), databases.log_of(copy))):
        shutil.copyfile(source, target)
    return copy


# ---------------------------------------------------------------- accounts and twin


def _database(home: Path, name: str, inventory: Inventory, scratch: Path) -> Outcome:
    path = home / name
    refused = inventory.refused.get(name)
    look = _unlogged(path, scratch)
    kind = kind_of(look, None)
    if kind is FileKind.OURS and name in inventory.stores:
        kind = kind_of(look, inventory.stamp)
    if kind in (FileKind.MISSING, FileKind.EMPTY):
        had = name in inventory.stores or refused is not None
        how = f"{kind}: nothing can be read of it; restore a backup, or: skep stores reset {name}"
        return Outcome(store=name, detail=how if had else f"{kind}, and none was there before", is_lost=had)
    if kind is FileKind.FOREIGN:
        return Outcome(store=name, detail=f"{kind}: restore a backup, or: skep stores accept {name}", is_lost=True)
    # The log that a start took away when it found that some of it was lost, and refused to go on.
    kept = path.with_name(f"{name}-wal.damaged")
    log = kept if refused is not None and kept.exists() else databases.log_of(path)
    if refused is None and databases.is_whole(path, scratch):
        return Outcome(store=name, detail="whole")
    least = inventory.stores.get(name, {}).get("revision", 0)
    draft, found = databases.made_again(path, log, scratch, least_revision=least)
    if not found.rows.total():
        how = f"nothing can be read of it; restore a backup, or: skep stores reset {name}"
        return Outcome(store=name, detail=how, is_lost=True)
    put_stamp(draft, inventory.stamp)
    return _put(home, inventory, waiting(path, {name: partial(shutil.copyfile, draft)}), str(found))


def _put(home: Path, inventory: Inventory, folder: Path, what: str) -> Outcome:
    """Put into its place what waits for it, and note that."""
    name = store_of(home, folder)
    inventory.refused.pop(name, None)
    inventory.asked.append(f"repair {name}: {what}")
    write_inventory(home, inventory)
    with put_in_place(folder) as aside:
        detail = f"{what}; {'nothing was in its place' if aside is None else f'what was there is {aside.name}'}"
        note_set_aside(home, name, f"repaired: {detail}")
    return Outcome(store=name, detail=detail, is_repaired=True)


# ---------------------------------------------------------------- hot history


def _histories(
    home: Path, config: Config, inventory: Inventory, scratch: Path, only: Sequence[str]
) -> Iterator[Outcome]:
    folder = home / HISTORY
    if not folder.is_dir():
        return
    for path in sorted([*folder.glob("*.db"), *folder.glob("*.db.damaged"), *folder.glob("*.db.damaged.[0-9]")]):
        name = f"{HISTORY}/{path.name}"
        if only and name not in only:
            continue
        look = _unlogged(path, scratch)
        kind = kind_of(look, None)
        is_good = path.suffix == ".db" and kind is FileKind.OURS and not Log(databases.log_of(path)).bad_frames
        if is_good and is_readable(look):
            yield Outcome(store=name, detail="whole")
        elif kind in (FileKind.MISSING, FileKind.EMPTY):
            yield Outcome(store=name, detail=f"{kind}: nothing can be read of it", is_lost=True)
        else:
            try:
                yield _history(home, config, inventory, scratch, path)
            except SkepError as error:  # the lake cannot say what it has
                yield Outcome(store=name, detail=error.detail, is_lost=True)


def _history(home: Path, config: Config, inventory: Inventory, scratch: Path, path: Path) -> Outcome:
    folder, name = path.parent, f"{HISTORY}/{path.name}"
    others = _ranges(folder, path, scratch)
    last = _last_given(folder, inventory, others)
    sealed = sealed_rows(home, config)
    remade = history.made_again(path, scratch, sealed, others=others, last=last, stamp=inventory.stamp)
    if not remade.found.rows["rows"]:
        return Outcome(store=name, detail=f"nothing can be read of it: {remade.found}", is_lost=True)
    if remade.last > last:
        files.promise_row_id(folder, remade.last)
        inventory.stores[ROW_IDS] = {"last": remade.last}
    made = [file for file in (remade.kept, remade.moved) if file is not None]
    targets = _free(folder, path, len(made))
    moved = f"; {remade.last - last} of them under new ids" if remade.last > last else ""
    there = f"; {remade.sealed} are in the lake already" if remade.sealed else ""
    files_of = {target: partial(shutil.copyfile, file) for target, file in zip(targets, made, strict=True)}
    return _put(home, inventory, waiting(path, files_of), f"{remade.found}{moved}{there}")


# ---------------------------------------------------------------- lake


def _lake(home: Path, config: Config, inventory: Inventory, backup: Source | None) -> Outcome:
    try:
        mended = mended_lake(home, config, backup)
    except SkepError as error:  # its manifest, or the backup, cannot be read
        return Outcome(store=LAKE, detail=error.detail, is_lost=True)
    if not mended.parts and not mended.left:
        return Outcome(store=LAKE, detail="whole")
    detail = (
        f"{mended.parts} parts with {mended.rows} rows are whole again, {mended.from_copies} of them from the backup"
    )
    if mended.parts:
        inventory.asked.append(f"repair {LAKE}: {detail}")
        write_inventory(home, inventory)
    if mended.left:
        first = mended.left[0]
        detail += f"; {len(mended.left)} are not, as {first['path']}: {first['detail']}"
    return Outcome(store=LAKE, detail=detail, is_repaired=mended.parts > 0, is_lost=bool(mended.left))


def _ranges(folder: Path, but: Path, scratch: Path) -> list[tuple[int, int]]:
    """The row ids of the other files that can be read."""
    found = []
    for path in sorted(set(folder.glob("*.db")) - {but}):
        with suppress(sqlite3.Error), closing(sqlite3.connect(_unlogged(path, scratch))) as connection:
            first, last = connection.execute(
                "SELECT (SELECT min(row_id) FROM rows), (SELECT max(row_id) FROM rows)"
            ).fetchone()
            if first is not None:
                found.append((first, last))
    return found


def _last_given(folder: Path, inventory: Inventory, ranges: Sequence[tuple[int, int]]) -> int:
    """The last row id that may have been given away."""
    with suppress(StorageDamaged):
        ranges = [*ranges, (0, files.promised_row_id(folder))]
    return max([*(last for _, last in ranges), *(marks.get("last", 0) for marks in inventory.stores.values())])


def _free(folder: Path, damaged: Path, count: int) -> list[str]:
    """Names for so many other files of the day of a damaged one, whose own is about to be free."""
    day = damaged.name.partition(".")[0]
    names = (f"{day}.db" if number == 1 else f"{day}.{number}.db" for number in itertools.count(1))
    free = (name for name in names if name == damaged.name or not (folder / name).exists())
    return list(itertools.islice(free, count))
