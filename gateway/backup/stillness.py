"""Who may remove files of a home: housekeeping, while no backup is taken; who takes one waits for it.

A lock of the system on `{home}/backup.lock`, which ends with its process, however that ends.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from things.errors import Locked

FILE = "backup.lock"
PATIENCE_S = 120.0
_LOOK_S = 0.1


@contextmanager
def still(home: Path, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Nothing that is sealed or superseded goes while the block runs. Raises Locked when another backup does not
    end."""
    descriptor = _opened(home)
    until = time.monotonic() + patience_s
    try:
        while not _is_taken(descriptor):
            if time.monotonic() >= until:
                raise Locked(f"another backup of {home} is being taken, or its old readings are being removed")
            time.sleep(_LOOK_S)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def allowed_to_remove(home: Path) -> Iterator[bool]:
    """Whether files may go while the block runs: no backup is taken, and none begins."""
    descriptor = _opened(home)
    try:
        yield _is_taken(descriptor)
    finally:
        os.close(descriptor)


def _opened(home: Path) -> int:
    return os.open(home / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
