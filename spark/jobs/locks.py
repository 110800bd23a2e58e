"""One job at a time writes a table: a lock beside it, which ends with its process however that ends.

Locks work where the table, or the lake, is a folder of this machine. On object stores nothing keeps two jobs apart:
rows they publish are stored once all the same, but a folder that both write with `--out` is undefined.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from things.errors import Conflict


@contextmanager
def only_job(base: str | None, folder: str = "", name: str | None = "_job") -> Iterator[None]:
    """Hold `{base}/{folder}/{name}.lock`; nothing to hold when base or name is None. Raises Conflict when another job
    has it. Readers of Parquet pass over names that begin with an underscore."""
    if base is None or name is None or ":/" in base:
        yield
        return
    path = Path(base) / folder / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        # A lake that may only be read: another job that may not write it either is no worse than one job.
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode() or "unknown"
            raise Conflict(f"another job (process {holder}) is writing {path.with_suffix('')}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
