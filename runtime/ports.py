"""The contracts between the runtime and the rooms around it; satisfied by shape, read first.

Three groups: what a message passes through (Handler, Middleware), what a protocol binding is given (Sink, Sessions) and
gives (Session, ProtocolBinding), and what the runtime is given (stores, authenticator, authorizer, services).
Everything without `async` runs in the event loop and does not block. Times are µs UTC.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anyio.abc import TaskStatus

from things.addresses import Address, Kind, TwinID
from things.decisions import Context, Decision
from things.delivery import DeliveryStatus, Reason, State
from things.frozen import record
from things.identity import Principal
from things.messages import JSONValue, Message, Operation, Origin
from things.records import (
    Appended,
    DirectoryChange,
    Entry,
    HistoryQuery,
    LedgerQuery,
    LedgerRow,
    Reading,
    Row,
    Transition,
    Value,
)
from things.td import ThingDescription

# The stores' records live in `things`, which the twin may import; they are part of these contracts all the same.
__all__ = [
    "Appended",
    "DirectoryChange",
    "Entry",
    "HistoryQuery",
    "LedgerQuery",
    "LedgerRow",
    "Reading",
    "Row",
    "Transition",
    "Value",
]

Handler = Callable[[Message], Awaitable[DeliveryStatus]]
"""Returns the *first* status, once the message is committed, handed over or refused; never waits for a device.
Refusals are raised as SkepError; what was refused changed nothing."""

Middleware = Callable[[Message, Handler], Awaitable[DeliveryStatus]]
"""One layer of the onion: may refuse (raise), pass on, look at the answer."""


# ---------------------------------------------------------------- what flows to clients


@record
class Publication:
    """One committed event, value, twin TD or action progress on its way to subscribers; `payload` is its JSON, encoded
    once. For kind td the name is "" and a removed TD has an empty payload."""

    twin: TwinID
    thing_id: str
    kind: Kind
    name: str
    value: JSONValue
    payload: bytes
    created: int
    row_id: int = 0
    """History row (events, properties); 0 where there is none."""
    durable: bool = True
    sender_session: str = ""
    """Session that published it, for MQTT 5's no-local."""
    user_properties: Sequence[tuple[str, str]] = ()


class Pattern(NamedTuple):
    """What a subscription asks for; None stands for any at its level."""

    agent: str | None = None
    thing: str | None = None
    kind: Kind | None = None
    name: str | None = None


@record
class Request:
    """One request on its way to the agent that speaks for its Thing.

    `operation` is invoke_action, write_property, call_rpc or cancel (then only request_id, thing_id and name count).
    `thing` is the agent's own Thing id; `payload` is the input as JSON, b"" for no input.
    """

    request_id: str
    operation: Operation
    thing_id: str
    thing: str
    name: str
    caller: str
    input: JSONValue = None
    payload: bytes = b""
    created: int = 0
    expires: int | None = None
    seq: int = 0


class Session(Protocol):
    """One live return channel of a principal, with a bounded outbox; made by a binding, kept by the runtime.

    No method blocks or raises for a slow client: overflow follows the policy of its kind.
    """

    @property
    def session_id(self) -> str: ...
    @property
    def principal(self) -> Principal: ...
    @property
    def binding(self) -> str: ...
    @property
    def source(self) -> str | None: ...

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        """Queue one publication; `tags` are those of all its matching subscriptions of this session."""
        ...

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        """Queue one request for the agent; `delivered` runs once, when the agent has confirmed receipt, and never
        after the session closed. False: not taken; the ledger keeps it and tries again when the session drains."""
        ...

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        """Queue one status for the caller; like `request`."""
        ...

    def close(self, reason: str) -> None:
        """End the channel (revoked, disabled, shut down); calls `Sessions.closed` before it returns."""
        ...


