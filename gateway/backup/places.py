"""Where backups go: a folder that holds many, or one file.

    FOLDER/skep-backups.json            whose backups these are, and the key of encrypted ones
    FOLDER/000007-20260131T120000Z/…    one backup: manifest.json, and files/ as they lie in the home
    FOLDER/shared/ab/ab01…              parts and commits of the lake by SHA-256, once for all backups

    NAME.tar, NAME.tar.gz               the same files in one tar archive; manifest.json is its last member

Encrypted, each file of a folder is as `gateway.backup.encryption` says, and so is the whole archive. What is being
written has a hidden name that ends with `.partial`; it gets its own name, synced, when everything is in it. So a backup
that was killed is never taken for one.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from gateway.backup.contents import ABOUT
from gateway.backup.encryption import MAGIC, DecryptedReader, EncryptedWriter, Key, Keyring, new_key
from gateway.backup.manifest import NAME, Entry, Manifest, is_inside, manifest_of, manifest_text
from gateway.home import write_whole
from things.errors import Conflict, NotFound, StorageDamaged, StorageFailed
from things.whole_files import sync

FILES, SHARED = "files", "shared"
PIECE = 1 << 20
SYNC_BYTES = 8 << 20
"""So much is written between two syncs: with more waiting in memory, the syncs of commits beside it would wait for all
of it."""
_NAMED = re.compile(r"\d{6,}-\d{8}T\d{6}Z")


class Pace:
    """Bounds bytes a second, over everything that is copied."""

    def __init__(self, bytes_per_second: float | None = None) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic()
        self._done = 0

    def spent(self, count: int) -> None:
        """So many bytes were read; returns when the next may be."""
        self._done += count
        if self._rate is not None:
            ahead_s = self._done / self._rate - (time.monotonic() - self._began)
            if ahead_s > 0:
                time.sleep(ahead_s)


class Writing(Protocol):
    """One backup that is being written."""

    def add(self, path: str, content: IO[bytes], *, mode: int = 0o600, modified: int = 0) -> Entry:
        """Copy a file to its end."""
        ...

    def add_shared(self, path: str, source: Path, sha256: str | None = None) -> Entry:
        """Copy a file that never changes; where others are kept that have it, it is not copied again."""
        ...

    def place_for(self, path: str) -> Path | None:
        """Where to write a file oneself before `added`; None where it has to be copied."""
        ...

    def added(self, path: str) -> Entry:
        """What was written there."""
        ...

    def finish(self, manifest: Manifest) -> None:
        """Make it a backup."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A backup in a folder. `manifest` is None where it cannot be read without a passphrase."""

    name: str
    bytes: int
    is_encrypted: bool
    manifest: Manifest | None


def is_archive(to: Path) -> bool:
    """Whether backups go to one file by that name."""
    return to.name.endswith((".tar", ".tar.gz", ".tgz"))


# ---------------------------------------------------------------------------- a folder


