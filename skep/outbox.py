"""What an agent has to say and the runtime has not acknowledged: ordered, bounded, kept while offline.

Items are *waiting* until taken, then *under way* until confirmed. When a connection ends, what was under way is
recalled to the front in its old order. Overflow policy: drop the oldest waiting item and count it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Signal:
    """Wakes everyone who waits, each time something changed; look first, then wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        await self._event.wait()


class ReadingOutbox(Generic[T]):
    """A queue whose items leave it when they are confirmed, not when they are taken; `signal` tells of each change."""

    def __init__(self, signal: Signal, *, max_items: int, max_bytes: int, size: Callable[[T], int]) -> None:
        self._signal = signal
        self._max_items, self._max_bytes, self._size = max_items, max_bytes, size
        self._waiting: OrderedDict[int, T] = OrderedDict()
        self._under_way: OrderedDict[int, T] = OrderedDict()
        self._bytes = 0
        self._next = 0
        self.dropped = 0
        """Items that had to go because the outbox was full."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def __contains__(self, item: T) -> bool:
        return item in self._waiting.values() or item in self._under_way.values()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        return len(self) >= self._max_items or self._bytes >= self._max_bytes

    def put(self, item: T) -> None:
        self._waiting[self._next] = item
        self._next += 1
        self._bytes += self._size(item)
        while (len(self) > self._max_items or self._bytes > self._max_bytes) and len(self._waiting) > 1:
            _, oldest = self._waiting.popitem(last=False)
            self._bytes -= self._size(oldest)
            self.dropped += 1
        self._signal.notify()

    def take(self, max_items: int, max_bytes: int) -> Sequence[tuple[int, T]]:
        """The oldest waiting items within both bounds (at least one if any waits); they are under way from now on."""
        taken: list[tuple[int, T]] = []
        total = 0
        while self._waiting and len(taken) < max_items:
            number, item = next(iter(self._waiting.items()))
            total += self._size(item)
            if taken and total > max_bytes:
                break
            del self._waiting[number]
            self._under_way[number] = item
            taken.append((number, item))
        return taken

    def confirm(self, numbers: Sequence[int]) -> None:
        """These were acknowledged; unknown numbers are no error."""
        for number in numbers:
            item = self._under_way.pop(number, None)
            if item is not None:
                self._bytes -= self._size(item)
        self._signal.notify()

    def recall(self) -> None:
        """What is under way waits again, in front, in its old order."""
        if self._under_way:
            again = {**self._under_way, **self._waiting}
            self._waiting = OrderedDict(sorted(again.items()))
            self._under_way.clear()
        self._signal.notify()
