"""Where a kept session stands while it is behind what is published: it reads history until it has caught up.

It is behind when its client comes back, and when a connected client is so slow that its queue is full. Then what is
published is not queued but read from history, a piece at a time and no faster than the client takes it, so that how
much it can miss costs no memory. What is pushed while the last piece is read and sent is held and follows it; from then
on everything is pushed again.
"""

from collections.abc import Sequence

from bindings.mqtt.engines.outbox import OVERHEAD_BYTES
from bindings.mqtt.engines.seam import Missed, Publish

FEWEST, MOST = 16, 512
"""Deliveries of a piece: more while they are small."""
PIECE_BYTES = 262_144
MAX_HELD_BYTES = 1_048_576
"""Held while a piece is read and sent; what is over it is read, too."""


class Behind:
    """The position of one session in history, and the piece that is being sent."""

    __slots__ = ("_held", "_held_bytes", "_next", "_piece", "is_first", "is_reading", "limit", "position", "rights")

    def __init__(self, position: int) -> None:
        self.position = position
        """All that the session is owed up to this row has been sent."""
        self.limit = FEWEST
        self.is_first = True
        self.is_reading = False
        self.rights: int | None = None
        """By which the piece was judged."""
        self._piece: Missed | None = None
        self._next = 0
        self._held: list[Publish] | None = None
        """None: something was not held, and has to be read."""
        self._held_bytes = 0

    def hold(self, message: Publish) -> None:
        """Something was pushed that history has."""
        if self._held is not None:
            self._held.append(message)
            self._held_bytes += len(message.payload) + len(message.topic) + OVERHEAD_BYTES
            if self._held_bytes > MAX_HELD_BYTES:
                self._held = None

    def begin(self) -> None:
        """A piece is going to be read."""
        self.is_reading, self._held, self._held_bytes = True, [], 0

    def came(self, piece: Missed, rights: int | None) -> None:
        """A piece was read, and is sent next."""
        self.is_reading = self.is_first = False
        self._piece, self._next, self.rights = piece, 0, rights
        if sum(len(each.payload) for each in piece.deliveries) > PIECE_BYTES:
            self.limit = max(self.limit // 2, FEWEST)
        else:
            self.limit = min(self.limit * 2, MOST)

    @property
    def next(self) -> Publish | None:
        """What is to be sent next; None at the end of the piece."""
        piece = self._piece
        return piece.deliveries[self._next] if piece is not None and self._next < len(piece.deliveries) else None

    def taken(self) -> None:
        """`next` was sent, or may not be."""
        assert self._piece is not None
        self.position = self._piece.deliveries[self._next].row_id
        self._next += 1

    def end_piece(self) -> Sequence[Publish] | None:
        """All of a piece was sent: what was held behind the last one, or None if another has to be read."""
        piece, self._piece = self._piece, None
        if piece is None:
            return None
        self.position = max(self.position, piece.last_row)
        if piece.has_more or self._held is None:
            return None
        return [each for each in self._held if each.row_id > self.position]
