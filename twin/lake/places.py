"""Where a lake lies: a local folder, or any filesystem that pyarrow or fsspec can reach by URL.

Locally a file is written under a hidden temporary name, synced, and renamed; the folders are synced as well. Object
stores make a file visible only when it is complete, so there it is written under its final name. In both cases nothing
counts before the manifest names it.
"""

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from things.blocks import BlockSums, Content, OpenedContent
from things.errors import Conflict, SkepError, StorageFailed, StorageFull, Unavailable
from things.lake import Part
from things.whole_files import sync, written_whole

WRITERS = 4
"""Files written at the same time: while one waits for its disk, others are made ready, and syncs share a flush."""

Fill = Callable[[Any], object]
"""Writes a file's content to a binary file object."""

Create = Callable[[str, bytes], None]

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Found(NamedTuple):
    """One file: its path relative to the lake, its size, and when it was last written (µs UTC)."""

    path: str
    size: int
    modified: int


class Written(NamedTuple):
    """A file that is complete and synced."""

    path: str
    size: int
    sha256: str
    sums: str
    """Of its blocks."""

    def part(self, *, rows: int, first: int, last: int) -> Part:
        """The file as a commit names it."""
        return Part(path=self.path, rows=rows, sha256=self.sha256, first=first, last=last, sums=self.sums)


class Place(Protocol):
    """What sealing and reading ask of a lake's filesystem. Paths are relative, with `/`."""

    @property
    def url(self) -> str: ...

    @property
    def filesystem(self) -> pafs.FileSystem:
        """Rooted at the lake."""
        ...

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def content(self, path: str) -> Content:
        """Parts of a file's bytes. Raises OSError."""
        ...

    def write(self, path: str, fill: Fill) -> Written:
        """Make a file durable under `path`; `fill` writes it to a binary file object. Replaces what was there."""
        ...

    def write_all(self, files: Iterable[tuple[str, Fill]]) -> list[Written]:
        """The same for many files, several at a time; all of them are durable when this returns. Files may be missing
        and others there when it raises."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Like `write`, but raises Conflict if the path is taken."""
        ...

    def exists(self, path: str) -> bool: ...

    def walk(self, folder: str) -> Iterator[Found]:
        """All files below a folder, hidden ones too; nothing if there is no such folder."""
        ...

    def remove(self, path: str) -> None:
        """Idempotent."""
        ...


def place_of(lake: str | Path) -> Place:
    """The place that a folder or URL names."""
    text = str(lake)
    if text.startswith("file://"):
        text = text[7:]
    if isinstance(lake, Path) or not _URL.match(text):
        return LocalPlace(Path(text))
    return RemotePlace.of(text)


