"""What protocol bindings are given (Sink, Sessions) and give (Session, ProtocolBinding), and what flows to clients."""

from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from anyio.abc import TaskStatus

from runtime.ports.rights import Authenticator
from things.addresses import Kind, TwinID
from things.decisions import Context
from things.delivery import DeliveryStatus
from things.errors import SkepError
from things.frozen import record
from things.identity import Principal
from things.jsontext import decode
from things.messages import JSONValue, Message, Operation, Origin
from things.places import Place, Urls
from things.td import ThingDescription


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


class StoredPublication(Publication):
    """One that is read again: its value is decoded when somebody asks for it."""

    __slots__ = ()

    @property
    def value(self) -> JSONValue:
        return decode(self.payload)

    @value.setter
    def value(self, value: JSONValue) -> None:
        """It is what the payload says."""


@record
class Missed:
    """A piece of what was published after a row: `last_row` is the row after which to go on, and all up to it that may
    be seen is here; what is delivered later than that comes by subscription."""

    publications: Sequence[Publication]
    last_row: int
    has_more: bool


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
    @property
    def place(self) -> Place | None:
        """Where the client sees this runtime; None if that is not known."""
        ...

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
        """A client is connected, or one that was away is again. Raises QueueFull when the account has too many
        sessions."""
        ...

    def away(self, session: Session) -> None:
        """Its client lost its connection and may come back: the session goes on taking what it asked for, and does not
        count among its account's sessions. How many wait so is for its binding to bound."""
        ...

    def closed(self, session: Session) -> None:
        """The client is gone: its subscriptions end, its unanswered requests go back to pending. Idempotent."""
        ...

    def renewed(self, session: Session, principal: Principal) -> None:
        """The session goes on under a fresh credential of the same account."""
        ...

    def subscribe(self, session: Session, pattern: Pattern, tag: object) -> None:
        """Deliver what matches to `session`, as far as it may see it at delivery. `tag` (hashable) comes back with
        each delivery and names the subscription. Raises Forbidden if nothing that matches could ever be permitted
        (what is hidden from it is taken for what nobody has), QueueFull over the bound of subscriptions."""
        ...

    def unsubscribe(self, session: Session, pattern: Pattern, tag: object) -> bool:
        """End one subscription; False if there was none."""
        ...

    @property
    def rights(self) -> int | None:
        """A number that changes whenever rights do, or which properties are write-only; None while decisions hang on
        the moment and must be made anew."""
        ...

    @property
    def version(self) -> int:
        """A number that changes whenever rights or accounts do, also while decisions hang on the moment."""
        ...

    def may_see(self, principal: Principal, thing_id: str, kind: Kind, name: str) -> bool:
        """Whether a publication of this series may be given to `principal` now; for what had to wait since it was
        published. Nobody is given values of a property that has become write-only."""
        ...

    def could_see(self, principal: Principal, pattern: Pattern) -> bool:
        """Whether anything that matches could be given to `principal` now."""
        ...

    def may_listen(self, principal: Principal, address: str, context: Context | None) -> bool:
        """Whether what is sent to an address of the messaging node may be given to `principal` now. Without a context
        conditions are answered cautiously; there is no need of one while `rights` is a number."""
        ...

    def may_send(self, principal: Principal, address: str, type_: str, context: Context) -> bool:
        """Whether `principal` might send a message of this type there now; for what had to wait since it was sent."""
        ...

    def latest(
        self, principal: Principal, pattern: Pattern, place: Place | None = None
    ) -> Iterable[Publication | None]:
        """The latest property values and TDs that match and may be seen; lazily, in order of thing id, each as it is
        when it is asked for. None stands for a Thing that was looked at: others may run there. TDs name the addresses
        that follow from `place`."""
        ...

    @property
    def published_row(self) -> int:
        """The history row of the last publication that was delivered, of anything: a subscription that is made now
        begins after it."""
        ...

    async def missed(
        self,
        principal: Principal,
        patterns: Sequence[Pattern],
        after: int,
        limit: int,
        *,
        max_bytes: int | None = None,
    ) -> Missed:
        """What history has of these subscriptions after a row, from at most `limit` rows of which all but the last have
        less than `max_bytes` of values, as far as it may be seen now. Raises StorageDamaged."""
        ...

    async def horizon(self, patterns: Sequence[Pattern], after: int, *, max_bytes: int, received: int) -> int:
        """The row after which to go on so that no more than so many bytes come, and nothing that was received earlier
        (µs) or is not hot any more; `after` itself if that leaves nothing out. Raises StorageDamaged."""
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

    def dropped(self, session: Session, kind: str, reason: str) -> None:
        """A delivery to the session was given up: an event or another kind, and why (`queue-full`, `too-large` …).
        Counted, and logged now and then."""
        ...


class Sink(Protocol):
    """All that a protocol binding is given: one way in, one way to wait, and the register of sessions."""

    @property
    def sessions(self) -> Sessions: ...
    @property
    def authenticator(self) -> "Authenticator": ...

    async def handle(self, message: Message) -> DeliveryStatus:
        """Pass one message through the checks to its handler. Order per (sender, Thing) is the order of the calls.
        Raises SkepError for refusals."""
        ...

    def check(self, message: Message) -> None:
        """Pass a message through the checks and no further: for what a binding itself sends, such as a response.
        Raises SkepError for refusals."""
        ...

    def store(self, message: Message) -> "Future[Any] | None":
        """`handle` for one event or property value, without a task: checked at once. Raises SkepError for refusals.
        The future ends when it is committed, or with why it could not be; a caller that may be cancelled shields it,
        since others wait for it too. None: there is no commit to wait for."""
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

    def charge(self, principal: Principal, messages: float) -> None:
        """Take what is no message of its own, such as a refused publish, from an account's budget."""
        ...

    def owed_s(self, principal: Principal) -> float:
        """Seconds for which nothing more of an account is to be read; 0 unless it went over its budget."""
        ...

    def clock(self) -> int:
        """Now, µs UTC."""
        ...

    def new_id(self) -> str:
        """A fresh UUIDv7 as text."""
        ...


class Rejection(NamedTuple):
    """One message of a batch that was refused: its position from 0, the sender's own id of it, and why."""

    position: int
    message_id: str | None
    error: SkepError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """How a batch ended."""

    stored: int
    duplicates: int
    rejected: Sequence[Rejection] = ()


class ProtocolBinding(Protocol):
    """An embedded server for one protocol. It authenticates its clients and hands every message to the sink."""

    @property
    def name(self) -> str: ...

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        """Serve until cancelled; reports started when it accepts clients. On cancellation: stop reading, answer what
        is being committed, tell the sessions, close."""
        ...

    def forms(
        self, td: ThingDescription, twin: TwinID, urls: Urls
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """Forms at these addresses for a twin TD by ("property"|"action"|"event", name), and ("thing", "") for the
        Thing as a whole."""
        ...