class BackupFolder:
    """A folder of backups of one installation; made by `opened_folder` or `found_folder`."""

    def __init__(self, root: Path, about: Mapping[str, Any], keyring: Keyring) -> None:
        self.root = root
        self.installation = str(about["installation"])
        self._keyring = keyring
        self.is_encrypted = about.get("key") is not None
        self._key_record: Mapping[str, Any] = about.get("key") or {}

    @property
    def key(self) -> Key | None:
        """None where nothing is encrypted. Raises Forbidden."""
        record = self._key_record
        if not record:
            return None
        return self._keyring.opened(
            n=record["n"],
            r=record["r"],
            p=record["p"],
            salt=b64decode(record["salt"]),
            wrapped=b64decode(record["wrapped"]),
        )

    def names(self) -> Sequence[str]:
        """The whole backups in it, oldest first."""
        return [name for name in self.begun() if (self.root / name / NAME).exists()]

    def begun(self) -> Sequence[str]:
        """These, and those that are half removed."""
        return sorted(path.name for path in self.root.iterdir() if _NAMED.fullmatch(path.name))

    def manifest(self, name: str) -> Manifest:
        """Raises NotFound, StorageDamaged, Forbidden."""
        try:
            with (self.root / name / NAME).open("rb") as file:
                return manifest_of(self._plain(file).read())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"{self.root} holds no whole backup {name}") from error

    def listed(self) -> Iterator[Listed]:
        """All of them, oldest first; the bytes are those that only this one takes."""
        for name in self.names():
            try:
                found: Manifest | None = self.manifest(name)
            except Exception:  # no passphrase, or damaged: `verify` says what
                found = None
            size = sum(path.stat().st_size for path in (self.root / name).rglob("*") if path.is_file())
            yield Listed(name=name, bytes=size, is_encrypted=self.is_encrypted, manifest=found)

    def contents(self, name: str) -> Iterator[tuple[str, IO[bytes]]]:
        """Every file of a backup that is there, and its manifest last."""
        manifest = self.manifest(name)
        if manifest.installation != self.installation:
            raise StorageDamaged(f"{self.root / ABOUT} names another installation than backup {name}")
        for entry in manifest.files:
            place = self._shared(entry.sha256) if entry.is_shared else self.root / name / FILES / entry.path
            try:
                with place.open("rb") as file:
                    yield entry.path, self._plain(file)
            except (FileNotFoundError, NotADirectoryError):
                continue
        yield NAME, io.BytesIO(manifest_text(manifest))

    @contextmanager
    def writing(self, name: str, pace: Pace) -> Iterator["FolderWriting"]:
        """Write a backup; it is there when `FolderWriting.finish` returns, and else as if it had never been begun."""
        draft = self.root / f".{name}.partial"
        try:
            draft.mkdir(mode=0o700)
            yield FolderWriting(self, name, draft, pace)
        finally:
            if draft.exists():
                shutil.rmtree(draft)

    def clear_partial(self) -> None:
        """Remove what killed backups left."""
        for path in self.root.glob(".*.partial"):
            shutil.rmtree(path)
        for path in (self.root / SHARED).rglob(".*.partial"):
            path.unlink()

    def keep(self, count: int) -> Sequence[str]:
        """Remove all but the newest backups, and what only they had; their names."""
        names = self.names()
        gone = names[: max(0, len(names) - count)]
        for name in gone:
            # The manifest first: what is half removed is not a backup any more.
            (self.root / name / NAME).unlink()
            sync(self.root / name)
            shutil.rmtree(self.root / name)
        if gone:
            with suppress(StorageDamaged):  # what a damaged manifest names is not known; `verify` tells of it
                self._drop_unused()
        return gone

    def _drop_unused(self) -> None:
        used = {entry.sha256 for name in self.names() for entry in self.manifest(name).files if entry.is_shared}
        for path in (self.root / SHARED).glob("??/*"):
            if path.name not in used:
                path.unlink()

    def _plain(self, file: IO[bytes]) -> IO[bytes]:
        return _decrypted(file, self._keyring)

    def _shared(self, sha256: str) -> Path:
        return self.root / SHARED / sha256[:2] / sha256


class FolderWriting:
    """One backup of a folder."""

    def __init__(self, folder: BackupFolder, name: str, draft: Path, pace: Pace) -> None:
        self._folder = folder
        self._name = name
        self._draft = draft
        self._pace = pace
        self._key = folder.key
        self._folders: set[Path] = set()

    def add(self, path: str, content: IO[bytes], *, mode: int = 0o600, modified: int = 0) -> Entry:
        size, sha256 = self._written(self._made(path), content)
        return Entry(path=path, size=size, sha256=sha256, mode=mode, modified=modified)

    def add_shared(self, path: str, source: Path, sha256: str | None = None) -> Entry:
        if sha256 is None:
            sha256 = hashlib.sha256(source.read_bytes()).hexdigest()
        size = source.stat().st_size
        target = self._folder._shared(sha256)
        if not target.exists() or target.stat().st_size < size:  # encrypted it is larger
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.partial")
            with source.open("rb") as content:
                size, found = self._written(draft, content)
            if found != sha256:
                draft.unlink()
                raise StorageDamaged(f"{source} is damaged: it is not what the lake's manifest says")
            draft.rename(target)
            self._folders |= {target.parent, target.parent.parent}
        return Entry(path=path, size=size, sha256=sha256, is_shared=True)

    def place_for(self, path: str) -> Path | None:
        return None if self._key is not None else self._made(path)

    def added(self, path: str) -> Entry:
        place = self._made(path)
        place.chmod(0o600)
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with place.open("rb") as content:
            size, sha256 = copied(content, None, self._pace)
        return Entry(path=path, size=size, sha256=sha256)

    def finish(self, manifest: Manifest) -> None:
        """Make it a backup: its manifest, then its name."""
        self._written(self._draft / NAME, io.BytesIO(manifest_text(manifest)))
        for folder in (*self._folders, *(path for path in self._draft.rglob("*") if path.is_dir()), self._draft):
            sync(folder)
        self._draft.rename(self._folder.root / self._name)
        sync(self._folder.root)

    def _made(self, path: str) -> Path:
        target = self._draft / FILES / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return target

    def _written(self, target: Path, content: IO[bytes]) -> tuple[int, str]:
        with _new_file(target) as file:
            sink = EncryptedWriter(file, self._key) if self._key is not None else file
            found = copied(content, cast(IO[bytes], sink), self._pace, synced=file)
            if isinstance(sink, EncryptedWriter):
                sink.close()
        return found


