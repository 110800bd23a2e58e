"""Where somebody stands who is behind what is published: history is read, a piece at a time, until it has caught up.

A kept session is behind when its client comes back, and when a connected client is so slow that its queue is full; a
shared group when members come back, or leave with something unconfirmed. Then what is published is not queued but read
from history, no faster than it is taken, so that how much can be missed costs no memory. What is published while the
last piece is read and sent is held and is the next piece; once nothing was held, everything is pushed again.
"""

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from bindings.mqtt.engines.outbox import OVERHEAD_BYTES

MAX_HELD_BYTES = 1_048_576
"""Held while a piece is read and sent; what is over it is read, too."""


class Stored(Protocol):
    """What history has."""

    @property
    def row_id(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


T = TypeVar("T", bound=Stored)


class Behind(Generic[T]):
    """The position of one reader in history, and the piece that is being sent."""

    __slots__ = (
        "_has_more",
        "_held",
        "_held_bytes",
        "_last_row",
        "_next",
        "_piece",
        "is_first",
        "is_over",
        "is_reading",
        "position",
        "rights",
    )

    def __init__(self, position: int) -> None:
        self.position = position
        """All that is owed up to this row has been taken."""
        self.is_first = True
        """Nothing was read yet."""
        self.is_reading = False
        self.is_over = False
        """All was taken, and nothing was held: what is published from now on is pushed."""
        self.rights: int | None = None
        """Those by which whatever is here was judged (`Gate.rights`), or older ones."""
        self._piece: Iterator[T | None] | None = None
        self._last_row = position
        self._has_more = True
        self._next: T | None = None
        self._held: list[T] | None = None
        """None: something was not held, and has to be read."""
        self._held_bytes = 0

    def hold(self, stored: T) -> None:
        """Something was published that history has."""
        if self._held is not None:
            self._held.append(stored)
            self._held_bytes += len(stored.payload) + OVERHEAD_BYTES
            if self._held_bytes > MAX_HELD_BYTES:
                self._held = None

    def begin(self, rights: int | None) -> None:
        """A piece is going to be read, judged by these rights or newer ones."""
        self.is_reading, self.rights = True, rights
        self._held, self._held_bytes = [], 0

    def came(self, piece: Iterable[T | None], last_row: int, *, has_more: bool) -> None:
        """A piece was read, up to its last row, and is sent next; None in it is a step that found nothing."""
        self.is_reading = self.is_first = False
        self._piece, self._last_row, self._has_more = iter(piece), last_row, has_more

    def step(self) -> T | None:
        """What is to be sent next, the same one until it is `taken`; None: nothing yet, step again while there is a
        piece."""
        if self._next is None and self._piece is not None:
            try:
                self._next = next(self._piece)
            except StopIteration:
                self._end_piece()
        return self._next

    @property
    def has_piece(self) -> bool:
        """There is more to step through before history has to be read."""
        return self._piece is not None

    def taken(self) -> None:
        """What `step` returned was sent, or may not be."""
        assert self._next is not None
        self.position, self._next = self._next.row_id, None

    def _end_piece(self) -> None:
        self._piece, self.position = None, max(self.position, self._last_row)
        if self._has_more or self._held is None:
            return
        later = [each for each in self._held if each.row_id > self.position]
        self._held, self._held_bytes = [], 0
        if later:
            self._piece = iter(later)
        else:
            self.is_over = True
