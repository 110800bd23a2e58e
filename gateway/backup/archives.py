"""Backups in one file, a tar archive: the files as they lie in the home, and manifest.json as the last member.

Encrypted, the whole archive is as `gateway.backup.encryption` says. While it is written it has a hidden name that ends
with `.partial`, so that one that was killed is never taken for a backup.
"""

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from gateway.backup.copying import SYNC_BYTES, Pace, decrypted, new_file
from gateway.backup.encryption import EncryptedWriter, Keyring, new_key
from gateway.backup.manifest import NAME, Entry, Manifest, is_inside, manifest_text
from gateway.backup.sealed import LakeFile
from things.errors import Conflict, NotFound, StorageDamaged
from things.whole_files import sync


def is_archive(to: Path) -> bool:
    """Whether backups go to one file by that name."""
    return to.name.endswith((".tar", ".tar.gz", ".tgz"))


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

    def add_shared(self, path: str, source: LakeFile, sha256: str | None = None) -> Entry:
        with source.opened() as content:
            entry = self.add(path, content)
        if sha256 not in (None, entry.sha256):
            raise StorageDamaged(f"{source.path} is damaged: it is not what the lake's manifest says")
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
        with new_file(draft) as file:
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
        plain = decrypted(raw, keyring)
        with tarfile.open(fileobj=plain, mode="r|*") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None and is_inside(member.name):
                    yield member.name, cast(IO[bytes], _Member(content, file))


class _Member:
    """One member of an archive, whose damage is reported as such."""

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
