"""How many streams and long polls each account has open, and the bound on them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from things.errors import QueueFull


class StreamCount:
    """Counts by account; one that is full is refused, the others are not affected."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    @contextmanager
    def counted(self, account: str) -> Iterator[None]:
        """Hold one place for as long as the block runs; raises QueueFull when there is none."""
        if self._open[account] >= self._limit:
            raise QueueFull(f"account {account!r} (streams)", self._limit)
        self._open[account] += 1
        try:
            yield
        finally:
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]
