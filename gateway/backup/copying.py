"""Copying the files of a backup: at a bounded pace, hashed on the way, synced before they count."""

import hashlib
import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from gateway.backup.encryption import MAGIC, DecryptedReader, Keyring

PIECE = 1 << 20
SYNC_BYTES = 8 << 20
"""So much is written between two syncs: with more waiting in memory, the syncs of commits beside it would wait for all
of it."""


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
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file for its owner only, synced at the end."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def decrypted(file: IO[bytes], keyring: Keyring) -> IO[bytes]:
    start = file.read(len(MAGIC))
    with suppress(io.UnsupportedOperation):
        file.seek(0)
    return cast(IO[bytes], DecryptedReader(file, keyring)) if start == MAGIC else file
