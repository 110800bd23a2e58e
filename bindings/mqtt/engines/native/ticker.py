"""One timer for every deadline of every connection: CONNECT, keep-alive, and the end of a close that does not end.

A packet only notes when it came. The connection is looked at when its deadline would be due, and put back if it was
heard of since: no timer is made or cancelled for a packet.
"""

from typing import Protocol

SLOT_S = 0.25
"""How exact a deadline is."""


class Timed(Protocol):
    """Something with a deadline that may move while it waits."""

    slot: int

    def due(self, now: float) -> float | None:
        """Act if the deadline has come; the next deadline, or None if there is none."""
        ...


_EMPTY: tuple[int, dict[Timed, None]] = (0, {})


class Ticker:
    """Slots of time, each with what may be due in it."""

    def __init__(self, now: float) -> None:
        # A dict needs half of what a set does for thousands, and all of a slot share its number.
        self._slots: dict[int, tuple[int, dict[Timed, None]]] = {}
        self._done = int(now / SLOT_S)

    def add(self, timed: Timed, at: float) -> None:
        """Look at `timed` at or shortly after `at`; it may be in one slot only."""
        # One slot later than it falls in: a deadline is never early.
        number = max(int(at / SLOT_S), self._done) + 1
        timed.slot, waiting = self._slots.setdefault(number, (number, {}))
        waiting[timed] = None

    def remove(self, timed: Timed) -> None:
        """Forget `timed`."""
        if (slot := self._slots.get(timed.slot)) is not None:
            slot[1].pop(timed, None)

    def tick(self, now: float) -> None:
        """Look at everything whose slot has passed."""
        current = int(now / SLOT_S)
        for number in range(self._done + 1, current + 1):
            self._done = number
            for timed in list(self._slots.pop(number, _EMPTY)[1]):
                again = timed.due(now)
                if again is not None:
                    self.add(timed, again)
        self._done = current
