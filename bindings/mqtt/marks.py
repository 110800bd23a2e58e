"""How far each persistent session has confirmed its inbox, so that a resumed one goes on where it was.

Kept in a small file that is written from time to time and at the end. A runtime that was killed resumes a moment
earlier: statuses of that moment come again, and their `seq` tells that they are not new.
"""

import logging
import os
from collections import OrderedDict
from pathlib import Path

import anyio
from pydantic_core import from_json, to_json

log = logging.getLogger(__name__)

MAX_SESSIONS = 10_000

Key = tuple[str, str]
"""Account and client id."""


class InboxMarks:
    """The last confirmed `seq` by session; the longest unused go first. Without a path nothing outlives the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._marks: OrderedDict[Key, int] = OrderedDict()
        self._is_saved = True
        if path is not None:
            self._load(path)

    def get(self, key: Key) -> int:
        """The last confirmed `seq`, 0 if nothing is known of the session."""
        return self._marks.get(key, 0)

    def put(self, key: Key, seq: int) -> None:
        """Remember; an older one changes nothing."""
        if seq > self._marks.get(key, 0):
            self._marks[key] = seq
            self._is_saved = False
        self._marks.move_to_end(key)
        while len(self._marks) > MAX_SESSIONS:
            self._marks.popitem(last=False)

    async def save(self) -> None:
        """Write what changed; a file that cannot be written is said so and tried again the next time."""
        if self._path is None or self._is_saved:
            return
        text = to_json([[account, client_id, seq] for (account, client_id), seq in self._marks.items()])
        self._is_saved = True
        try:
            await anyio.to_thread.run_sync(_write, self._path, text)
        except OSError as error:
            self._is_saved = False
            log.warning("inbox marks not written", extra={"reason": error.strerror or str(error)})

    def _load(self, path: Path) -> None:
        try:
            for account, client_id, seq in from_json(path.read_bytes()):
                self._marks[str(account), str(client_id)] = int(seq)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            # Only comfort is lost: sessions get their kept statuses again.
            log.warning("inbox marks not read", extra={"reason": str(error)})


def _write(path: Path, text: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, text)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
