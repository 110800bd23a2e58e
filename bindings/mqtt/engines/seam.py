"""The seam between the MQTT binding and its wire engines.

An engine knows MQTT and limits, and no role, Thing, twin or store; it decides nothing. The binding is the `Gate` that
decides, and keeps the `Link`s the engine makes. Engines: `engines.amqtt` and `engines.native`.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from anyio.abc import TaskStatus

from things.frozen import record
from things.identity import Principal, ShownCertificate


class Closed(StrEnum):
    """Why a link ended."""

    DISCONNECT = "disconnect"
    LOST = "lost"
    KEEP_ALIVE = "keep-alive"
    TAKEN_OVER = "taken-over"
    REFUSED = "refused"
    """The runtime ended it: revoked, disabled, over its bounds. What was kept for the client is gone."""
    EXPIRED = "token-expired"
    """Its credential ran out: the account comes back with a fresh one, and goes on."""
    PROTOCOL = "protocol"
    """The client broke the specification."""
    SHUTDOWN = "shutdown"


class Flow(StrEnum):
    """What kind of delivery this is; each kind has its own overflow policy in a link's outgoing queue."""

    EVENT = "event"
    """Drop the oldest and count it."""
    PROPERTY = "property"
    """Keep only the newest of each topic."""
    LEDGER = "ledger"
    """Requests and statuses: not taken when the queue is full, since the ledger still has them."""


@record
class Publish:
    """A publish in either direction. The fields after `duplicate` are MQTT 5's; 3.1.1 engines leave them empty."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    duplicate: bool = False
    flow: Flow = Flow.EVENT
    user_properties: Sequence[tuple[str, str]] = ()
    expiry_s: int | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    content_type: str | None = None
    payload_is_text: bool = False
    subscription_ids: Sequence[int] = ()
    row_id: int = 0
    """Of a delivery that a kept session can be given again (`Gate.missed`); 0: it comes once."""
    is_handed_on: bool = False
    """Another session is given it if this one's link ends before it was delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A CONNECT before anything has been looked up for it."""

    client_id: str
    user_name: str | None
    password: bytes | None
    protocol_level: int
    """4 for MQTT 3.1.1, 5 for MQTT 5."""
    clean_start: bool = True
    session_expiry_s: int = 0
    will: Publish | None = None
    source: str | None = None
    """Address of the peer, without port."""
    certificate: ShownCertificate | None = None
    """The verified TLS client certificate, if there is one."""
    auth_method: str | None = None
    auth_data: bytes | None = None

    @property
    def certificate_name(self) -> str | None:
        """The common name in the client's certificate."""
        return None if self.certificate is None else self.certificate.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a publish ended: 0 or an MQTT 5 reason code (0x80 and above refuses), with a sentence for the client and
    the stable code of the error."""

    reason_code: int = 0
    reason: str = ""
    error_code: str = ""


ACCEPTED = Outcome()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """MQTT 5 subscription options; the defaults are how 3.1.1 behaves."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    """0: send latest values; 1: only for a new subscription; 2: never."""
    subscription_id: int | None = None
    since_row: int = 0
    """What was told up to this row was so before the filter was asked for. Kept by the engine."""


@record
class Missed:
    """A piece of what a kept session has missed: deliveries by rising row, and the row after which to go on.

    They are made as they are iterated, as those of a `Grant`; None is a step that found nothing."""

    deliveries: Iterable[Publish | None]
    last_row: int
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An accepted filter: the granted QoS, and the latest values to send after SUBACK, retain flag set.

    They are made as they are iterated, which the engine does a few at a time and with back-pressure; None is a step
    that found nothing. Each is as it is at that moment, and so no older than what was pushed of its topic before."""

    qos: int
    latest: Iterable[Publish | None] = ()


class Link(Protocol):
    """One live return channel of one principal; the engine makes it, the binding keeps it."""

    @property
    def principal(self) -> Principal: ...
    @property
    def client_id(self) -> str: ...
    @property
    def source(self) -> str | None: ...
    @property
    def local(self) -> str | None:
        """The address of ours that its connection came to; None if there is none, or it is not known."""
        ...

    @property
    def protocol_level(self) -> int: ...
    @property
    def has_room(self) -> bool:
        """What is pushed now is sent at once, and need not wait for the client."""
        ...

    def push(self, message: Publish, delivered: Callable[[], None] | None = None) -> bool:
        """Queue one delivery without blocking; its flow picks the overflow policy; False: not taken.
        `delivered` runs at PUBACK/PUBREC (QoS 0: at the write); never called if the link closes first."""
        ...

    def close(self, reason: Closed) -> None:
        """End the link: revoked account, shutdown, a client that breaks its bounds.
        `Gate.closed` is called before this returns; calling it twice is harmless. REFUSED ends a kept session too,
        unless the link is just being opened or its credential has run out."""
        ...


