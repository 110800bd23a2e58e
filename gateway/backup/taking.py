"""Taking a backup of a home, whether its runtime runs or not; docs/operations.md says how to use it.

It reads the files as any other reader does: SQLite databases in one transaction each, which holds no writer up, and
everything in the order of `gateway.backup.contents`. The runtime does nothing for it but leave files where they are
(`gateway.backup.stillness`), so neither a runtime that is killed nor a backup that is can harm the other.
"""

import errno
import io
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from urllib.parse import quote

from gateway.backup import postgresql
from gateway.backup.archives import archive_writing, is_archive
from gateway.backup.contents import LAKE, NOTE, files_of
from gateway.backup.copying import Pace, new_file
from gateway.backup.folders import BackupFolder, opened_folder
from gateway.backup.manifest import Entry, Manifest
from gateway.backup.places import Writing
from gateway.backup.sealed import LakeFiles, SealedLake, lake_of, sealed_lake
from gateway.backup.stillness import still
from gateway.backup.taken import Taken
from gateway.config import Config
from gateway.home import gateway_id, write_whole
from gateway.inventory import FILE, HISTORY, TWIN, read_inventory
from runtime.clocks import wall_clock
from things.errors import Invalid, SkepError, StorageDamaged, StorageFailed, StorageFull
from things.times import rfc3339
from twin.ledger.store import LAST_SEQ

PAGES = 1_024
"""Of a database, copied between two looks at the pace."""
_SQLITE = b"SQLite format 3\x00"
_SCRATCH = ".backup"


def take(
    home: Path,
    to: Path,
    *,
    config: Config,
    keys: bool = True,
    lake: bool = False,
    passphrase: str | None = None,
    keep: int | None = None,
    bytes_per_second: float | None = None,
    clock: Callable[[], int] = wall_clock,
) -> Taken:
    """Back a home up into the folder or file `to`; of a folder's backups only the `keep` newest stay. With `lake` one
    that is elsewhere is copied too. Raises Locked, Conflict, Forbidden, Invalid, StorageDamaged, StorageFailed,
    StorageFull."""
    to = to.expanduser().absolute()
    if config.history.lake is None and to.is_relative_to(home / LAKE):
        raise Invalid("a backup cannot go into the lake that it copies")
    with _storage_errors(to), still(home):
        _clear(home / _SCRATCH)
        try:
            taken = _taken(home, to, config, keys, lake, passphrase, keep, Pace(bytes_per_second), clock)
        finally:
            _clear(home / _SCRATCH)
        write_whole(home / NOTE, json.dumps(asdict(taken)).encode() + b"\n")
    return taken


def _taken(
    home: Path,
    to: Path,
    config: Config,
    keys: bool,
    lake: bool,
    passphrase: str | None,
    keep: int | None,
    pace: Pace,
    clock: Callable[[], int],
) -> Taken:
    inventory = read_inventory(home)
    if inventory is None:
        raise Invalid(f"{home} has no {FILE}: it was never started")
    copying = _Copying(home, to, config, keys, lake, pace, inventory.installation, clock)
    removed: tuple[str, ...] = ()
    if is_archive(to):
        if keep is not None:
            raise Invalid("how many to keep goes with a folder of backups, not with a file")
        name = to.name
        with archive_writing(to, pace, passphrase) as writing:
            manifest = copying.all_into(writing)
    else:
        folder = opened_folder(to, installation=inventory.installation, gateway=copying.gateway, passphrase=passphrase)
        folder.clear_partial()
        name = _name(folder, clock())
        with folder.writing(name, pace) as writing:
            manifest = copying.all_into(writing)
        if keep is not None:
            removed = tuple(folder.keep(keep))
    return Taken(
        name=name,
        to=str(to),
        at=clock(),
        bytes=manifest.size,
        files=len(manifest.files),
        last_row=manifest.last_row,
        has_keys=manifest.has_keys,
        removed=removed,
        outside=dict(manifest.outside),
    )


def _name(folder: BackupFolder, now: int) -> str:
    # By a number, since the clock may have been set back: the newest must not be taken for the oldest.
    number = max((int(name.partition("-")[0]) for name in folder.begun()), default=0) + 1
    return f"{number:06d}-" + rfc3339(now)[:19].replace("-", "").replace(":", "") + "Z"