def opened_folder(root: Path, *, installation: str, gateway: str, passphrase: str | None) -> BackupFolder:
    """The folder for backups of this installation, begun if there is none. Raises Conflict for the folder of another,
    or one that is encrypted otherwise, Forbidden for another passphrase."""
    keyring = Keyring(passphrase)
    if not (root / ABOUT).exists():
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise Conflict(f"{root} holds something else than backups; give a folder of their own")
        document: dict[str, Any] = {"v": 1, "installation": installation, "gateway": gateway, "key": None}
        if passphrase is not None:
            key = new_key(passphrase)
            document["key"] = {
                "n": key.n, "r": key.r, "p": key.p,
                "salt": b64encode(key.salt).decode(), "wrapped": b64encode(key.wrapped).decode(),
            }  # fmt: skip
        write_whole(root / ABOUT, json.dumps(document, indent=1).encode() + b"\n")
    found = found_folder(root, keyring)
    if found.installation != installation:
        raise Conflict(f"{root} holds the backups of another installation; give each a folder of its own")
    if found.is_encrypted != (passphrase is not None):
        kind = "encrypted" if found.is_encrypted else "not encrypted"
        raise Conflict(f"the backups in {root} are {kind}; begin another folder for others")
    _ = found.key  # another passphrase is noticed before anything is written
    return found


def refuse_missing(root: Path) -> None:
    """Raises StorageFailed where a folder that held backups does not any more: a disk that is not mounted must not be
    taken for an empty one."""
    if not (root / ABOUT).exists():
        raise StorageFailed(f"{root} holds no backups any more; is its disk there? To begin anew: skep backup create")


def found_folder(root: Path, keyring: Keyring) -> BackupFolder:
    """A folder with backups. Raises NotFound, StorageDamaged."""
    try:
        about = json.loads((root / ABOUT).read_bytes())
        return BackupFolder(root, about, keyring)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{root} holds no backups of skep") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{root / ABOUT} cannot be read: {error}") from error


# ---------------------------------------------------------------------------- one file


class ArchiveWriting:
    """A backup in one file."""

    def __init__(self, archive: tarfile.TarFile, pace: Pace) -> None:
        self._archive = archive
        self._pace = pace

    def add(self, path: str, content: IO[bytes], *, mode: int = 0o600, modified: int = 0) -> Entry:
        # A tar archive says the size before the content, and a log may grow meanwhile.
        start = content.tell()
        size = content.seek(0, io.SEEK_END) - start
        content.seek(start)
        return self._put(path, content, size, mode, modified)

    def add_shared(self, path: str, source: Path, sha256: str | None = None) -> Entry:
        with source.open("rb") as content:
            entry = self.add(path, content)
        if sha256 not in (None, entry.sha256):
            raise StorageDamaged(f"{source} is damaged: it is not what the lake's manifest says")
        return entry

    def place_for(self, path: str) -> Path | None:
        return None

    def added(self, path: str) -> Entry:
        raise AssertionError("there is no place to write to")

    def finish(self, manifest: Manifest) -> None:
        """Its manifest, and the end of the archive."""
        text = manifest_text(manifest)
        self._put(NAME, io.BytesIO(text), len(text), 0o600, 0)

    def _put(self, path: str, content: IO[bytes], size: int, mode: int, modified: int) -> Entry:
        info = tarfile.TarInfo(path)
        info.size, info.mode, info.mtime = size, mode, modified // 1_000_000_000
        hashing = _HashingReader(content, size, self._pace)
        self._archive.addfile(info, cast(IO[bytes], hashing))
        return Entry(path=path, size=size, sha256=hashing.hexdigest(), mode=mode, modified=modified)


