"""What waits to be written to one socket: bounded, each kind with its own policy of overflow.

Answers, requests and statuses are owed: over the bound of owed messages a request or status is refused (the ledger
keeps it) and an answer ends the socket. Of notifications the newest value of each property is kept and events are
dropped, oldest first: the twin still holds the latest value.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from things.callbacks import ignore


@dataclass(slots=True)
class _Waiting:
    text: bytes
    written: Callable[[], None] | None
    """Of an owed message: run once it has been written."""
    is_owed: bool
    series: Hashable | None = None
    """Of a property's value: what a newer one replaces."""
    kind: str = ""
    """Of a notification: what it is about."""
    permitted: Callable[[], bool] | None = None
    """Of a notification: whether its client may still see it."""


class WebThingOutbox:
    """The queue between whoever has something to say to a client and the one task that writes."""

    def __init__(
        self,
        *,
        max_owed: int,
        max_notifications: int,
        max_bytes: int,
        given_up: Callable[[str], object] = ignore,
    ) -> None:
        """`given_up` is called with the kind of each notification that is dropped, unless a newer value of its property
        waits."""
        self._max_owed = max_owed
        self._max_notifications = max_notifications
        self._max_bytes = max_bytes
        self._waiting: deque[_Waiting] = deque()
        self._owed = 0
        self._noted = 0
        self._bytes = 0
        self._wake = asyncio.Event()
        self._given_up = given_up
        self.dropped = 0
        self.is_closed = False

    @property
    def has_room(self) -> bool:
        """Whether half of what may be owed is free again."""
        return self._owed <= self._max_owed // 2

    def owe(self, text: bytes, written: Callable[[], None] | None = None) -> bool:
        """Queue a message that must arrive; False if too many wait already."""
        if self.is_closed or self._owed >= self._max_owed:
            return False
        self._owed += 1
        self._waiting.append(_Waiting(text, written, True))
        self._wake.set()
        return True

    def note(
        self,
        text: bytes,
        series: Hashable | None = None,
        *,
        kind: str = "",
        permitted: Callable[[], bool] | None = None,
    ) -> None:
        """Queue a notification of some kind; `series` names the property whose value it is, None for events;
        `permitted` is asked when its turn comes."""
        if self.is_closed:
            return
        self._waiting.append(_Waiting(text, None, False, series, kind, permitted))
        self._noted += 1
        self._bytes += len(text)
        if self._noted > self._max_notifications or self._bytes > self._max_bytes:
            self._shed()
        self._wake.set()

    async def next(self) -> tuple[bytes, Callable[[], None] | None] | None:
        """The next message and what to run once it is written; None when the outbox is closed."""
        while True:
            while not self._waiting:
                if self.is_closed:
                    return None
                self._wake.clear()
                await self._wake.wait()
            item = self._waiting.popleft()
            if item.is_owed:
                self._owed -= 1
            else:
                self._noted -= 1
                self._bytes -= len(item.text)
            if item.permitted is None or item.permitted():
                return item.text, item.written

    def close(self) -> None:
        """Nothing more will be written."""
        self.is_closed = True
        self._waiting.clear()
        self._wake.set()

    def _shed(self) -> None:
        """Down to half of the bounds, so that a slow client does not cost a walk for each message."""
        kept: deque[_Waiting] = deque()
        seen: set[Hashable] = set()
        noted = size = 0
        for item in reversed(self._waiting):
            if not item.is_owed:
                fits = noted < self._max_notifications // 2 and size + len(item.text) <= self._max_bytes // 2
                is_superseded = item.series is not None and item.series in seen
                if not fits or is_superseded:
                    self.dropped += 1
                    if not is_superseded:
                        self._given_up(item.kind)
                    continue
                if item.series is not None:
                    seen.add(item.series)
                noted += 1
                size += len(item.text)
            kept.appendleft(item)
        self._waiting, self._noted, self._bytes = kept, noted, size