class Sessions(Protocol):
    """The runtime's register of live sessions and what they want; given to bindings through the sink."""

    def opened(self, session: Session) -> None:
        """A client is connected. Raises QueueFull when the account has too many sessions."""
        ...

    def closed(self, session: Session) -> None:
        """The client is gone: its subscriptions end, its unanswered requests go back to pending. Idempotent."""
        ...

    def renewed(self, session: Session, principal: Principal) -> None:
        """The session goes on under a fresh credential of the same account."""
        ...

    def subscribe(self, session: Session, pattern: Pattern, tag: object) -> None:
        """Deliver what matches to `session`, as far as it may see it at delivery. `tag` (hashable) comes back with
        each delivery and names the subscription. Raises Forbidden if nothing that matches could ever be permitted,
        QueueFull over the bound of subscriptions."""
        ...

    def unsubscribe(self, session: Session, pattern: Pattern, tag: object) -> bool:
        """End one subscription; False if there was none."""
        ...

    def latest(self, principal: Principal, pattern: Pattern) -> Iterable[Publication]:
        """The latest property values and TDs that match and may be seen; lazily, in order of thing id."""
        ...

    def take_requests(self, session: Session, thing_id: str | None = None) -> None:
        """From now on the agent is reachable through this session; waiting requests flow, oldest first per Thing.
        Requests go to the newest such session of an account. With `thing_id` the session speaks for that Thing only,
        and before those that speak for all; it must always have room."""
        ...

    def stop_requests(self, session: Session, thing_id: str | None = None) -> None:
        """The session no longer takes requests (it unsubscribed); unanswered ones go back to pending. With `thing_id`
        it no longer speaks for that Thing."""
        ...

    def take_reports(self, session: Session, after: int | None = None) -> None:
        """Statuses of the caller's own requests flow to this session; with `after`, first those with a higher seq are
        replayed in order, none twice and none missed in between."""
        ...

    def stop_reports(self, session: Session) -> None:
        """The session no longer takes statuses."""
        ...

    def drained(self, session: Session) -> None:
        """The session has room again after it refused a request or report."""
        ...


class Sink(Protocol):
    """All that a protocol binding is given: one way in, one way to wait, and the register of sessions."""

    @property
    def sessions(self) -> Sessions: ...
    @property
    def authenticator(self) -> "Authenticator": ...

    async def handle(self, message: Message) -> DeliveryStatus:
        """Pass one message through middleware to its handler. Order per (sender, Thing) is the order of the calls.
        Raises SkepError for refusals."""
        ...

    def judge(self, message: Message) -> None:
        """Pass a message through middleware and no further: for what a binding itself sends, such as a response.
        Raises SkepError for refusals."""
        ...

    def store(self, message: Message, then: Callable[[BaseException | None], None]) -> bool:
        """`handle` for one event or property value, without a task: judged at once. Raises SkepError for refusals.
        True: `then` runs in the loop, once, when it is committed (None) or with why it could not be; False: there is
        nothing to wait for."""
        ...

    async def final(self, request_id: str, wait_s: float) -> DeliveryStatus | None:
        """The final status of a request of any kind, or None when the wait ends first; the request goes on."""
        ...

    async def batch(self, messages: Sequence[Message]) -> "BatchResult":
        """Publish events and properties of one agent: every item is judged like a single message, the valid ones are
        stored in one transaction."""
        ...

    async def call(
        self,
        principal: Principal,
        thing_id: str,
        method: str,
        data: JSONValue,
        origin: Origin,
        *,
        confirmation: str | None = None,
    ) -> JSONValue:
        """Call a method of a built-in service with the caller's rights (a call_rpc message through the router) and
        return its output; raises SkepError."""
        ...

    def clock(self) -> int:
        """Now, µs UTC."""
        ...

    def new_id(self) -> str:
        """A fresh UUIDv7 as text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How a batch ended; `rejected` are (index, message id or None, error code)."""

    stored: int
    duplicates: int
    rejected: Sequence[tuple[int, str | None, str]] = ()


class ProtocolBinding(Protocol):
    """An embedded server for one protocol. It authenticates its clients and hands every message to the sink."""

    @property
    def name(self) -> str: ...

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        """Serve until cancelled; reports started when it accepts clients. On cancellation: stop reading, answer what
        is being committed, tell the sessions, close."""
        ...

    def forms(self, td: ThingDescription, twin: TwinID) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """Forms for a twin TD by ("property"|"action"|"event", name), and ("thing", "") for the Thing as a whole."""
        ...


# ---------------------------------------------------------------- who and whether


class Authenticator(Protocol):
    """Turns credentials into principals. Raises Unauthenticated (never telling which half was wrong), RateLimited."""

    async def login(self, account: str, secret: str, *, source: str | None) -> Principal:
        """By password, or by a token given in its place (it must be this account's)."""
        ...

    def verify(self, token: str) -> Principal:
        """By access or long-lived token; cached. Raises TokenInvalid, TokenExpired."""
        ...

    async def by_certificate(self, common_name: str) -> Principal:
        """By the common name of a TLS client certificate that the local CA signed."""
        ...

    def standing(self, principal: Principal) -> Principal | None:
        """Who came with this principal as its account stands now, however long ago that was; None if its account,
        login or token is gone. For what outlives a connection, a restart included."""
        ...


