"""The bounded queue of deliveries that wait for one client, with a named overflow policy for each kind of delivery.

It holds what the client's window or socket cannot take yet, in the order it was offered, and never more than
`max_queued` deliveries or `max_bytes` bytes. What happens at the bound is the delivery's `Flow`:

* event: the oldest waiting event is dropped and counted (the twin still holds the latest value);
* property: a newer value replaces the waiting one of its topic at once, so a slow client skips to the newest;
* ledger: events make room for it, otherwise it is not taken: the ledger still has it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bindings.mqtt.engines.seam import Flow, Publish
from things.callbacks import ignore

OVERHEAD_BYTES = 256
"""What an entry costs besides its topic and payload; counted, so that a million empty payloads are not free."""


class Waiting(NamedTuple):
    """One delivery in the queue."""

    message: Publish
    delivered: Callable[[], None] | None
    queued_at: float


class Outbox:
    """Deliveries waiting for one client, oldest first."""

    __slots__ = (
        "_entries",
        "_events",
        "_next",
        "_properties",
        "coalesced",
        "dropped",
        "max_bytes",
        "max_queued",
        "rights",
        "size",
    )

    def __init__(self, max_queued: int, max_bytes: int) -> None:
        self.max_queued = max_queued
        self.max_bytes = max_bytes
        self.size = 0
        """Bytes held, overhead included."""
        self.dropped = 0
        """Deliveries given up because the queue was full."""
        self.coalesced = 0
        """Property values replaced by a newer one of the same topic."""
        self.rights: int | None = None
        """The rights (`Gate.rights`) by which all that waits was let in; None if it has to be judged when it leaves."""
        self._next = 0
        self._entries: OrderedDict[int, Waiting] = OrderedDict()
        self._events: deque[int] = deque()
        self._properties: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._entries.values())

    def offer(
        self,
        message: Publish,
        delivered: Callable[[], None] | None = None,
        now: float = 0.0,
        dropped: Callable[[Publish], object] = ignore,
    ) -> bool:
        """Queue one delivery as its flow says; False if it was not taken. `now` is kept with it, for its expiry;
        `dropped` is called with each delivery that is given up for want of room."""
        flow = message.flow
        cost = _cost(message)
        if flow is Flow.PROPERTY and (older := self._properties.pop(message.topic, None)) is not None:
            self._forget(older)
            self.coalesced += 1
        while len(self._entries) >= self.max_queued or self.size + cost > self.max_bytes:
            given_up = self._make_room(flow)
            if given_up is None:
                if flow is not Flow.LEDGER:
                    self.dropped += 1
                    dropped(message)
                return False
            self.dropped += 1
            dropped(given_up)
        key = self._next
        self._next = key + 1
        self._entries[key] = Waiting(message, delivered, now)
        self.size += cost
        if flow is Flow.EVENT:
            self._events.append(key)
        elif flow is Flow.PROPERTY:
            self._properties[message.topic] = key
        return True

    def take(self) -> Waiting:
        """Remove and return the oldest delivery; raises KeyError when empty."""
        _key, entry = self._entries.popitem(last=False)
        message = entry.message
        self.size -= _cost(message)
        if message.flow is Flow.EVENT:
            self._events.popleft()
        elif message.flow is Flow.PROPERTY:
            del self._properties[message.topic]
        return entry

    @property
    def first_row(self) -> int:
        """The lowest row of what waits; 0 if nothing that waits has one."""
        return next((one.message.row_id for one in self._entries.values() if one.message.row_id), 0)

    def forget_rows(self) -> int:
        """Forget, uncounted, what can be read again; its lowest row, 0 for none."""
        first = self.first_row
        for key in [key for key, one in self._entries.items() if one.message.row_id]:
            self._forget(key)
        self._events = deque(key for key in self._events if key in self._entries)
        self._properties = {topic: key for topic, key in self._properties.items() if key in self._entries}
        return first

    def clear(self) -> None:
        """Give everything up, uncounted: the link is gone."""
        self._entries.clear()
        self._events.clear()
        self._properties.clear()
        self.size = 0

    def _make_room(self, flow: Flow) -> Publish | None:
        """Give one delivery up for another of that flow; None if there is none."""
        if self._events:
            return self._forget(self._events.popleft())
        if flow is Flow.PROPERTY and self._properties:
            # A dict keeps insertion order and every replacement re-inserts, so its first topic is the oldest value.
            topic = next(iter(self._properties))
            return self._forget(self._properties.pop(topic))
        return None

    def _forget(self, key: int) -> Publish:
        message = self._entries.pop(key).message
        self.size -= _cost(message)
        return message


def _cost(message: Publish) -> int:
    return len(message.payload) + len(message.topic) + OVERHEAD_BYTES
