"""What waits for one session's client, bounded by who caused it.

What others send counts for their account: each has a share, and all together a bound. Over its share a sender is read
more slowly, then refused, or loses the oldest of its news; nobody else's messages and no session end by that. What
answers the client itself counts for the client, which is not read while it does not read its answers.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from bindings.messaging_node.settings import NodeSettings

R = TypeVar("R")
"""Whose outbox it is."""

OWN = ""
"""The cause of what answers the client itself."""
_LITTLE = 16
SHARE = 4
"""One sender has this part of the bounds."""


class Item(Generic[R]):
    """One message; that of a change is one for all its receivers. `permitted` says whether a receiver may still see it,
    and is asked when its turn comes."""

    __slots__ = ("cause", "is_news", "permitted", "text")

    def __init__(self, text: bytes, permitted: Callable[[R], bool] | None, cause: str, *, is_news: bool) -> None:
        self.text = text
        self.permitted = permitted
        self.cause = cause
        self.is_news = is_news


class _Use(Generic[R]):
    """What one cause has waiting."""

    __slots__ = ("bytes", "count", "freed", "is_stuck", "news")

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.news: deque[Item[R]] = deque()
        self.freed: asyncio.Event | None = None
        """Set when half of the share is free again."""
        self.is_stuck = False
        """Waiting for room was in vain: nobody waits again before there is some."""


class NodeOutbox(Generic[R]):
    """Messages in their order. Little of it is not counted by cause: most outboxes are empty again at once."""

    __slots__ = (
        "_bytes",
        "_gone",
        "_items",
        "_little",
        "_live",
        "_most",
        "_most_bytes",
        "_share_bytes",
        "_uses",
        "dropped",
        "is_counting",
        "taken",
    )

    def __init__(self, settings: NodeSettings) -> None:
        self._most = settings.max_outbox
        self._most_bytes = settings.max_outbox_bytes
        self._share_bytes = settings.max_outbox_bytes // SHARE
        self._little = min(_LITTLE, settings.max_outbox // (2 * SHARE))
        self._items: deque[Item[R]] = deque()
        self._gone: set[int] = set()
        """Identities of those that were dropped and still stand in line."""
        self._uses: dict[str, _Use[R]] = {}
        self.is_counting = False
        """Whether so much waits that it matters who caused it; otherwise there is room for any message."""
        self._live = 0
        """Messages in line without those that were dropped."""
        self._bytes = 0
        self.taken = 0
        self.dropped = 0
        """News that went unseen because their sender's share was full."""

    def __len__(self) -> int:
        return self._live

    # ------------------------------------------------------------ room

    def has_room(self, cause: str, size: int) -> bool:
        """Whether one more message fits into its sender's share, and into what all share. One always fits into an
        empty share, however large."""
        if not self.is_counting:
            return True
        use = self._uses.get(cause)
        is_used = use is not None and use.count > 0
        if is_used and use and (use.count >= max(1, self._most // SHARE) or use.bytes + size > self._share_bytes):
            return False
        others = self._live - self._count(OWN)
        return not others or (others < self._most and self._bytes - self._size(OWN) + size <= self._most_bytes)

    @property
    def is_own_full(self) -> bool:
        """Whether so much waits that answers its client that no more should be asked."""
        return self._count(OWN) >= max(1, self._most // SHARE) or self._size(OWN) >= self._share_bytes

    @property
    def is_overrun(self) -> bool:
        """Whether the client caused more than can be kept for it."""
        return self._count(OWN) > 2 * self._most or self._size(OWN) > 2 * self._most_bytes

    def is_stuck(self, cause: str) -> bool:
        """Whether waiting for room was in vain, and there has been none since."""
        use = self._uses.get(cause)
        return use is not None and use.is_stuck

    def give_up(self, cause: str) -> None:
        """Waiting for room was in vain."""
        use = self._uses.get(cause)
        if use is not None and use.count:
            use.is_stuck = True
        elif use is not None:
            del self._uses[cause]

    def freed(self, cause: str) -> asyncio.Event:
        """Set when half of a sender's share is free."""
        use = self._uses.setdefault(cause, _Use())
        if use.freed is None:
            use.freed = asyncio.Event()
        return use.freed

    # ------------------------------------------------------------ in and out

    def put(self, item: Item[R]) -> None:
        self._items.append(item)
        self._live += 1
        self._bytes += len(item.text)
        if self.is_counting:
            self._count_in(item)
        elif self._live > self._little or self._bytes > self._share_bytes // 2:
            self._count_all()

    def put_news(self, item: Item[R]) -> None:
        """Take news; where its sender's share is full, the oldest of it goes, or these if there is none."""
        if self.is_counting:
            use = self._uses.get(item.cause)
            while not self.has_room(item.cause, len(item.text)):
                self.dropped += 1
                if use is None or not use.news:
                    return
                oldest = use.news[0]
                self._count_out(oldest)
                self._gone.add(id(oldest))
            if len(self._gone) > self._live + _LITTLE:
                self._items = deque(one for one in self._items if id(one) not in self._gone)
                self._gone.clear()
        self.put(item)

    def take(self) -> Item[R] | None:
        while self._items:
            item = self._items.popleft()
            if self.is_counting:
                if id(item) in self._gone:
                    self._gone.remove(id(item))
                    continue
                self._free(item.cause, self._count_out(item))
            else:
                self._live -= 1
                self._bytes -= len(item.text)
            self.taken += 1
            return item
        return None

    def put_back(self, item: Item[R]) -> None:
        """What was taken and not written stays the next."""
        self._items.appendleft(item)
        self._live += 1
        self._bytes += len(item.text)
        if self.is_counting:
            self._count_in(item, is_first=True)

    def drop(self) -> list[bytes]:
        """Empty it; what was in it."""
        left = [item.text for item in self._items if id(item) not in self._gone]
        self._items.clear()
        self._gone.clear()
        self._bytes = self._live = 0
        self._count_no_more()
        return left

    # ------------------------------------------------------------

    def _count_all(self) -> None:
        self.is_counting = True
        for item in self._items:
            self._count_in(item)

    def _count_no_more(self) -> None:
        self.is_counting = False
        for use in self._uses.values():
            if use.freed is not None:
                use.freed.set()
        self._uses.clear()

    def _count(self, cause: str) -> int:
        use = self._uses.get(cause)
        return 0 if use is None else use.count

    def _size(self, cause: str) -> int:
        use = self._uses.get(cause)
        return 0 if use is None else use.bytes

    def _count_in(self, item: Item[R], *, is_first: bool = False) -> None:
        use = self._uses.get(item.cause)
        if use is None:
            use = self._uses[item.cause] = _Use()
        use.count += 1
        use.bytes += len(item.text)
        if item.is_news:
            if is_first:
                use.news.appendleft(item)
            else:
                use.news.append(item)

    def _count_out(self, item: Item[R]) -> _Use[R]:
        """One that is the oldest of its cause goes."""
        use = self._uses[item.cause]
        size = len(item.text)
        use.count -= 1
        use.bytes -= size
        self._bytes -= size
        self._live -= 1
        if item.is_news:
            use.news.popleft()
        return use

    def _free(self, cause: str, use: _Use[R]) -> None:
        """The client took one: only that makes room worth waiting for."""
        if use.count <= self._most // (2 * SHARE) and use.bytes <= self._most_bytes // (2 * SHARE):
            use.is_stuck = False
            if use.freed is not None:
                use.freed.set()
                use.freed = None
        if not self._live:
            self._count_no_more()
        elif not use.count and use.freed is None:
            del self._uses[cause]
