"""Checking a backup, and making a home of it: all or nothing.

A backup is read whole before anything is written. The new home is made in a hidden folder inside the home, and synced;
then that folder is renamed, and its parts are moved into place. Killed before the renaming, nothing has happened; as
long as the renamed folder is there, nothing starts (`gateway.home.refuse_unfinished`). Row ids and
the ledger's sequence numbers go on 2^32 further, so that no cursor of a client that has seen what was lost meets other
data; the inventory and, at the next start, the audit log say what was restored.
"""

import hashlib
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gateway.backup import postgresql
from gateway.backup.contents import LAKE, SECRET
from gateway.backup.copying import PIECE
from gateway.backup.folders import SHARED
from gateway.backup.manifest import NAME, Entry, Manifest, manifest_of
from gateway.backup.places import Source
from gateway.backup.sealed import put_back
from gateway.config import Config
from gateway.home import BEGUN, RESTORING, held
from gateway.inventory import FILE, HISTORY, RESTORED, TWIN, read_inventory, write_inventory
from gateway.sqlite_files import is_readable
from gateway.stocktaking import AUTHORITY, KEYS, ROW_IDS
from things.errors import Conflict, Invalid, StorageDamaged
from things.whole_files import sync
from twin.ledger.store import LAST_SEQ, SET_LAST_SEQ

