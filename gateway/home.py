"""The data folder of one installation: who holds it, its gateway id, and what it must look like.

One process at a time holds `{home}/run.lock`, a runtime or a command that found none; the system lets go of it when the
process ends, however it ends. The file says who it is.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from things import whole_files
from things.errors import ConfigInvalid, Locked, StorageDamaged, StorageFailed, StorageFull

GATEWAY_FILE = "gateway.json"
RESTORING = ".restoring"
"""The folder inside a home in which a restore makes a new one."""
REPAIR = ".repair"
"""The end of the name of a folder with what comes into the place of a damaged store, and is not there yet."""
BEGUN = "begun.lock"
"""Locked for as long as a runtime of the folder is coming up, or up."""

RUNTIME, COMMAND = "skep run", "a command without a runtime"
"""Who holds a folder."""

_GATEWAY = re.compile(r"[a-z0-9-]{1,32}")


def prepared(home: Path) -> Path:
    """`home` as an absolute folder, made if it was missing, for its owner only. Raises ConfigInvalid if it cannot be
    used: its name, its kind, its rights."""
    home = home.expanduser().absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = home / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left in {home}") from error
        raise ConfigInvalid(f"the home folder {home} cannot be used: {error.strerror or error}") from error
    if (problem := stranger_in(home)) is not None:
        raise ConfigInvalid(problem)
    return home


def stranger_in(home: Path) -> str | None:
    """What of a folder its owner cannot read, since it is another user's, and how that is mended; None if all is
    well. A copy made by root leaves such, and so did commands of earlier versions."""
    owner = home.stat()
    if owner.st_uid == 0:  # who reads everything
        return None
    with os.scandir(home) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                readable = found.st_mode & (0o044 if found.st_gid == owner.st_gid else 0o004)
                if found.st_uid != owner.st_uid and not readable:
                    mended = f"chown -R --from={found.st_uid} {owner.st_uid}:{owner.st_gid} {home.resolve()}"
                    return f"{entry.name} in {home} is closed to the folder's owner, user {owner.st_uid}: {mended}"
    return None


def close_to_others(home: Path) -> None:
    """Take from other users what earlier versions, or another mask, let them read below `home`; all but the certificate
    of the local authority, which is for everybody, and the way to it."""
    certificates = home / "certs"
    public = {home, certificates, certificates / "ca.pem"}
    for folder, _, files in os.walk(home):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            if path in public:
                continue
            with suppress(FileNotFoundError, PermissionError):
                mode = path.lstat().st_mode
                if mode & 0o077 and not stat.S_ISLNK(mode):
                    path.chmod(stat.S_IMODE(mode) & 0o700)


@contextmanager
def held(home: Path, who: str = COMMAND) -> Iterator[None]:
    """Hold the folder while the block runs; raises Locked if another process does."""
    descriptor = os.open(home / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            process, _, holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip().partition(" ")
            by = f"{holder or 'another skep'}{f' (process {process})' if process else ''}"
            raise Locked(f"{home} is in use by {by}", by_command=holder == COMMAND) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {who}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def refuse_unfinished(home: Path) -> None:
    """Raises StorageDamaged for a home whose restore or repair was not finished."""
    if unfinished := unfinished_repairs(home):
        raise StorageDamaged(f"{unfinished[0].name} was being put in its place and is not: run skep repair again")
    if (home / RESTORING).exists():
        raise StorageDamaged(f"{home} was being restored and is not whole: run the same restore again, with --replace")


def unfinished_repairs(home: Path) -> list[Path]:
    """Folders of repaired stores that are not in their places yet."""
    return sorted([*home.glob(f"*.db{REPAIR}"), *(home / "history").glob(f"*.db*{REPAIR}")])


def held_by(home: Path) -> Locked | None:
    """Who holds the folder now; None if nobody does."""
    try:
        with held(home):
            return None
    except Locked as holder:
        return holder
    except OSError:
        return None


def is_held(home: Path) -> bool:
    """Whether a runtime or a command holds the folder now."""
    return held_by(home) is not None


@contextmanager
def begun(home: Path) -> Iterator[None]:
    """Let commands know that a runtime of this folder is coming up, or up, while the block runs: long before it holds
    the folder, since it has much to import. Raises ConfigInvalid, StorageFull."""
    descriptor = os.open(prepared(home) / BEGUN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_begun(home: Path) -> bool:
    """Whether a runtime of this folder is coming up, or up."""
    try:
        descriptor = os.open(home / BEGUN, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def gateway_id(home: Path) -> str:
    """The id under which this gateway writes into a lake; minted at first start, kept in `gateway.json`.
    Raises StorageDamaged."""
    path = home / GATEWAY_FILE
    try:
        found = json.loads(path.read_text("utf-8"))["gateway"]
    except FileNotFoundError:
        minted = f"gw-{secrets.token_hex(5)}"
        write_gateway_id(home, minted)
        return minted
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, str) or not _GATEWAY.fullmatch(found):
        raise StorageDamaged(f"{path.name} holds no gateway id ([a-z0-9-], at most 32)")
    return found


def write_gateway_id(home: Path, gateway: str) -> None:
    """Keep the id. Raises StorageFailed, StorageFull."""
    write_whole(home / GATEWAY_FILE, json.dumps({"gateway": gateway}).encode() + b"\n")


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file so that a reader, or a power cut, finds the old or the new content and nothing between. Raises
    StorageFull, StorageFailed."""
    try:
        whole_files.write_whole(path, content, mode)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left to write {path.name}") from error
        raise StorageFailed(f"{path.name} cannot be written: {error.strerror or error}") from error