@contextmanager
def archive_writing(to: Path, pace: Pace, passphrase: str | None) -> Iterator[ArchiveWriting]:
    """Write a backup into one file, which has its name once the block has ended. Raises Conflict if there is one."""
    if to.exists():
        raise Conflict(f"{to} is there already")
    to.parent.mkdir(parents=True, exist_ok=True)
    draft = to.with_name(f".{to.name}.partial")
    draft.unlink(missing_ok=True)
    try:
        with _new_file(draft) as file:
            synced = _SyncedWriter(file)
            encrypted = EncryptedWriter(cast(IO[bytes], synced), new_key(passphrase)) if passphrase else None
            sink = cast(IO[bytes], encrypted or synced)
            packed = None if to.name.endswith(".tar") else gzip.GzipFile("", "wb", 1, sink, mtime=0)
            with tarfile.open(fileobj=packed or sink, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                yield ArchiveWriting(archive, pace)
            if packed is not None:
                packed.close()
            if encrypted is not None:
                encrypted.close()
        draft.rename(to)
        sync(to.parent)
    finally:
        draft.unlink(missing_ok=True)


def archive_contents(file: Path, keyring: Keyring) -> Iterator[tuple[str, IO[bytes]]]:
    """Every member of an archive in its order. Raises StorageDamaged for one that is cut off or no backup."""
    with _archive_errors(file), file.open("rb") as raw:
        plain = _decrypted(raw, keyring)
        with tarfile.open(fileobj=plain, mode="r|*") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None and is_inside(member.name):
                    yield member.name, cast(IO[bytes], _Member(content, file))


class _Member:
    """One member of an archive, whose damage is told as such."""

    def __init__(self, content: IO[bytes], file: Path) -> None:
        self._content = content
        self._file = file

    def read(self, count: int = -1) -> bytes:
        with _archive_errors(self._file):
            return self._content.read(count)


@contextmanager
def _archive_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NotFound(f"there is no backup {file}") from error
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        raise StorageDamaged(f"{file} is no whole backup: {error}") from error


# ---------------------------------------------------------------------------- reading either


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One backup to read: of a folder (`name`), or a file."""

    place: Path
    keyring: Keyring
    name: str | None = None

    def contents(self) -> Iterator[tuple[str, IO[bytes]]]:
        """Every file, the manifest last. Raises StorageDamaged, Forbidden, NotFound."""
        if self.name is None:
            return archive_contents(self.place, self.keyring)
        return found_folder(self.place, self.keyring).contents(self.name)


def source_of(place: Path, passphrase: str | None) -> Source:
    """The backup that a path names: a file, one backup of a folder, or the newest of a folder. Raises NotFound."""
    keyring, place = Keyring(passphrase), place.expanduser().absolute()
    if place.is_file():
        return Source(place=place, keyring=keyring)
    if (place.parent / ABOUT).exists():
        if not (place / NAME).exists():
            raise NotFound(f"{place} is no whole backup")
        return Source(place=place.parent, keyring=keyring, name=place.name)
    names = found_folder(place, keyring).names()
    if not names:
        raise NotFound(f"{place} holds no whole backup")
    return Source(place=place, keyring=keyring, name=names[-1])


# ---------------------------------------------------------------------------- files


def copied(
    content: IO[bytes], sink: IO[bytes] | None, pace: Pace, *, synced: IO[bytes] | None = None
) -> tuple[int, str]:
    """Copy to the end (or only read); size and SHA-256. `synced` is the file that the sink ends in."""
    found, size, since = hashlib.sha256(), 0, 0
    while piece := content.read(PIECE):
        found.update(piece)
        if sink is not None:
            sink.write(piece)
        size += len(piece)
        since += len(piece)
        if synced is not None and since >= SYNC_BYTES:
            synced.flush()
            os.fdatasync(synced.fileno())
            since = 0
        pace.spent(len(piece))
    return size, found.hexdigest()


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file for its owner only, synced at the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _decrypted(file: IO[bytes], keyring: Keyring) -> IO[bytes]:
    start = file.read(len(MAGIC))
    with suppress(io.UnsupportedOperation):
        file.seek(0)
    return cast(IO[bytes], DecryptedReader(file, keyring)) if start == MAGIC else file


class _SyncedWriter:
    """A file that is synced now and then, so that little waits in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._since = 0

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._since += len(data)
        if self._since >= SYNC_BYTES:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._since = 0
        return len(data)

    def flush(self) -> None:
        self._file.flush()


class _HashingReader:
    """The next `size` bytes of a file. A file that became shorter is noticed by the archive."""

    def __init__(self, file: IO[bytes], size: int, pace: Pace) -> None:
        self._file = file
        self._left = size
        self._pace = pace
        self._hash = hashlib.sha256()

    def read(self, count: int) -> bytes:
        data = self._file.read(min(count, self._left))
        self._left -= len(data)
        self._hash.update(data)
        self._pace.spent(len(data))
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