class Authorizer(Protocol):
    """The one decision function. Synchronous, default deny; static rules are cached."""

    version: int
    """Rises with every change of roles, rules and policies, so that others may cache decisions by it."""

    @property
    def is_conditional(self) -> bool:
        """Whether any decision may hang on a context; where none does, nobody needs to make one."""
        ...

    def is_uniform(self, principal: Principal, thing_id: str) -> bool:
        """Whether a principal's rights are the same for all affordances of a Thing, and then those to the Thing as a
        whole. False may also mean that nobody knows."""
        ...

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision: ...

    def could_allow(
        self,
        principal: Principal,
        operation: Operation,
        *,
        agent: str | None,
        thing: str | None,
        kind: Kind,
        name: str | None,
    ) -> bool:
        """Whether any decision could allow it on a twin; None stands for any agent, Thing or name."""
        ...


# ---------------------------------------------------------------- stores


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
        """Take a value; False if a later one (by created, then row id) is already there."""
        ...

    def drop(self, thing_id: str) -> None: ...


class History(Protocol):
    """Every event and value, appended in groups; the row is the commit."""

    def append(self, readings: Sequence[Reading]) -> "Future[Sequence[Appended]]":
        """Queue rows; the future ends when all are committed and synced, in order. Raises (in the future) StorageFull,
        StorageFailed."""
        ...

    def place(self, reading: Reading) -> "tuple[int, Future[Sequence[Appended]]] | None":
        """Queue a row whose commit nobody waits for and say its id at once; None where that takes a commit: it may be
        a repeat, or no id is promised. `read` sees it from now on. The future is that of `append`."""
        ...

    async def read(self, query: HistoryQuery) -> Sequence[Row]: ...

    @property
    def last_row(self) -> int:
        """The highest row id that is committed."""
        ...


class Ledger(Protocol):
    """Requests and their transitions; a row is committed before any method returns it.

    Transitions get one rising `seq` over all requests. `advance` is the only way to change a state, by the table of
    `things.delivery`.
    """

    async def open(self, row: LedgerRow) -> tuple[LedgerRow, bool]:
        """Store a new request as pending. The same caller and reference with the same content: the standing row and
        False; with other content: raises Conflict."""
        ...

    async def advance(
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
    ) -> Sequence[LedgerRow]:
        """Take one step: the row as it stands afterwards. Where an agent's first word is a later state, `delivered` is
        recorded first: then two rows, one for each step. With `agent` given, only that agent's requests exist. Raises
        UnknownRequest, IllegalStatus."""
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

    async def agents_waiting(self) -> Sequence[str]:
        """Agents with pending rows."""
        ...

    async def waiting_counts(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """How many rows are pending, by agent and by caller; for the bounds, at start."""
        ...

    async def due(self, now: int, *, limit: int) -> Sequence[LedgerRow]:
        """Rows whose clock has run out, earliest first: `expires` while never delivered, `deadline` afterwards (also
        of rows that went back to pending). They are not changed."""
        ...

    async def next_due(self) -> int | None:
        """When the next such clock runs out; None while none runs."""
        ...

    async def supersede(
        self, thing_id: str, name: str, *, before: str, sparing: Collection[str] = (), now: int
    ) -> Sequence[LedgerRow]:
        """Cancel (reason superseded) the property writes of this name that were opened before the request `before` and
        were never delivered, but those on their way to the agent (`sparing`); the rows that ended."""
        ...

    async def purge(self, before: int, *, limit: int) -> int:
        """Forget up to `limit` rows that ended before this time, with their transitions; how many went."""
        ...

    async def inbox(self, caller: str, *, after: int, limit: int) -> Sequence[DeliveryStatus]:
        """Statuses of a caller's requests with seq above `after`, in order of seq."""
        ...

    async def query(self, query: LedgerQuery) -> Sequence[LedgerRow]: ...


# ---------------------------------------------------------------- built-in services


class Service(Protocol):
    """A built-in service: a Thing whose actions are methods, one implementation behind every binding."""

    @property
    def thing_id(self) -> str: ...
    @property
    def td(self) -> dict[str, Any]: ...

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method with this input amounts to, for the decision. Raises UnknownName, Invalid."""
        ...

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; what is listed is trimmed to what the principal may see. Raises SkepError."""
        ...


Clock = Callable[[], int]
"""Now, µs UTC; passed in, so that tests own time."""
