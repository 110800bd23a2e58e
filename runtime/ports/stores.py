"""What the runtime is given to keep things in."""

from asyncio import Future
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from things.addresses import Kind
from things.delivery import DeliveryStatus, Reason, State
from things.messages import JSONValue
from things.records import (
    Appended,
    Entry,
    HistoryQuery,
    LedgerQuery,
    LedgerRow,
    Reading,
    Row,
    Value,
)
from things.td import ThingDescription


class Directory(Protocol):
    """Thing Descriptions by thing id, in memory for reading, committed before a write returns."""

    def get(self, thing_id: str) -> Entry | None: ...

    def things_of(self, agent: str) -> Sequence[str]: ...

    def ids(self) -> Sequence[str]:
        """All thing ids, sorted."""
        ...

    async def put(self, thing_id: str, td: ThingDescription, *, agent: str | None, expires: int | None = None) -> Entry:
        """Create or replace; the same text again changes nothing and returns the standing entry."""
        ...

    async def remove(self, thing_id: str) -> bool: ...


class ValueStore(Protocol):
    """Latest values by series, in memory; checkpointed, and replayed from history at start."""

    def get(self, thing_id: str, kind: Kind, name: str) -> Value | None: ...

    def of_thing(self, thing_id: str) -> Mapping[tuple[Kind, str], Value]: ...

    def put(self, thing_id: str, kind: Kind, name: str, value: Value) -> bool:
        """Take a value; False if a later one is already there: one with a higher row, or (`things.lateness`) one whose
        source stated a later time."""
        ...

    def drop(self, thing_id: str) -> None: ...


class History(Protocol):
    """Every event and value, appended in groups; the row is the commit."""

    def append(self, readings: Sequence[Reading]) -> "Future[Sequence[Appended]]":
        """Queue rows; the future ends when all are committed and synced, in order. Raises (in the future) StorageFull,
        StorageFailed."""
        ...

    def place(self, reading: Reading) -> int | None:
        """Queue a row whose commit no one waits for and say its id at once; None where that takes a commit: it may be
        a repeat, or no id is promised. `read` sees it from now on."""
        ...

    def on_lost(self, callback: Callable[[int, BaseException], None]) -> None:
        """Tell `callback` how many placed rows could not be stored, and why."""
        ...

    async def read(self, query: HistoryQuery) -> Sequence[Row]: ...

    async def horizon(self, query: HistoryQuery, *, max_bytes: int, received: int) -> int:
        """The row id behind which the newest rows after `query.after_row` lie that were received since then (µs) and
        take no more than so many bytes; at least that of the last row that is not here any more."""
        ...

    @property
    def last_row(self) -> int:
        """The highest row id that is committed."""
        ...


class Ledger(Protocol):
    """Requests and their transitions; a row is committed before any method returns it.

    Transitions get one rising `seq` over all requests. `advance` is the only way to change a state, by the table of
    `things.delivery`.
    """

    def open(self, row: LedgerRow) -> "Future[tuple[LedgerRow, bool]]":
        """Store a new request as pending. The same caller and reference with the same content: the standing row and
        False; with other content: raises (in the future) Conflict."""
        ...

    def advance(
        self,
        request_id: str,
        state: State,
        *,
        now: int,
        agent: str | None = None,
        reason: Reason | None = None,
        error: str | None = None,
        output: JSONValue = None,
        progress: float | None = None,
    ) -> "Future[Sequence[LedgerRow]]":
        """Take one step: the row as it stands afterwards. Where an agent's first word is a later state, `delivered` is
        recorded first: then two rows, one for each step. With `agent` given, only that agent's requests exist. Raises
        (in the future) UnknownRequest, IllegalStatus."""
        ...

    def count_hand_over(self, request_ids: Sequence[str], *, by: int = 1) -> "Future[Collection[str]]":
        """Count a hand-over of each of these requests that still waits, before it takes place, so that it is known
        whatever happens then; or (-1) take back one that did not. The requests that were counted."""
        ...

    async def get(self, request_id: str) -> LedgerRow | None: ...

    async def by_reference(self, caller: str, caller_ref: str) -> LedgerRow | None: ...

    async def waiting(
        self, agent: str, *, limit: int, after: str = "", thing_id: str | None = None
    ) -> Sequence[LedgerRow]:
        """Pending rows of an agent's Things (or of one of them), oldest first; `after` is the request id of the last
        one seen."""
        ...

    async def unanswered(self, agent: str | None = None, *, limit: int, after: str = "") -> Sequence[LedgerRow]:
        """Rows an agent (any agent, if None) has but has not ended (delivered, waiting, running, applied), oldest
        first."""
        ...

    async def waiting_counts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many rows are pending, by agent and by caller; for the bounds, at start."""
        ...

    async def due(self, now: int, *, limit: int) -> Sequence[LedgerRow]:
        """Rows whose clock has run out, earliest first: `expires` until the first delivery, `deadline` afterwards
        (also of rows that went back to pending). They are not changed."""
        ...

    async def next_due(self) -> int | None:
        """When the next such clock runs out; None while none runs."""
        ...

    def supersede(
        self, thing_id: str, name: str, *, before: str, sparing: Collection[str] = (), now: int
    ) -> "Future[Sequence[LedgerRow]]":
        """Cancel (reason superseded) the property writes of this name that were opened before the request `before` and
        were never delivered, but those on their way to the agent (`sparing`); the rows that ended."""
        ...

    async def purge(self, before: int, *, limit: int) -> int:
        """Forget up to `limit` rows that ended before this time, with their transitions; how many went."""
        ...

    async def inbox(self, caller: str, *, after: int, limit: int, since: int = 0) -> Sequence[DeliveryStatus]:
        """Statuses of a caller's requests with seq above `after`, in order of seq; none of requests made before
        `since`, which are those of an earlier account of the name."""
        ...

    async def query(self, query: LedgerQuery) -> Sequence[LedgerRow]: ...