class _Copying:
    """One home on its way into one backup."""

    def __init__(
        self,
        home: Path,
        to: Path,
        config: Config,
        keys: bool,
        lake: bool,
        pace: Pace,
        installation: str,
        clock: Callable[[], int],
    ) -> None:
        self.gateway = gateway_id(home)
        self._home = home
        self._to = to
        self._config = config
        self._keys = keys
        self._with_lake = lake or config.history.lake is None
        self._pace = pace
        self._installation = installation
        self._clock = clock
        self._last_row = 0
        self._seq = 0

    def all_into(self, writing: Writing) -> Manifest:
        """Copy everything and finish the backup."""
        begun = rfc3339(self._clock())
        lake = SealedLake(parts=(), commits=(), head=None, sealed=0)
        entries: list[Entry] = []
        for path in files_of(self._home, keys=self._keys, elsewhere=self._to):
            entries.append(self._copied(writing, path))
            if path == FILE and self._with_lake:
                files = lake_of(self._home, self._config.history.lake)
                lake = sealed_lake(files, self.gateway)
                entries += self._lake(writing, files, lake)
            if path == FILE and self._config.database_url is not None:
                entries += self._server(writing, self._config.database_url)
        manifest = Manifest(
            installation=self._installation,
            gateway=self.gateway,
            begun=begun,
            ended=rfc3339(self._clock()),
            has_keys=self._keys,
            last_row=max(self._last_row, lake.sealed),
            seq=self._seq,
            sealed=lake.sealed,
            lake=self._config.history.lake if self._with_lake else None,
            outside=self._outside(),
            files=tuple(entries),
        )
        writing.finish(manifest)
        return manifest

    def _outside(self) -> dict[str, str]:
        elsewhere = self._config.history.lake
        return {} if elsewhere is None or self._with_lake else {"lake": elsewhere}

    def _copied(self, writing: Writing, path: str) -> Entry:
        source = self._home / path
        with source.open("rb") as content:
            is_database = content.read(len(_SQLITE)) == _SQLITE
            content.seek(0)
            if not is_database:
                status = os.fstat(content.fileno())
                if path.startswith("audit/"):
                    # Its last line may be half written.
                    whole = content.read().rpartition(b"\n")
                    return writing.add(path, io.BytesIO(whole[0] + whole[1]), modified=status.st_mtime_ns)
                return writing.add(path, content, mode=status.st_mode & 0o755, modified=status.st_mtime_ns)
        return self._made(writing, path, partial(self._database, path))

    def _made(self, writing: Writing, path: str, make: Callable[[Path], None]) -> Entry:
        """A file that is written for the backup, in its place or to be copied there."""
        place = writing.place_for(path)
        if place is not None:
            make(place)
            return writing.added(path)
        scratch = self._home / _SCRATCH
        scratch.mkdir(mode=0o700, exist_ok=True)
        place = scratch / "database"
        make(place)
        with place.open("rb") as content:
            entry = writing.add(path, content)
        place.unlink()
        return entry

    def _server(self, writing: Writing, url: str) -> Iterator[Entry]:
        with postgresql.snapshot(url) as standing:
            self._seq = standing.seq
            yield writing.add(postgresql.TABLES, io.BytesIO(standing.tables.text()))
            for table in standing.tables.columns:
                yield self._made(writing, postgresql.path_of(table), partial(self._table, standing, table))

    def _table(self, standing: postgresql.Snapshot, table: str, target: Path) -> None:
        with new_file(target) as file:
            standing.copy(table, file, self._pace)

    def _database(self, path: str, target: Path) -> None:
        """Copy a database as it is at one moment; its writers do not wait."""
        source = self._home / path
        try:
            with (
                closing(
                    sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, isolation_level=None)
                ) as reading,
                closing(sqlite3.connect(target, isolation_level=None)) as copy,
            ):
                reading.execute("BEGIN")
                self._mark(path, reading)  # the first read takes the state that is copied
                copy.execute("PRAGMA synchronous=OFF")
                size = reading.execute("PRAGMA page_size").fetchone()[0]
                with target.open("rb") as written:
                    syncing = _Syncing(written.fileno(), size, self._pace)
                    # The copy goes on from where it was, whatever is written: the transaction keeps what is read.
                    reading.backup(copy, pages=PAGES, progress=syncing.progress)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_FULL"):
                raise StorageFull(f"no space left to copy {path}") from error
            raise StorageDamaged(f"{path} cannot be copied: {error}") from error

    def _mark(self, path: str, reading: sqlite3.Connection) -> None:
        reading.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if path.startswith(f"{HISTORY}/"):
            self._last_row = max(self._last_row, reading.execute("SELECT max(row_id) FROM rows").fetchone()[0] or 0)
        elif path == TWIN:
            self._seq = max(number or 0 for number in reading.execute(LAST_SEQ).fetchone())

    def _lake(self, writing: Writing, files: LakeFiles, lake: SealedLake) -> Iterator[Entry]:
        for part in lake.parts:
            yield writing.add_shared(f"{LAKE}/{part.path}", files.file(part.path), part.sha256)
        for commit in lake.commits:
            yield writing.add_shared(f"{LAKE}/{commit}", files.file(commit))
        if lake.head is not None:
            path, text = lake.head
            yield writing.add(f"{LAKE}/{path}", io.BytesIO(text))


class _Syncing:
    """Syncs a copy now and then and keeps to a pace, as the copy of a database goes on."""

    def __init__(self, descriptor: int, page_size: int, pace: Pace) -> None:
        self._descriptor = descriptor
        self._page_size = page_size
        self._pace = pace
        self._left: int | None = None

    def progress(self, _status: int, remaining: int, total: int) -> None:
        done = (total if self._left is None else self._left) - remaining
        self._left = remaining
        os.fdatasync(self._descriptor)
        self._pace.spent(done * self._page_size)


@contextmanager
def _storage_errors(to: Path) -> Iterator[None]:
    try:
        yield
    except SkepError:
        raise
    except FileNotFoundError as error:
        raise StorageFailed(f"{error.filename} vanished while it was copied; try again") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left for the backup in {to}") from error
        raise StorageFailed(f"the backup cannot be taken: {error}") from error


def _clear(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
