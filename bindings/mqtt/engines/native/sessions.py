"""MQTT sessions: what outlives a connection, keyed by account and client id.

A session belongs to an account, so two accounts may use one client id at once and nobody can reach another's session.
It keeps filters, the ids of QoS 2 publishes being received, deliveries in flight, and a cursor: the row of history up
to which its client has been given what its filters match. So nothing is queued for a client that is away. It never
keeps a request or a status: the ledger has those and delivers them again.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from bindings.mqtt.behind import Behind
from bindings.mqtt.engines.outbox import Outbox
from bindings.mqtt.engines.seam import Closed, Flow, Link, Publish, SubscribeOptions
from things.identity import Principal

Key = tuple[str, str]
"""Account and client id."""

MAX_PACKET_ID = 65_535


class Step(IntEnum):
    """What a delivery in flight waits for, numbered as the packets are."""

    PUBACK = 4
    PUBREC = 5
    PUBCOMP = 7


@dataclass(slots=True)
class InFlight:
    """One QoS 1 or 2 delivery that the client has not finished; without its message once only PUBCOMP is missing."""

    message: Publish | None
    step: Step
    size: int
    delivered: Callable[[], None] | None = None


NOTHING: dict[int, InFlight] = {}
"""In flight to clients that are away with nothing unfinished, which thousands may be; never written to."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DepartedLink:
    """Stands in for a link that is gone while its delayed will is routed; nothing reaches it."""

    principal: Principal
    client_id: str
    source: str | None
    protocol_level: int
    local: None = None

    @property
    def has_room(self) -> bool:
        return False

    def push(self, message: Publish, delivered: Callable[[], None] | None = None) -> bool:
        """Nothing is taken."""
        return False

    def close(self, reason: Closed) -> None:
        """It is over with the will."""