AHEAD = 1 << 32
"""How far row ids and sequence numbers go on after a restore: further than anything given since the backup."""
_DRAFT = ".restore-draft"
_STANDING = ("run.lock", BEGUN, RESTORING, _DRAFT)
"""What does not make a home one that is in use."""
_MAX_MANIFEST = 256 << 20
_SQLITE = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A home that was made from a backup."""

    manifest: Manifest
    has_keys: bool
    aside: str | None
    """The folder inside the home with what was there before."""
    schema_aside: str | None
    """The same of the database server."""


def verify(source: Source) -> tuple[Manifest, Sequence[str]]:
    """Read all of a backup: its manifest, and what is wrong with it. Raises StorageDamaged for what is no whole
    backup, Forbidden, NotFound, NewerSchema."""
    found: dict[str, tuple[int, str]] = {}
    manifest = None
    for path, content in source.contents():
        if path == NAME:
            manifest = manifest_of(content.read(_MAX_MANIFEST))
        else:
            try:
                found[path] = _read(content)
            except StorageDamaged as error:
                found[path] = (-1, error.detail)
    if manifest is None:
        raise StorageDamaged("the backup has no manifest: it was never finished")
    problems = []
    for entry in manifest.files:
        size, sha256 = found.pop(entry.path, (None, ""))
        where = f" ({SHARED}/{entry.sha256[:2]}/{entry.sha256})" if entry.is_shared else ""
        if size is None:
            problems.append(f"{entry.path}{where}: missing")
        elif size < 0:
            problems.append(f"{entry.path}{where}: {sha256}")
        elif (size, sha256) != (entry.size, entry.sha256):
            problems.append(f"{entry.path}{where}: not what was written")
    problems += [f"{path}: not in the manifest" for path in found]
    return manifest, problems


def restore(source: Source, home: Path, *, replace: bool = False, keys: bool = True) -> Restored:
    """Make a home of a backup. What is there already goes into a folder inside it (`replace`), or is refused. Without
    `keys` those of the backup are left out. Raises Conflict, Locked, StorageDamaged, StorageFull."""
    home = home.expanduser().absolute()
    if (_standing(home) or (home / RESTORING).exists()) and not replace:
        raise Conflict(f"{home} is not empty; --replace sets what is there aside")
    manifest, problems = verify(source)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise StorageDamaged(f"nothing was restored, since the backup is damaged: {problems[0]}{more}")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with held(home):
        draft, placing = home / _DRAFT, home / RESTORING
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        try:
            _written(source, manifest, draft, keys=keys)
            has_keys = manifest.has_keys and keys
            _advanced(draft, manifest, has_keys=has_keys, ends_lake=_onto_lake(source, manifest, draft))
            # As late as can be: a home and a server cannot change as one. Killed after this, nothing of the home has,
            # and the restore is asked for again.
            schema_aside = _onto_server(source, manifest, draft, replace=replace)
        except BaseException:
            shutil.rmtree(draft)
            raise
        if placing.exists():  # an earlier restore, killed while it moved what this one has too
            shutil.rmtree(placing)
        draft.rename(placing)
        sync(home)
        aside = _set_aside(home)
        for part in sorted(placing.iterdir()):
            part.rename(home / part.name)
        sync(home)
        placing.rmdir()
        sync(home)
    return Restored(manifest=manifest, has_keys=has_keys, aside=aside, schema_aside=schema_aside)


def _standing(home: Path) -> Sequence[Path]:
    return [path for path in home.iterdir() if path.name not in _STANDING] if home.is_dir() else []


def _set_aside(home: Path) -> str | None:
    standing = [path for path in _standing(home) if not path.name.startswith("before-restore-")]
    if not standing:
        return None
    number = 1
    while (home / f"before-restore-{number}").exists():
        number += 1
    folder = home / f"before-restore-{number}"
    folder.mkdir(mode=0o700)
    for path in standing:
        path.rename(folder / path.name)
    sync(folder)
    sync(home)
    return folder.name


def _written(source: Source, manifest: Manifest, draft: Path, *, keys: bool) -> None:
    # What goes elsewhere, and what is left behind.
    without = {postgresql.FOLDER} | (set() if keys else set(SECRET)) | (set() if manifest.lake is None else {LAKE})
    wanted = {entry.path: entry for entry in manifest.files if entry.path.partition("/")[0] not in without}
    for path, content in source.contents():
        entry = wanted.pop(path, None)
        if entry is not None:
            _put(entry, content, draft / path)
    if wanted:
        raise StorageDamaged(f"the backup changed while it was restored: {min(wanted)} is missing")
    for entry in manifest.files:
        place = draft / entry.path
        if place.exists() and _is_database(place) and not is_readable(place):
            raise StorageDamaged(f"{entry.path} was damaged already when the backup was taken")
    for folder in (*(path for path in draft.rglob("*") if path.is_dir()), draft):
        sync(folder)


def _onto_lake(source: Source, manifest: Manifest, home: Path) -> bool:
    """Put a lake that was elsewhere back to where the home is configured to have it, if that lacks anything of it.
    Whether the lake that the home will have ends where the backup's does. Raises Conflict, StorageDamaged,
    StorageFailed."""
    if manifest.lake is None:
        return LAKE not in manifest.outside
    from twin.lake.places import place_of  # with Arrow

    lake = place_of(Config.load(home).history.lake or home / LAKE)
    entries = [entry for entry in manifest.files if entry.path.startswith(f"{LAKE}/")]
    return put_back(lake, manifest.gateway, entries, source.contents())


def _onto_server(source: Source, manifest: Manifest, home: Path, *, replace: bool) -> str | None:
    """Put what the backup has of a database server onto the one that the home is configured for; the schema with what
    was there. Raises Invalid where it is configured for none, Conflict, StorageDamaged, StorageFailed."""
    paths = {entry.path for entry in manifest.files if entry.path.startswith(f"{postgresql.FOLDER}/")}
    if not paths:
        return None
    url = Config.load(home).database_url
    if url is None:
        raise Invalid("the backup has tables of a PostgreSQL server, and none is configured: set SKEP_DATABASE_URL")
    # It comes before the tables, whatever the source.
    said = next((content.read() for path, content in source.contents() if path == postgresql.TABLES), b"")
    tables = postgresql.Tables.of(said)
    files = {postgresql.path_of(name): name for name in tables.columns}
    if paths != {*files, postgresql.TABLES}:
        raise StorageDamaged(f"{postgresql.TABLES} of the backup names other tables than it has")
    with postgresql.draft(url, tables, replace=replace) as empty:
        for path, content in source.contents():
            if path in files:
                empty.fill(files[path], content)
        return empty.place(ahead=AHEAD, replace=replace)


def _put(entry: Entry, content: IO[bytes], place: Path) -> None:
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        found = _read(content, file)
        if found != (entry.size, entry.sha256):
            raise StorageDamaged(f"the backup changed while it was restored: {entry.path}")
        file.flush()
        # The certificate of the local authority is for everybody.
        os.fchmod(descriptor, entry.mode & 0o755 | 0o600)
        os.fsync(descriptor)
    if entry.modified:
        os.utime(place, ns=(entry.modified, entry.modified))


def _read(content: IO[bytes], file: IO[bytes] | None = None) -> tuple[int, str]:
    found, size = hashlib.sha256(), 0
    while piece := content.read(PIECE):
        found.update(piece)
        size += len(piece)
        if file is not None:
            file.write(piece)
    return size, found.hexdigest()


def _is_database(place: Path) -> bool:
    with place.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _advanced(draft: Path, manifest: Manifest, *, has_keys: bool, ends_lake: bool) -> None:
    """Let numbers go on where no client has seen any."""
    inventory = read_inventory(draft)
    if inventory is None or inventory.installation != manifest.installation:
        raise StorageDamaged(f"the backup's {FILE} is not of its installation")
    history = draft / HISTORY
    history.mkdir(mode=0o700, exist_ok=True)
    note = draft / ROW_IDS
    promised = int(note.read_text("ascii")) if note.exists() else 0
    noted = max((marks.get("last", 0) for marks in inventory.stores.values()), default=0)
    last_row = max(promised, noted, manifest.last_row, manifest.sealed) + AHEAD
    note.write_text(f"{last_row}\n", "ascii")
    note.chmod(0o600)
    if ends_lake:
        # It names the last commit this gateway made, and the backup may hold an earlier one.
        (history / "lake-head.json").unlink(missing_ok=True)
    if (draft / TWIN).exists():
        with closing(sqlite3.connect(draft / TWIN, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            last = max(number or 0 for number in connection.execute(LAST_SEQ).fetchone())
            connection.execute(SET_LAST_SEQ, {"seq": last + AHEAD})
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    prefix = f"{HISTORY}/"
    inventory.stores = {
        name: marks
        for name, marks in inventory.stores.items()
        if (draft / name).exists() or not (name.startswith(prefix) or (name in (KEYS, AUTHORITY) and not has_keys))
    }
    inventory.stores[ROW_IDS] = {"last": last_row}
    without = "" if has_keys else ", without keys"
    inventory.asked.append(f"{RESTORED}{manifest.begun}{without}")
    write_inventory(draft, inventory)
    for path in (note, history, draft):
        sync(path)
