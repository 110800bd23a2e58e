"""The one-time claim by which somebody becomes the first admin of a fresh installation.

While there is no admin, each start writes 128 random bits to `{home}/claim` (0600); who can read that file, or the
terminal, may name the first admin, once and for a limited time. There is no default account and no default password.
"""

import hmac
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from things.whole_files import write_whole

VALID_S = 3_600.0


class Claim:
    """The code that is open, if any; `monotonic` gives seconds."""

    def __init__(self, file: Path, monotonic: Callable[[], float], *, valid_s: float = VALID_S) -> None:
        self._file = file
        self._monotonic = monotonic
        self._valid_s = valid_s
        self._code: str | None = None
        self._opened = 0.0

    @property
    def code(self) -> str | None:
        """The code to print, while one is open."""
        return self._code if self._code is not None and self._lives() else None

    def open(self) -> str:
        """Make a fresh code; earlier ones are void."""
        self._code = secrets.token_hex(16)
        self._opened = self._monotonic()
        write_whole(self._file, f"{self._code}\n".encode())
        return self._code

    def matches(self, code: object) -> bool:
        """Whether `code` is the open one; spaces, dashes and case do not count."""
        if not isinstance(code, str) or len(code) > 128 or self._code is None:
            return False
        given = re.sub(r"[\s-]", "", code).lower()
        same = hmac.compare_digest(given.encode(errors="replace"), self._code.encode())
        return same and self._lives()

    def close(self) -> None:
        """Void the code: it was used, or an admin exists."""
        self._code = None
        self._file.unlink(missing_ok=True)

    def _lives(self) -> bool:
        return self._monotonic() - self._opened < self._valid_s