@dataclass(slots=True, kw_only=True, eq=False)
class ParkedLink:
    """Stands in for the client of a kept session while it is away: what its filters match is read when it is back."""

    session: "Session"
    principal: Principal
    source: str | None
    protocol_level: int
    ended: Callable[["Session"], None]
    """Called when the gate closes it."""
    is_known: bool = False
    """The gate may close it."""

    @property
    def client_id(self) -> str:
        return self.session.key[1]

    @property
    def local(self) -> None:
        """It has no connection."""

    @property
    def has_room(self) -> bool:
        return False

    def push(self, message: Publish, delivered: Callable[[], None] | None = None) -> bool:
        """Nothing is taken."""
        return False

    def close(self, reason: Closed) -> None:
        """End the session, if the account may have no such one any more."""
        if reason is Closed.REFUSED:
            self.ended(self.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """A will whose delay runs, and who it speaks for."""

    message: Publish
    link: DepartedLink
    due: float
    """Engine clock."""


class Session:
    """One session; `link` is its connection while it has one."""

    __slots__ = (
        "_next_id",
        "behind",
        "cursor",
        "dirty",
        "ends",
        "expiry_s",
        "filters",
        "in_flight",
        "in_flight_bytes",
        "incoming",
        "is_stored",
        "key",
        "last",
        "link",
        "outbox",
        "parked",
        "saved",
        "will",
    )

    def __init__(self, key: Key, expiry_s: int) -> None:
        self.key = key
        self.expiry_s = expiry_s
        """How long it outlives its connection; 0: not at all."""
        self.link: Link | None = None
        self.filters: dict[str, SubscribeOptions] = {}
        self.incoming: dict[int, asyncio.Future[Any] | None] | None = None
        """QoS 2 publishes from their arrival to PUBREL: the commit that runs, None once it is done. Made for a client
        that publishes; most only listen."""
        self.in_flight: dict[int, InFlight] = NOTHING
        self.in_flight_bytes = 0
        self.outbox: Outbox | None = None
        self.cursor: int | None = None
        """The row up to which its client was given all, while it has no connection; None: nobody wrote it down."""
        self.behind: Behind[Publish] | None = None
        """Where it stands in history while it has a connection and is behind what is published."""
        self.parked: ParkedLink | None = None
        """Who it speaks to, while it has no connection."""
        self.last: DepartedLink | None = None
        """Who had it before a restart, until it is parked again."""
        self.saved = 0.0
        """When it was saved last (engine clock)."""
        self.will: Will | None = None
        self.ends: float | None = None
        """When it ends (engine clock), while it has no connection."""
        self.dirty = False
        """It has changed since it was saved."""
        self.is_stored = False
        """Something of it is on disk."""
        self._next_id = 1

    @property
    def is_kept(self) -> bool:
        """It outlives its connection."""
        return self.expiry_s > 0

    def packet_id(self) -> int:
        """A packet id no delivery in flight uses."""
        packet_id = self._next_id
        while packet_id in self.in_flight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self._next_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def sending(self) -> None:
        """Deliveries may be put in flight from now on."""
        if self.in_flight is NOTHING:
            self.in_flight = {}

    def finish(self, packet_id: int) -> InFlight | None:
        """Take a delivery out of flight."""
        entry = self.in_flight.pop(packet_id, None)
        if entry is not None:
            self.in_flight_bytes -= entry.size
        return entry

    @property
    def is_caught_up(self) -> bool:
        """Its client was given, or has in flight, all that was told."""
        return self.link is not None and self.behind is None and not (self.outbox and self.outbox.first_row)

    def position(self, published_row: int) -> int:
        """The row up to which its client was given all, or has it in flight."""
        if self.link is None:
            return published_row if self.cursor is None else self.cursor
        position = published_row if self.behind is None else self.behind.position
        waiting = self.outbox.first_row if self.outbox else 0
        return min(position, waiting - 1) if waiting else position

    def part(self, published_row: int) -> None:
        """Forget what may not outlive a connection, but for the place in history: callbacks, what can be read again,
        and whatever the ledger delivers again."""
        self.cursor, self.behind = self.position(published_row), None
        for packet_id, entry in list(self.in_flight.items()):
            entry.delivered = None
            if entry.message is not None and comes_again(entry.message):
                self.finish(packet_id)
        self.in_flight = self.in_flight or NOTHING
        old, self.outbox = self.outbox, None
        if old is not None and self.is_kept:
            kept = Outbox(old.max_queued, old.max_bytes)
            for waiting in old:
                if not waiting.message.row_id and not comes_again(waiting.message):
                    kept.offer(waiting.message, None, waiting.queued_at)
            kept.dropped, kept.coalesced = old.dropped, old.coalesced
            if len(kept):
                self.outbox = kept


def comes_again(message: Publish) -> bool:
    """Somebody else sees to its delivery, should this session's connection end before."""
    return message.flow is Flow.LEDGER or message.is_handed_on


class Sessions:
    """All sessions of the engine, and the clock by which those without a connection end."""

    def __init__(self) -> None:
        self._sessions: dict[Key, Session] = {}
        self._by_account: dict[str, int] = {}
        self._due: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._sessions.values())

    def get(self, key: Key) -> Session | None:
        """The session of an account and client id."""
        return self._sessions.get(key)

    def held(self, account: str) -> int:
        """How many sessions an account has, connected or not."""
        return self._by_account.get(account, 0)

    def add(self, session: Session) -> None:
        """Keep a new session; its key must be free."""
        assert session.key not in self._sessions
        self._sessions[session.key] = session
        self._by_account[session.key[0]] = self.held(session.key[0]) + 1

    def remove(self, session: Session) -> None:
        """End a session; harmless if another has its key."""
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]
            account = session.key[0]
            if (held := self._by_account[account] - 1) > 0:
                self._by_account[account] = held
            else:
                del self._by_account[account]

    def oldest_parted(self, account: str) -> Session | None:
        """The session of an account that has been without a connection longest."""
        parted = [each for each in self if each.key[0] == account and each.link is None and each.ends is not None]
        return min(parted, key=lambda each: (each.ends or 0.0) - each.expiry_s, default=None)

    def watch(self, session: Session, at: float) -> None:
        """Let `due` name the session at `at`."""
        heapq.heappush(self._due, (at, session.key))

    def due(self, now: float) -> list[Session]:
        """Sessions without a connection whose end or will may have come."""
        found = []
        while self._due and self._due[0][0] <= now:
            session = self._sessions.get(heapq.heappop(self._due)[1])
            if session is not None and session.link is None:
                found.append(session)
        return found
