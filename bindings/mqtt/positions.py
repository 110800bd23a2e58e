"""How far persistent sessions have confirmed their inbox, and shared groups have been served; they go on from there.

Kept in small files that are written from time to time and at the end. A runtime that was killed goes on a moment
earlier: what was delivered in that moment comes again; of a status its `seq` tells that it is not new.
"""

import logging
from pathlib import Path

import anyio
from pydantic_core import from_json, to_json

from things.bounded import Recent
from things.whole_files import write_whole

log = logging.getLogger(__name__)

MAX_SESSIONS = 10_000

Key = tuple[str, str]
"""Account, and client id or filter of a group."""


class Positions:
    """A number that only rises for each session or group; the longest unused go first. Without a path nothing outlives
    the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._positions = Recent[Key, int](MAX_SESSIONS)
        self._is_saved = True
        if path is not None:
            self._load(path)

    def __contains__(self, key: Key) -> bool:
        return key in self._positions

    def get(self, key: Key) -> int:
        """The last number, 0 if nothing is known."""
        return self._positions.get(key, 0)

    def put(self, key: Key, seq: int) -> None:
        """Remember; an older one changes nothing."""
        if seq > self._positions.get(key, -1):
            self._positions[key] = seq
            self._is_saved = False
        else:
            self._positions.move_to_end(key)

    def drop(self, key: Key) -> None:
        """Forget."""
        if self._positions.pop(key, None) is not None:
            self._is_saved = False

    async def save(self) -> None:
        """Write what changed; a file that cannot be written is said so and tried again the next time."""
        if self._path is None or self._is_saved:
            return
        text = to_json([[account, client_id, seq] for (account, client_id), seq in self._positions.items()])
        self._is_saved = True
        try:
            await anyio.to_thread.run_sync(write_whole, self._path, text)
        except OSError as error:
            self._is_saved = False
            log.warning(
                "positions not written", extra={"file": self._path.name, "reason": error.strerror or str(error)}
            )

    def _load(self, path: Path) -> None:
        try:
            for account, client_id, seq in from_json(path.read_bytes()):
                self._positions[str(account), str(client_id)] = int(seq)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError) as error:
            # Only comfort is lost: sessions get their kept statuses again, and groups what they had.
            log.warning("positions not read", extra={"file": path.name, "reason": str(error)})
