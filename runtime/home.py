"""The data folder of one installation: who holds it, its gateway id, and what it must look like.

One runtime at a time holds `{home}/run.lock`; the system lets go of it when the process ends, however it ends.
"""

import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from things.errors import ConfigInvalid, Locked, StorageDamaged, StorageFailed

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
        raise ConfigInvalid(f"the home folder {home} cannot be used: {error.strerror or error}") from error
    return home


@contextmanager
def held(home: Path) -> Iterator[None]:
    """Hold the folder while the block runs; raises Locked if another process does."""
    descriptor = os.open(home / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise Locked(f"{home} is in use by another skep{f' (process {holder})' if holder else ''}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_held(home: Path) -> bool:
    """Whether a runtime holds the folder now."""
    try:
        with held(home):
            return False
    except Locked:
        return True
    except OSError:
        return False


def gateway_id(home: Path) -> str:
    """The id under which this gateway writes into a lake; minted at first start, kept in `gateway.json`.
    Raises StorageDamaged."""
    path = home / "gateway.json"
    try:
        found = json.loads(path.read_text("utf-8"))["gateway"]
    except FileNotFoundError:
        minted = f"gw-{secrets.token_hex(5)}"
        write_whole(path, json.dumps({"gateway": minted}).encode() + b"\n")
        return minted
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{path.name} cannot be read: {error}") from error
    if not isinstance(found, str) or not _GATEWAY.fullmatch(found):
        raise StorageDamaged(f"{path.name} holds no gateway id ([a-z0-9-], at most 32)")
    return found


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file so that a reader, or a power cut, finds the old or the new content and nothing between."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        raise StorageFailed(f"{path.name} cannot be written: {error.strerror or error}") from error
