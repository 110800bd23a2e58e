"""What the stores keep and hand out: directory entries, latest values, history rows and ledger rows.

Plain values shared by the runtime's ports and the twin's stores, so that neither needs to import the other. Times are
µs UTC; ids of Things are as the directory knows them (twin ids, or own ids of other entries).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from things.addresses import Kind
from things.delivery import DeliveryStatus, Reason, State
from things.frozen import record
from things.identity import Authority, Principal
from things.messages import JSONValue, Operation
from things.td import ThingDescription

MAX_COUNTER = (1 << 63) - 1
"""Of row ids, sequence numbers and offsets: what a database holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One directory entry. `agent` is None for TDs registered by managers, admins and services."""

    thing_id: str
    td: ThingDescription
    agent: str | None
    version: int
    """Rises with each published TD of this Thing, from 1."""
    created: int
    modified: int
    expires: int | None = None
    overlay: Mapping[str, JSONValue] = field(default_factory=dict)
    """Managers' title and description, kept over the agent's next publish."""
    etag: str = ""


class EntryChange(StrEnum):
    """What happened to a directory entry."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryChange:
    """One committed change of the directory. Ids rise; `patch` is the JSON merge patch of what was registered or
    published and overlaid, `{}` unless it is an update."""

    id: int
    what: EntryChange
    thing_id: str
    patch: bytes


@record
class Value:
    """A latest value: decoded, as JSON text, and when it was created and received."""

    value: JSONValue
    payload: bytes
    created: int
    received: int
    row_id: int
    quality: int = 0


@record
class Reading:
    """One event or property value for history; `value` is JSON text."""

    thing_id: str
    kind: Kind
    name: str
    value: bytes
    created: int
    received: int
    sender: str
    message_id: str | None = None
    quality: int = 0
    td_version: int = 0
    source_time: int | None = None
    """The sender's time where `created` is not it (too far in the future)."""


class Appended(NamedTuple):
    """A row's id, and whether the message id had been stored before (then nothing new was)."""

    row_id: int
    duplicate: bool


class Row(NamedTuple):
    """One stored reading; `value` is JSON text."""

    row_id: int
    thing_id: str
    kind: str
    name: str
    created: int
    received: int
    value: bytes
    quality: int
    td_version: int
    source_time: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """Which rows: empty `things`/`names` mean any, times are created (µs, from inclusive, to exclusive). `after_row`
    pages by row id, and ends a page with the row at which its values have `max_bytes` together; otherwise rows come by
    (created, row_id) with `after` as the last seen pair. `takes` is asked, in any thread, about each series: Thing,
    kind and name."""

    things: Sequence[str] = ()
    kind: Kind | None = None
    names: Sequence[str] = ()
    takes: Callable[[str, str, str], bool] | None = None
    start: int | None = None
    end: int | None = None
    after_row: int | None = None
    after: tuple[int, int] | None = None
    descending: bool = False
    limit: int = 1_000
    max_bytes: int | None = None


@record
class Transition:
    """One step in a request's life."""

    seq: int
    state: State
    at: int
    reason: Reason | None = None


@record
class LedgerRow:
    """One action or property write with its whole life. `expires`: no first delivery after it; `deadline_s`: from
    delivery, restarted by each status; `deadline`: when that ends, while the agent has it; `attempts`: how often it
    was handed over, counted before: while it is 0, nothing of it has left the process."""

    request_id: str
    caller_ref: str
    operation: Operation
    caller: str
    thing_id: str
    agent: str
    name: str
    input: JSONValue
    has_input: bool
    state: State
    expires: int | None
    deadline_s: float
    created: int
    updated: int
    seq: int = 0
    deadline: int | None = None
    attempts: int = 0
    reason: Reason | None = None
    error: str | None = None
    output: JSONValue = None
    progress: float | None = None
    transitions: Sequence[Transition] = ()
    authority: Authority | None = None
    """By which it is judged again when it is handed over; None for rows of earlier versions."""

    def is_asked_by(self, principal: Principal) -> bool:
        """Whether `principal` is its caller, and not another account of the name."""
        if self.authority is None:
            return self.caller == principal.account and self.created >= principal.since
        return self.authority.is_of(principal)

    def status(self) -> DeliveryStatus:
        """What is reported of the row as it stands."""
        return DeliveryStatus(
            request_id=self.request_id,
            state=self.state,
            caller_ref=self.caller_ref,
            reason=self.reason,
            error=self.error,
            output=self.output,
            progress=self.progress,
            seq=self.seq,
            updated=self.updated,
            requested=self.created,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerQuery:
    """Which rows, newest first; `before` is the request id of the last one seen."""

    caller: str | None = None
    thing_id: str | None = None
    name: str | None = None
    operation: Operation | None = None
    states: Sequence[State] = ()
    start: int | None = None
    end: int | None = None
    before: str | None = None
    limit: int = 100
