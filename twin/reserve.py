"""A file kept for bad days: deleting needs space too, so some is set aside while there is plenty.

When the disk is full the file is given up, which leaves room for purges and for final states of requests; it is made
again before writes are accepted, so that they resume only when there is real room.
"""

import logging
import os
from pathlib import Path

from things.whole_files import write_whole

log = logging.getLogger(__name__)

DEFAULT_RESERVE_BYTES = 4 * 1024 * 1024


class Reserve:
    """Space set aside at `path`. Its methods block and are safe to call from any thread."""

    def __init__(self, path: Path, size_bytes: int = DEFAULT_RESERVE_BYTES) -> None:
        self._path = path
        self._size = size_bytes

    def release(self) -> None:
        """Give the space up."""
        self._path.unlink(missing_ok=True)

    def restore(self) -> bool:
        """Set the space aside again; False if there is not twice as much free."""
        try:
            if self._path.stat().st_size == self._size:
                return True
        except FileNotFoundError:
            pass
        if _free_bytes(self._path.parent) < 2 * self._size:
            return False
        try:
            # Zeros are written rather than allocated: not every file system a gateway has can allocate.
            write_whole(self._path, bytes(self._size))
        except OSError as error:
            log.debug("the reserve does not fit", extra={"reason": str(error)})
            return False
        return True


def _free_bytes(folder: Path) -> int:
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