class LocalPlace:
    """A folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @property
    def url(self) -> str:
        return str(self.root)

    @property
    def filesystem(self) -> pafs.FileSystem:
        return pafs.SubTreeFileSystem(str(self.root), pafs.LocalFileSystem())

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def content(self, path: str) -> Content:
        return _LocalContent(self.root / path)

    def write(self, path: str, fill: Fill) -> Written:
        return self.write_all([(path, fill)])[0]

    def write_all(self, files: Iterable[tuple[str, Fill]]) -> list[Written]:
        with _storage_errors(str(self.root)), ThreadPoolExecutor(WRITERS, "lake") as writing:
            changed: set[Path] = set()
            asked = []
            for path, fill in files:
                changed |= self._made_folders((self.root / path).parent)
                asked.append(writing.submit(self._fill, path, fill))
            written = [one.result() for one in asked]
            list(writing.map(sync, changed))
        return written

    def _fill(self, path: str, fill: Fill) -> Written:
        """Write, sync and rename; the folder's entry is not durable yet."""
        target = self.root / path
        with _storage_errors(str(target)), written_whole(target) as file:
            hashing = _Hashing(file)
            fill(hashing)
        return hashing.written(path)

    def create(self, path: str, data: bytes) -> None:
        target = self.root / path
        with _storage_errors(str(target)):
            changed = self._made_folders(target.parent)
            try:
                with written_whole(target, replace=False) as file:
                    file.write(data)
            except FileExistsError as error:
                raise Conflict(f"{path} is already there") from error
            for folder in changed:
                sync(folder)

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def walk(self, folder: str) -> Iterator[Found]:
        for base, folders, names in os.walk(self.root / folder):
            folders.sort()
            for name in sorted(names):
                full = Path(base, name)
                try:
                    status = full.stat()
                except FileNotFoundError:
                    continue
                yield Found(full.relative_to(self.root).as_posix(), status.st_size, status.st_mtime_ns // 1000)

    def remove(self, path: str) -> None:
        with _storage_errors(path):
            (self.root / path).unlink(missing_ok=True)

    def _made_folders(self, folder: Path) -> set[Path]:
        """Make a folder; it, and whichever got a new entry on the way, are to be synced."""
        changed = {folder}
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            changed.add(new.parent)
        return changed


class RemotePlace:
    """A folder of a filesystem that is reached by URL, such as `s3://bucket/lake` or `hdfs://host/lake`.

    A name is created at most once where the store can do that and its client says so (fsspec). pyarrow's own clients
    do not: there a name is looked up before it is written and read again after it, and what slips through is noticed by
    `twin.lake.witness`.
    """

    def __init__(self, url: str, filesystem: pafs.FileSystem, create: Create | None = None) -> None:
        """`create` writes a file if its path is free, and raises FileExistsError if not."""
        self._url = url
        self._filesystem = filesystem
        self._create = create

    @classmethod
    def of(cls, url: str) -> "RemotePlace":
        try:
            base, path = pafs.FileSystem.from_uri(url)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            base, path, create = _fsspec(url, error)
            return cls(url, pafs.SubTreeFileSystem(path, base), create)
        return cls(url, pafs.SubTreeFileSystem(path, base))

    @property
    def url(self) -> str:
        return self._url

    @property
    def filesystem(self) -> pafs.FileSystem:
        return self._filesystem

    def read(self, path: str) -> bytes:
        with self._filesystem.open_input_stream(path) as stream:
            return stream.read()  # type: ignore[no-any-return]

    def content(self, path: str) -> Content:
        return OpenedContent(self._filesystem.open_input_file(path))

    def write(self, path: str, fill: Fill) -> Written:
        with _storage_errors(f"{self._url}/{path}"):
            self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self._filesystem.open_output_stream(path) as stream:
                hashing = _Hashing(stream)
                fill(hashing)
        return hashing.written(path)

    def write_all(self, files: Iterable[tuple[str, Fill]]) -> list[Written]:
        with ThreadPoolExecutor(WRITERS, "lake") as writing:
            return list(writing.map(lambda file: self.write(*file), files))

    def create(self, path: str, data: bytes) -> None:
        if self._create is not None:
            try:
                with _storage_errors(f"{self._url}/{path}"):
                    self._create(path, data)
            except FileExistsError as error:
                raise Conflict(f"{path} is already there") from error
            return
        if self.exists(path):
            raise Conflict(f"{path} is already there")
        self.write(path, lambda file: file.write(data))
        if self.read(path) != data:
            raise Conflict(f"{path} was written by another at the same time")

    def exists(self, path: str) -> bool:
        return self._filesystem.get_file_info(path).type == pafs.FileType.File  # type: ignore[no-any-return]

    def walk(self, folder: str) -> Iterator[Found]:
        selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
        for info in sorted(self._filesystem.get_file_info(selector), key=lambda info: info.path):
            if info.type == pafs.FileType.File:
                modified = (info.mtime_ns or 0) // 1000
                yield Found(info.path, info.size, modified)

    def remove(self, path: str) -> None:
        with _storage_errors(path):
            if self.exists(path):
                self._filesystem.delete_file(path)


class _LocalContent:
    """Opened for each read: thousands of parts are named at once, more than a process may hold open."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self) -> int:
        return self._path.stat().st_size

    def read_at(self, offset: int, length: int) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(length)
            while len(data) < length and (more := file.read(length - len(data))):
                data += more
            return data


class _Hashing:
    """A binary file that counts and hashes what passes."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._sums = BlockSums()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._sums.update(data)
        self._file.write(data)
        length = memoryview(data).nbytes
        self.size += length
        return length

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """The place closes the file itself, after syncing it."""

    def written(self, path: str) -> Written:
        return Written(path, self.size, self._hash.hexdigest(), self._sums.hexdigest())


def _fsspec(url: str, reason: Exception) -> tuple[pafs.FileSystem, str, Create | None]:
    try:
        import fsspec
    except ImportError:
        raise Unavailable(
            f"no filesystem for {url!r} ({reason}); fsspec, which knows more, is not installed"
        ) from reason
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError, OSError) as error:
        raise Unavailable(f"no filesystem for {url!r}: {error}") from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path, exclusive(filesystem, path)


def exclusive(filesystem: Any, folder: str) -> Create | None:
    """How an fsspec filesystem creates a file at most once; None for one too old to say that it can."""
    if "mode" not in inspect.signature(filesystem.pipe_file).parameters:
        return None

    def create(path: str, data: bytes) -> None:
        filesystem.pipe_file(f"{folder}/{path}", data, mode="create")

    return create


@contextmanager
def _storage_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (SkepError, FileExistsError):
        raise
    except OSError as error:
        if error.errno == 28:
            raise StorageFull(f"no space left to write {path}") from error
        raise StorageFailed(f"cannot write {path}: {error.strerror or error}") from error
