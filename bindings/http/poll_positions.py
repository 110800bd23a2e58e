"""Where clients that poll for one affordance stand in history between two polls.

A client of the longpoll subprotocol asks its form's address again and again and hands nothing over. Whose poll it is
tells its credential, address and program, and of several that are alike the connection it came on before; so the next
poll goes on after the row of the last answer. Bounded in number and time: a client that has not polled for a while
begins anew.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from things.addresses import Kind
from things.bounded import Recent
from things.identity import Principal

MAX_ALIKE = 16
"""Positions of clients that cannot be told apart but by their connections."""


class Poller(NamedTuple):
    """Who polls for what, as far as it shows."""

    account: str
    credential: str | None
    source: str | None
    program: str
    thing_id: str
    kind: Kind
    name: str


def poller(principal: Principal, source: str | None, program: str, thing_id: str, kind: Kind, name: str) -> Poller:
    """Who polls with this login or token."""
    credential = principal.login_id or principal.token_id or principal.credential
    return Poller(principal.account, credential, source, program[:200], thing_id, kind, name)


class Position:
    """One client's place: all up to `row` was told before its first poll, or was given to it."""

    __slots__ = ("connection", "is_open", "left", "row")

    def __init__(self, row: int) -> None:
        self.row = row
        self.is_open = False
        """A poll is under way."""
        self.connection: object = None
        """That of the last poll."""
        self.left = 0.0
        """When the last poll ended."""


class PollPositions:
    """The positions of all that poll."""

    def __init__(self, clock: Callable[[], float], *, keep_s: float, most: int) -> None:
        """`clock` is monotonic seconds; `most` positions are kept, `keep_s` after the last poll."""
        self._clock = clock
        self._keep_s = keep_s
        self._pollers: Recent[Poller, list[Position]] = Recent(most)

    def __len__(self) -> int:
        return sum(map(len, self._pollers.values()))

    @contextmanager
    def at(self, who: Poller, connection: object, published_row: int) -> Iterator[Position]:
        """The position of a poll, for as long as it is under way; a new one begins with what is told from now on."""
        position = self._position(who, connection, published_row)
        position.is_open, position.connection = True, connection
        try:
            yield position
        finally:
            position.is_open, position.left = False, self._clock()

    def _position(self, who: Poller, connection: object, published_row: int) -> Position:
        now = self._clock()
        known = [each for each in self._pollers.get(who, ()) if each.is_open or now - each.left <= self._keep_s]
        free = [each for each in known if not each.is_open]
        same = [each for each in free if each.connection == connection]
        if free:
            position = max(same or free, key=lambda each: each.left)
        else:
            # One that still waits has been given all there was: its client may have come back on another connection.
            position = Position(min((each.row for each in known), default=published_row))
            known = [*known[-MAX_ALIKE + 1 :], position]
        self._pollers[who] = known
        return position
