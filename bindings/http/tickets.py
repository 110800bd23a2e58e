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
    used: bool = False
    open: bool = False


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
            oldest = next((key for key, ticket in self._tickets.items() if not ticket.open), None)
            del self._tickets[oldest if oldest is not None else next(iter(self._tickets))]
        text = secrets.token_urlsafe(32)
        self._tickets[_hash(text)] = Ticket(
            stream=canonical(target),
            principal=principal,
            first_use_until=now + FIRST_USE_S * 1_000_000,
            until=now + LIFE_S * 1_000_000,
        )
        return text

    def redeem(self, text: str, target: str) -> Ticket:
        """The ticket, if it is good for this stream now; raises TokenInvalid otherwise."""
        now = self._clock()
        ticket = self._tickets.get(_hash(text))
        if (
            ticket is None
            or now >= ticket.until
            or (not ticket.used and now >= ticket.first_use_until)
            or ticket.stream != canonical(target)
        ):
            raise TokenInvalid("this ticket is not valid here")
        return ticket

    def revoke(self, covers: Callable[[Principal], bool]) -> None:
        """Forget the tickets of logins that have ended."""
        for key in [key for key, ticket in self._tickets.items() if covers(ticket.principal)]:
            del self._tickets[key]

    @contextmanager
    def opened(self, text: str | None) -> Iterator[None]:
        """Hold the ticket's only connection for as long as the block runs; raises Conflict while another has it."""
        ticket = self._tickets.get(_hash(text)) if text is not None else None
        if ticket is None:
            yield
            return
        if ticket.open:
            raise Conflict("this ticket's stream is open elsewhere")
        ticket.open = ticket.used = True
        try:
            yield
        finally:
            ticket.open = False

    def _sweep(self, now: int) -> None:
        dead = [
            key
            for key, ticket in self._tickets.items()
            if now >= ticket.until or (not ticket.used and now >= ticket.first_use_until)
        ]
        for key in dead:
            del self._tickets[key]


def canonical(target: str) -> str:
    """A path with its query in one spelling, without the ticket itself."""
    path, _, query = target.partition("?")
    pairs = sorted(pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != PARAMETER)
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
