"""The life of a request: its states, the transitions that are legal, and the status that is reported.

    pending → delivered → [waiting | running | applied]* → completed | failed | cancelled

A device's refusal is *completed* with `error`; *failed* means the request could not be carried out.
"""

from enum import StrEnum

from things.frozen import record
from things.messages import JSONValue


class State(StrEnum):
    """Where a request is."""

    PENDING = "pending"
    """Recorded; its agent does not have it (yet, or any more)."""
    DELIVERED = "delivered"
    """The agent has it."""
    WAITING = "waiting"
    """The agent holds it; the device sleeps or is away."""
    RUNNING = "running"
    """The device works on it; `progress` may say how far."""
    APPLIED = "applied"
    """Written to the device, not confirmed."""
    COMPLETED = "completed"
    """Carried out, or refused by the device (`error`)."""
    FAILED = "failed"
    """Could not be carried out; `reason` says why."""
    CANCELLED = "cancelled"
    """Taken back by the caller, or superseded."""

    @property
    def is_final(self) -> bool:
        return self in FINAL


class Reason(StrEnum):
    """Why a request failed or was cancelled; a subset of the error codes, and `superseded`."""

    EXPIRED = "expired"
    TIMEOUT = "timeout"
    NOT_CONNECTED = "not-connected"
    AGENT_ERROR = "agent-error"
    FORBIDDEN = "forbidden"
    INVALID = "invalid"
    REJECTED = "rejected"
    QUEUE_FULL = "queue-full"
    SUPERSEDED = "superseded"


FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})

_UNDER_WAY = frozenset({State.WAITING, State.RUNNING, State.APPLIED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.DELIVERED, State.FAILED, State.CANCELLED}),
    # Back to pending: the session ended before the agent answered; it is delivered again.
    State.DELIVERED: _UNDER_WAY | FINAL | {State.PENDING},
    State.WAITING: _UNDER_WAY | FINAL | {State.PENDING},
    State.RUNNING: _UNDER_WAY | FINAL | {State.PENDING},
    State.APPLIED: _UNDER_WAY | FINAL | {State.PENDING},
    State.COMPLETED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}

REPORTABLE = _UNDER_WAY | FINAL
"""What an agent may report; `delivered` is recorded first when its first word is any of these."""


@record
class DeliveryStatus:
    """What is known of a request after one transition; also every handler's answer.

    `seq` is the ledger's transition number: it rises strictly within an inbox (0 where no ledger row exists).
    `updated` is µs UTC, as is `requested`, the time of the request itself (0 without a row); `progress` is 0 to 100.
    """

    request_id: str
    state: State
    caller_ref: str | None = None
    reason: Reason | None = None
    error: str | None = None
    output: JSONValue = None
    progress: float | None = None
    seq: int = 0
    updated: int = 0
    requested: int = 0

    @property
    def is_final(self) -> bool:
        return self.state in FINAL

    @property
    def is_success(self) -> bool:
        return self.state is State.COMPLETED and self.error is None


def is_legal(current: State, wanted: State) -> bool:
    """Whether the table allows the step."""
    return wanted in TRANSITIONS[current]