class Gate(Protocol):
    """What a wire engine asks of the runtime; the engine decides nothing itself.
    Methods without async run inside the packet loop and must not block."""

    async def admit(self, hello: Hello) -> Principal | Outcome | None:
        """Authenticate a CONNECT and judge its will before any session is looked up. None: the login failed, and the
        client is told no more; an outcome: it is known and refused, and is told why as far as its version can."""
        ...

    async def reauthenticate(self, link: Link, data: bytes) -> Principal | None:
        """MQTT 5 AUTH with method `token` on an open link: the principal of a fresh token of the same account,
        or None, which ends the link."""
        ...

    def opened(self, link: Link, *, resumed: bool) -> None:
        """CONNACK is queued and no later packet of this link has been read yet. Once per link; on take-over the older
        link of (account, client id) was closed first. `resumed`: the engine kept this session's filters and in-flight
        messages, and calls `subscribe` again for each filter before this."""
        ...

    def received(self, link: Link, message: Publish) -> Awaitable[object]:
        """Take a publish in arrival order; the awaitable ends at the commit, and the engine then acknowledges in order.

        It ends with the Outcome, or with anything else for ACCEPTED: the future of a commit is handed on as it is,
        since one more for each message would be a tenth of its cost. What it raises is put to `refused`."""
        ...

    def refused(self, link: Link, message: Publish, error: Exception) -> Outcome:
        """What a publish is answered whose awaitable raised `error`, called once. If this raises, the engine closes the
        link without an acknowledgement, so that the client sends it again."""
        ...

    def will(self, link: Link, message: Publish) -> Awaitable[object]:
        """Take a will that fires, of a link that is being closed or was long ago. It is carried out only if the account
        and the credential of the link stand as it fires, with the rights the account has then."""
        ...

    def owed_s(self, link: Link) -> float:
        """Seconds for which the engine reads nothing more of this link and makes it no latest values: what its account
        sent and asked for went over its budget. Asked after each slice of packets; nothing is refused for it."""
        ...

    def subscribe(self, link: Link, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        """Decide one filter and remember it, or refuse it with a reason code (3.1.1 sends 0x80 for any).
        The engine sends SUBACK first, then pushes the grant's latest values with the retain flag."""
        ...

    def unsubscribe(self, link: Link, topic_filter: str) -> bool:
        """Forget one filter; False if it was not known (MQTT 5: 0x11). The engine answers UNSUBACK whatever happens."""
        ...

    @property
    def rights(self) -> int | None:
        """A number that changes whenever anybody's rights do, so that an engine need not ask about each delivery that
        waited; None while it must ask about every one."""
        ...

    def reviewed(self, link: Link, message: Publish) -> Publish | None:
        """What becomes of a delivery that waited, by the rights of this moment: itself, the same as it is shown now, or
        None if it may not be delivered any more."""
        ...

    @property
    def published_row(self) -> int:
        """The row of the last publication that was told: what is pushed from now on has a higher one."""
        ...

    async def missed(
        self, link: Link, filters: Mapping[str, SubscribeOptions], after: int, *, is_first: bool
    ) -> Missed:
        """The next piece of what the filters of QoS 1 and 2 of a kept session matched after a row, looked up and judged
        anew; some hundred rows at most, and some hundred KiB. `is_first`: it begins to catch up, within the bounds of
        time and bytes; whatever lies beyond them is left out and said. What is told later than the last row of the last
        piece is pushed."""
        ...

    def dropped(self, link: Link, message: Publish, reason: str) -> None:
        """A delivery is given up: `queue-full`, `expired`, `too-large` for the client, or `unencodable`."""
        ...

    def closed(self, link: Link, reason: Closed) -> None:
        """The link is gone: exactly once for each opened, after its will went to `will`; the gate drops its
        filters."""
        ...

    def away(self, link: Link, filters: Mapping[str, SubscribeOptions]) -> bool:
        """The client of a kept session is gone for now, and `link` stands in for it; nothing is pushed to it, since
        `missed` has it all when the client is back. The gate looks up anew what the account may do. True: it may
        `close` the link, which ends the session, until `closed`, which comes exactly once; False: the account has no
        rights to a session any more, and it ends at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds every engine keeps; each value's reason stands in the configuration."""

    max_packet_bytes: int = 262_144 + 1_024
    max_connect_bytes: int = 16_384
    """Of a CONNECT: a client that is not logged in costs no more."""
    connect_timeout_s: float = 5.0
    max_connections: int = 10_000
    max_unauthenticated_per_source: int = 500
    """Connections of one address before their login; the one that has waited longest makes room for the next."""
    max_links_per_account: int = 1_000
    max_inflight: int = 100
    """Unacknowledged deliveries to one client at once."""
    max_queued: int = 1_000
    """Deliveries waiting for one client."""
    max_queued_bytes: int = 4 * 1024 * 1024
    max_unacknowledged: int = 200
    """Publishes of one client the runtime has not answered; its socket is not read while there are more."""
    max_subscriptions: int = 1_000
    max_topic_bytes: int = 1_024
    max_topic_levels: int = 16
    default_keep_alive_s: int = 60
    """For clients that ask for none (0)."""
    max_session_expiry_s: int = 7 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address to listen on; port 0 picks a free one. `tls` is None for plain TCP, loopback only."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    proxy_protocol: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """What an engine reports when it is up: (host, port) per listener, in the order they were asked for."""

    addresses: Sequence[tuple[str, int]] = field(default_factory=tuple)


class Engine(Protocol):
    """A wire engine: native, amqtt, or the client of an external broker."""

    name: str

    async def serve(self, gate: Gate, *, task_status: TaskStatus[Listening]) -> None:
        """Serve until cancelled; reports started when the listeners are up.
        On cancellation: stop reading, await commits in flight, acknowledge them, close links."""
        ...
