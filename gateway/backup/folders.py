"""Backups in a folder, which holds many of one installation.

    FOLDER/skep-backups.json            whose backups these are, and the key of encrypted ones
    FOLDER/000007-20260131T120000Z/…    one backup: manifest.json, and files/ as they lie in the home
    FOLDER/shared/ab/ab01…              parts and commits of the lake by SHA-256, once for all backups

Encrypted, each file is as `gateway.backup.encryption` says. What is being written has a hidden name that ends with
`.partial`; it gets its own name, synced, when everything is in it. So a backup that was killed is never taken for one.
"""

import hashlib
import io
import json
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gateway.backup.contents import ABOUT
from gateway.backup.copying import Pace, copied, decrypted, new_file
from gateway.backup.encryption import EncryptedWriter, Key, Keyring, new_key
from gateway.backup.manifest import NAME, Entry, Manifest, manifest_of, manifest_text
from gateway.backup.sealed import LakeFile
from gateway.home import write_whole
from things.errors import Conflict, NotFound, StorageDamaged, StorageFailed
from things.whole_files import sync

FILES, SHARED = "files", "shared"
_NAMED = re.compile(r"\d{6,}-\d{8}T\d{6}Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A backup in a folder. `manifest` is None where it cannot be read without a passphrase."""

    name: str
    bytes: int
    is_encrypted: bool
    manifest: Manifest | None


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
        return decrypted(file, self._keyring)

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

    def add_shared(self, path: str, source: LakeFile, sha256: str | None = None) -> Entry:
        if sha256 is None:
            with source.opened() as content:
                sha256 = hashlib.sha256(content.read()).hexdigest()
        size = source.size
        target = self._folder._shared(sha256)
        if not target.exists() or target.stat().st_size < size:  # encrypted it is larger
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = target.with_name(f".{target.name}.partial")
            with source.opened() as content:
                size, found = self._written(draft, content)
            if found != sha256:
                draft.unlink()
                raise StorageDamaged(f"{source.path} is damaged: it is not what the lake's manifest says")
            draft.rename(target)
            self._folders |= {target.parent, target.parent.parent}
        return Entry(path=path, size=size, sha256=sha256, is_shared=True)

    def place_for(self, path: str) -> Path | None:
        return None if self._key is not None else self._made(path)

    def added(self, path: str) -> Entry:
        place = self._made(path)
        place.chmod(0o600)
        sync(place)
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
        with new_file(target) as file:
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
