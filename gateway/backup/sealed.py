"""The lake as a backup takes it, and as a restore puts it back: one gateway's manifest up to one commit, and the parts
that are live then, in the data folder or wherever `history.lake` names.

Parts and commits never change, so a folder of backups holds each of them once. `head.json` is written anew for the
commit that was chosen, since the lake may have gone on.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

from gateway.backup.contents import LAKE
from gateway.backup.copying import PIECE
from gateway.backup.manifest import Entry
from things.errors import Conflict, StorageDamaged, StorageFailed
from things.lake import MANIFEST, Part
from things.manifest import HEAD, Head, Numbered, head_of, head_text, snapshot_from

if TYPE_CHECKING:
    from twin.lake.places import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A file of a lake that never changes."""

    path: str
    """Below the lake."""
    size: int
    opened: Callable[[], IO[bytes]]


class LakeFiles(Protocol):
    """What a backup asks of a lake."""

    def names(self, folder: str) -> Sequence[str]:
        """The files in a folder; none where there is no such folder."""
        ...

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def file(self, path: str) -> LakeFile:
        """Raises FileNotFoundError."""
        ...


class LocalLake:
    """A lake in a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, folder: str) -> Sequence[str]:
        try:
            return os.listdir(self._root / folder)
        except FileNotFoundError:
            return ()

    def read(self, path: str) -> bytes:
        return (self._root / path).read_bytes()

    def file(self, path: str) -> LakeFile:
        place = self._root / path
        return LakeFile(path=path, size=place.stat().st_size, opened=lambda: place.open("rb"))


class LakeElsewhere:
    """A lake at a URL, or in another folder."""

    def __init__(self, place: "Place") -> None:
        self._place = place
        self._sizes: Mapping[str, int] | None = None

    def names(self, folder: str) -> Sequence[str]:
        with _errors(self._place.url):
            return [found.path.rpartition("/")[2] for found in self._place.walk(folder)]

    def read(self, path: str) -> bytes:
        with _errors(self._place.url):
            return self._place.read(path)

    def file(self, path: str) -> LakeFile:
        if self._sizes is None:
            # One listing: asking for each part by itself would take longer than copying the few that are new.
            with _errors(self._place.url):
                self._sizes = {found.path: found.size for found in self._place.walk("")}
        size = self._sizes.get(path)
        if size is None:
            raise FileNotFoundError(2, "is not there", f"{self._place.url}/{path}")
        return LakeFile(path=path, size=size, opened=partial(self._opened, path))

    def _opened(self, path: str) -> IO[bytes]:
        return cast(IO[bytes], self._place.filesystem.open_input_file(path))


@contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageFailed(f"the lake {url} cannot be read: {error}") from error


def lake_of(home: Path, elsewhere: str | None) -> LakeFiles:
    """The lake of a home: its own, or the one that its configuration names. Raises StorageFailed."""
    if elsewhere is None:
        return LocalLake(home / LAKE)
    from twin.lake.places import place_of  # with Arrow

    return LakeElsewhere(place_of(elsewhere))


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedLake:
    """What to copy, by path below the lake: parts, then commits, then the head."""

    parts: tuple[Part, ...]
    commits: tuple[str, ...]
    head: tuple[str, bytes] | None
    sealed: int


def sealed_lake(lake: LakeFiles, gateway: str) -> SealedLake:
    """The lake as its manifest has it now. Raises StorageDamaged, NewerSchema."""
    folder = f"{MANIFEST}/gateway={gateway}"
    # The head first: it cannot be ahead of what is listed after it.
    try:
        head = head_of(lake.read(f"{folder}/{HEAD}"), gateway)
    except FileNotFoundError:
        head = None
    names = [name for name in lake.names(folder) if Numbered.of(name)]
    if not names and head is None:
        return SealedLake(parts=(), commits=(), head=None, sealed=0)
    try:
        snapshot = snapshot_from(gateway, names, head, lambda name: lake.read(f"{folder}/{name}"))
    except FileNotFoundError as error:
        raise StorageDamaged(f"{error.filename} vanished while it was read") from error
    commits = sorted(name for name in names if (found := Numbered.of(name)) and found.seq <= snapshot.seq)
    own = (f"{folder}/{HEAD}", head_text(gateway, Head(snapshot.seq, snapshot.digest))) if head else None
    return SealedLake(
        parts=tuple(snapshot.parts),
        commits=tuple(f"{folder}/{name}" for name in commits),
        head=own,
        sealed=snapshot.sealed,
    )


def put_back(lake: "Place", gateway: str, entries: Sequence[Entry], files: Iterator[tuple[str, IO[bytes]]]) -> bool:
    """Give a lake what it lacks of a backup, its parts before the commits that name them; a lake that has gone on since
    is left as it is. Whether it ends with the backup's last commit now. Raises Conflict for a lake with another past,
    StorageDamaged, StorageFailed."""
    folder = f"{MANIFEST}/gateway={gateway}/"
    wanted = {entry.path: entry for entry in entries}
    there = {found.path: found.size for found in lake.walk("")}
    of_backup = _newest(path.removeprefix(f"{LAKE}/{folder}") for path in wanted)
    standing = _newest(path.removeprefix(folder) for path in there if path.startswith(folder))
    if standing > of_backup:
        return False
    for path, content in files:
        entry = wanted.get(path)
        if entry is None:
            continue
        inside = path.removeprefix(f"{LAKE}/")
        if inside.startswith(folder):
            _put_commit(lake, inside, content.read(), is_there=inside in there)
        elif there.get(inside) != entry.size:
            written = lake.write(inside, partial(_poured, content))
            if written.sha256 != entry.sha256:
                raise StorageFailed(f"{lake.url}/{inside} is not what was written")
    return True


def _put_commit(lake: "Place", path: str, text: bytes, *, is_there: bool) -> None:
    if path.endswith(f"/{HEAD}"):
        lake.write(path, lambda file: file.write(text))
    elif not is_there:
        lake.create(path, text)
    elif lake.read(path) != text:
        raise Conflict(f"{lake.url} has another past than the backup: {path} differs")


def _poured(content: IO[bytes], target: IO[bytes]) -> None:
    shutil.copyfileobj(content, target, PIECE)


def _newest(names: Iterator[str]) -> int:
    return max((found.seq for name in names if (found := Numbered.of(name))), default=0)
