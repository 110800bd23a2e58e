"""Stream tickets: a credential in the address, for clients that cannot set headers on an event stream.

A ticket names one stream and one account. Its first use must come within half a minute; afterwards it reopens that
stream only, one connection at a time, while the login lives, for at most twelve hours. Only its hash is kept.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from things.errors import Conflict, TokenInvalid
from things.holdings import Holding
from things.identity import Principal

FIRST_USE_S = 30
LIFE_S = 12 * 3_600
PARAMETER = "ticket"


@dataclass(slots=True, kw_only=True)
class Ticket:
    """What a ticket opens, and whether somebody has it open."""

    stream: str
    principal: Principal
    first_use_until: int
    until: int
    created: int
    used: bool = False
    close: Callable[[str], None] | None = None
    """Ends the stream that it has open, with a reason."""

    def is_good(self, now: int) -> bool:
        return now < self.until and (self.used or now < self.first_use_until)


class Tickets:
    """Tickets that were given, at most a fixed number; the oldest unused ones go first."""

    def __init__(self, clock: Callable[[], int], *, limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._tickets: dict[bytes, Ticket] = {}

    def issue(self, principal: Principal, target: str) -> str:
        """A ticket for the stream at `target` (path and query)."""
        now = self._clock()
        self._sweep(now)
        while len(self._tickets) >= self._limit:
            oldest = next((key for key, ticket in self._tickets.items() if ticket.close is None), None)
            del self._tickets[oldest if oldest is not None else next(iter(self._tickets))]
        text = secrets.token_urlsafe(32)
        self._tickets[_hash(text)] = Ticket(
            stream=canonical(target),
            principal=principal,
            created=now,
            first_use_until=now + FIRST_USE_S * 1_000_000,
            until=now + LIFE_S * 1_000_000,
        )
        return text

    def redeem(self, text: str, target: str) -> Ticket:
        """The ticket, if it is good for this stream now; raises TokenInvalid otherwise."""
        now = self._clock()
        ticket = self._tickets.get(_hash(text))
        if ticket is None or not ticket.is_good(now) or ticket.stream != canonical(target):
            raise TokenInvalid("this ticket is not valid here")
        return ticket

    def held_by(self, account: str | None) -> Iterator[Holding]:
        """As `things.holdings.Holdings`."""
        now = self._clock()
        for key, ticket in tuple(self._tickets.items()):
            if account in (None, ticket.principal.account) and ticket.is_good(now):
                yield _holding(key, ticket)

    def end(self, holding_id: str, *, of: str | None) -> Holding | None:
        """Forget a ticket, and close the stream it opened."""
        for key, ticket in self._tickets.items():
            if _holding_id(key) == holding_id and of in (None, ticket.principal.account):
                del self._tickets[key]
                if ticket.close is not None:
                    ticket.close("revoked")
                return _holding(key, ticket)
        return None

    def revoke(self, covers: Callable[[Principal], bool]) -> None:
        """Forget the tickets of logins that have ended."""
        for key in [key for key, ticket in self._tickets.items() if covers(ticket.principal)]:
            del self._tickets[key]

    @contextmanager
    def opened(self, text: str | None, close: Callable[[str], None]) -> Iterator[None]:
        """Hold the ticket's only connection for as long as the block runs; `close` ends it. Raises Conflict while
        another has it."""
        ticket = self._tickets.get(_hash(text)) if text is not None else None
        if ticket is None:
            yield
            return
        if ticket.close is not None:
            raise Conflict("this ticket's stream is open elsewhere")
        ticket.close, ticket.used = close, True
        try:
            yield
        finally:
            ticket.close = None

    def _sweep(self, now: int) -> None:
        for key in [key for key, ticket in self._tickets.items() if not ticket.is_good(now)]:
            del self._tickets[key]


def _holding(key: bytes, ticket: Ticket) -> Holding:
    return Holding(
        holding_id=_holding_id(key),
        kind="ticket",
        principal=ticket.principal,
        label=ticket.stream,
        created=ticket.created,
        expires=ticket.until if ticket.used else ticket.first_use_until,
    )


def _holding_id(key: bytes) -> str:
    return f"ticket-{key.hex()[:32]}"


def canonical(target: str) -> str:
    """A path with its query in one spelling, without the ticket itself."""
    path, _, query = target.partition("?")
    pairs = sorted(pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != PARAMETER)
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
