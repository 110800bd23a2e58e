"""Where backups go and come from: a folder that holds many (`folders`), or one file (`archives`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from gateway.backup.archives import archive_contents
from gateway.backup.contents import ABOUT
from gateway.backup.encryption import Keyring
from gateway.backup.folders import found_folder
from gateway.backup.manifest import NAME, Entry, Manifest
from gateway.backup.sealed import LakeFile
from things.errors import NotFound


class Writing(Protocol):
    """One backup that is being written."""

    def add(self, path: str, content: IO[bytes], *, mode: int = 0o600, modified: int = 0) -> Entry:
        """Copy a file to its end."""
        ...

    def add_shared(self, path: str, source: LakeFile, sha256: str | None = None) -> Entry:
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
