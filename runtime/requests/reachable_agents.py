"""What is known of reachable agents: which sessions take requests, what they have been offered and not answered, and
which Things hold their next request back; and what a request looks like to its agent.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from runtime.ports import LedgerRow, Request, Session
from things.addresses import TwinID
from things.jsontext import encode
from things.messages import Message, Operation

LEAST_AHEAD = 16


class OrderPolicy(StrEnum):
    """When the next request for a Thing may go out."""

    BURST = "burst"
    """At once."""
    UNTIL_ACK = "until-ack"
    """When the agent has the one before."""
    UNTIL_RESPONSE = "until-response"
    """When the one before is final."""


class Offered(Enum):
    """What became of the try to hand over a request."""

    HANDLED = auto()
    """It was handed over, or may not go now."""
    FULL = auto()
    """The session took no more."""
    UNCOUNTED = auto()
    """It might go, but the ledger does not count its hand-over."""


@dataclass(slots=True, eq=False)
class Offer:
    """A request a session has been handed. `delivered` turns true at the agent's acknowledgement."""

    request_id: str
    thing_id: str
    session: Session
    delivered: bool = False


@dataclass(slots=True)
class Lane:
    """One Thing of a connected agent whose policy is not burst."""

    busy: str | None = None
    """The request that holds the lane."""
    behind: bool = False
    """The ledger has further requests of this Thing that were held back."""


@dataclass(slots=True, eq=False)
class Agent:
    """What is known of a reachable agent."""

    session: Session | None = None
    """Takes requests for all its Things but those that others speak for."""
    speakers: dict[str, dict[Session, None]] = field(default_factory=dict)
    """Sessions that speak for single Things, the newest last; they always have room."""
    offers: dict[str, Offer] = field(default_factory=dict)
    counted: set[str] = field(default_factory=set)
    """Requests of which the ledger counts one hand-over that has not taken place."""
    ahead: int = LEAST_AHEAD
    """How many hand-overs of a queue are counted in one commit: as many as its session took the last time."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    cursor: int = 0
    """Ledger number up to which the pump has looked. Not a request id: ids made after a clock was set back are lower
    than those in the queue."""
    pumping: bool = False
    more: bool = False
    """Newer rows came while the pump ran: go on where it is."""
    again: bool = False
    """Start over when the running round ends: older rows came back."""
    full: bool = False
    """The session refused one; wait for it to drain."""
    reads: int = 0
    """Readings of its queue under way."""
    ended: set[str] = field(default_factory=set)
    """Requests that ended while its queue was being read, and which a page may still show as waiting."""

    @property
    def is_direct(self) -> bool:
        """Whether a new request may be offered without asking the ledger for older ones."""
        return not self.pumping and not self.full

    def taker(self, thing_id: str) -> Session | None:
        """The session that requests for a Thing go to now."""
        speakers = self.speakers.get(thing_id)
        return next(reversed(speakers)) if speakers else self.session

    def is_free(self, thing_id: str) -> bool:
        """Whether no request holds the Thing's lane."""
        lane = self.lanes.get(thing_id)
        return lane is None or lane.busy is None

    def has_been_handed(self, row: LedgerRow) -> bool:
        """Whether anything of a request, as it was last read or counted, can have left the process."""
        return row.attempts > (row.request_id in self.counted)

    def take_back(self, offer: Offer) -> None:
        """It is offered no more, and holds no lane."""
        del self.offers[offer.request_id]
        lane = self.lanes.get(offer.thing_id)
        if lane is not None and lane.busy == offer.request_id:
            lane.busy = None


def request_of(row: LedgerRow) -> Request:
    """A row as its agent gets it."""
    return Request(
        request_id=row.request_id,
        operation=row.operation,
        thing_id=row.thing_id,
        thing=TwinID.parse(row.thing_id).thing,
        name=row.name,
        caller=row.caller,
        input=row.input,
        payload=encode(row.input) if row.has_input else b"",
        created=row.created,
        expires=row.expires,
        seq=row.seq,
    )


def call_of(request_id: str, message: Message, created: int) -> Request:
    """A call as its agent gets it."""
    return Request(
        request_id=request_id,
        operation=Operation.CALL_RPC,
        thing_id=message.thing_id,
        thing=TwinID.parse(message.thing_id).thing,
        name=message.name,
        caller=message.sender_id,
        input=message.data,
        payload=encode(message.data) if message.has_data else b"",
        created=created,
    )


def cancel_of(row: LedgerRow) -> Request:
    """The word that a row is to be cancelled, as its agent gets it."""
    return Request(
        request_id=row.request_id,
        operation=Operation.CANCEL,
        thing_id=row.thing_id,
        thing=TwinID.parse(row.thing_id).thing,
        name=row.name,
        caller=row.caller,
        seq=row.seq,
    )
