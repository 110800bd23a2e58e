"""Who waits for changes of the directory: streams of its notifications, woken to read what changed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Changes:
    """Tells everyone who waits that something changed; what, they ask the directory."""

    def __init__(self) -> None:
        self._waiting: set[Callable[[], None]] = set()

    def heard(self) -> None:
        """Something changed."""
        for wake in self._waiting:
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake`, which does not block, at each change while the block runs."""
        self._waiting.add(wake)
        try:
            yield
        finally:
            self._waiting.discard(wake)
