"""Sessions of runtimes: what one `open` began, through connections that come and go, until it closes or is stale.

A session holds addresses, subscriptions and a bounded outbox; each outlives a lost connection by the resume window. It
is a session of the runtime too, which is how changes of Things and statuses of requests reach a hyperty. No other
account's messages end a session; a client that asks and never reads ends its own, since it is owed responses.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from bindings.messaging_node.outbox import OWN, SHARE, Item, NodeOutbox
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Publication, Request
from things.delivery import DeliveryStatus
from things.envelopes import Document, Envelope, refused
from things.errors import QueueFull
from things.identity import Principal
from things.jsontext import encode


class Wire(Protocol):
    """The writing side of one connection."""

    def wake(self) -> None:
        """Something waits in the outbox."""
        ...

    def end(self, code: int, reason: str) -> None:
        """Close after what waits has been written."""
        ...


Pending = tuple[str, str, int | str]
"""A request whose response is routed back: to whom it went, who sent it, its id."""


STALL_S = 2.0
"""A client that reads nothing for so long is not waited for."""


@dataclass(slots=True)
class Asking:
    """A message that became a request to a Thing; whether anything of it was told yet."""

    envelope: Envelope
    is_notified: bool = False


@dataclass(slots=True, eq=False)
class NodeSession:
    """One session; satisfies `runtime.ports.Session`. `on_closed` is told why the runtime ended it."""

    session_id: str
    principal: Principal
    runtime_url: str
    token_hash: str | None
    """What is known of the runtime token; None for connections without a handshake."""
    source: str | None
    settings: NodeSettings
    on_publication: "Callable[[NodeSession, Publication, Sequence[object]], None]"
    on_request: "Callable[[NodeSession, Request, Callable[[], None]], bool]"
    on_status: "Callable[[NodeSession, DeliveryStatus], None]"
    on_closed: "Callable[[NodeSession, str], None]"
    binding: str = "node"
    place: None = None
    wires: list[Wire] = field(default_factory=list)
    held: dict[str, str | None] = field(default_factory=dict)
    """Addresses this session holds, each with its allocation key if there is one."""
    claimed: set[str] = field(default_factory=set)
    """Those of them that were only claimed by listening, and go when it stops."""
    keys: dict[str, dict[str, None]] = field(default_factory=dict)
    """Addresses by allocation key."""
    below: dict[str, dict[str, None]] = field(default_factory=dict)
    """Held children by the object they belong to."""
    subscribed: dict[str, None] = field(default_factory=dict)
    asked: dict[str, "Asking"] = field(default_factory=dict)
    """Requests to Things under way, by their references; their statuses answer the message."""
    speaks_for: dict[str, str] = field(default_factory=dict)
    """Addresses of objects that this session reports, by the Things they are."""
    requested: dict[str, str] = field(default_factory=dict)
    """Requests for these Things that it was handed and has not answered, with the object's address."""
    pending: set[Pending] = field(default_factory=set)
    """Requests to other hyperties whose responses are routed back here."""
    is_kept: bool = True
    """Whether it may come back, after a restart too; a single exchange's does not."""
    is_registered: bool = False
    """Whether the runtime knows this session now."""
    is_ended: bool = False
    away_until: int | None = None
    outbox: "NodeOutbox[NodeSession]" = field(init=False)
    _last: "Item[NodeSession] | None" = None
    """What was taken last, should it have to go back."""
    _on_written: dict[bytes, Callable[[], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.outbox = NodeOutbox(self.settings)

    def is_address(self, text: str) -> bool:
        """Whether `text` is the session's own address, a secret of its client."""
        runtime_url, slash, token = text.rpartition("/")
        could_be = bool(slash) and runtime_url == self.runtime_url and len(token) == TOKEN_CHARS
        return could_be and token_hash(token) == self.token_hash

    @property
    def is_live(self) -> bool:
        return bool(self.wires)

    @property
    def waiting(self) -> int:
        return len(self.outbox)

    # ------------------------------------------------------------ what it has

    def hold(self, address: str, key: str | None) -> None:
        self.held[address] = key
        for index, name in ((self.keys, key), (self.below, _parent(address))):
            if name is not None:
                index.setdefault(name, {})[address] = None

    def let_go(self, address: str) -> None:
        """Idempotent."""
        self.claimed.discard(address)
        for index, name in ((self.keys, self.held.pop(address, None)), (self.below, _parent(address))):
            if name is not None and name in index:
                index[name].pop(address, None)
                if not index[name]:
                    del index[name]

    def let_go_of_all(self) -> None:
        for one in (self.held, self.claimed, self.keys, self.below, self.subscribed, self.speaks_for, self.requested):
            one.clear()

    # ------------------------------------------------------------ towards the client

    def send(
        self,
        document: Document,
        written: Callable[[], None] | None = None,
    ) -> None:
        """Queue one message; `written` runs once, when it has gone into a connection. One with it that waits already
        is not queued again."""
        text = encode(document)
        if written is not None:
            is_waiting = text in self._on_written
            self._on_written[text] = written
            if is_waiting:
                return
        self.put(text)

    def put(self, text: bytes, permitted: "Permit | None" = None) -> None:
        """Queue what answers the client itself, or is asked of it; one that causes more than can be kept ends."""
        if self.is_ended:
            return
        self.outbox.put(Item(text, permitted, OWN, is_news=False))
        if self.outbox.is_overrun:
            self.close("queue-full")
        else:
            self._wake()

    def answer(self, document: Document) -> None:
        """Queue a response to what the client asked; over what can be kept for it, a refusal in its place."""
        if self.outbox.is_own_full:
            body = document.get("body")
            if isinstance(body, dict) and body.get("code") == 100:
                return
            full = QueueFull("this session", self.settings.max_outbox_bytes // SHARE, "bytes of answers waiting")
            document = {**document, "body": refused(full)}
        self.put(encode(document))

    def put_from(self, item: "Item[NodeSession]") -> None:
        """Queue what another account sent to this session, if it is no news; the sender has seen to it that there is
        room. Of news the oldest of the same teller go where there is none: newer ones are worth more."""
        if self.is_ended:
            return
        if item.is_news:
            self.outbox.put_news(item)
        else:
            self.outbox.put(item)
        if self.wires:
            self.wires[-1].wake()

    def has_room(self, cause: str, size: int) -> bool:
        """Whether one more message of an account fits into its share; an ended session takes any."""
        return self.is_ended or self.outbox.has_room(cause, size)

    async def make_room(self, cause: str, size: int, *, until: float) -> None:
        """Returns when there is room for a message of an account, or waiting longer is in vain: the client is away, or
        read nothing for a while."""
        loop, outbox = asyncio.get_running_loop(), self.outbox
        while not self.has_room(cause, size) and self.wires and not outbox.is_stuck(cause):
            taken, now = outbox.taken, loop.time()
            try:
                async with asyncio.timeout_at(min(until, now + STALL_S)):
                    await outbox.freed(cause).wait()
            except TimeoutError:
                if loop.time() >= until or outbox.taken == taken:
                    outbox.give_up(cause)
                    return

    async def read_answers(self) -> None:
        """Returns when the client has read enough of its answers that it may ask for more."""
        while self.outbox.is_own_full and not self.is_ended and self.wires:
            with suppress(TimeoutError):
                async with asyncio.timeout(STALL_S):
                    await self.outbox.freed(OWN).wait()

    def take(self) -> bytes | None:
        """The message to write next."""
        while (item := self.outbox.take()) is not None:
            self._last = item
            if item.permitted is None or item.permitted(self):
                return item.text
        return None

    def wrote(self, text: bytes) -> None:
        """A message has gone into a connection."""
        if self._on_written and (written := self._on_written.pop(text, None)) is not None:
            written()

    def put_back(self, text: bytes) -> None:
        """What could not be written stays the next, for the connection that comes."""
        last = self._last
        if not self.is_ended:
            is_last = last is not None and last.text is text
            self.outbox.put_back(last if is_last and last else Item(text, None, OWN, is_news=False))

    def drop(self) -> list[bytes]:
        """Empty the outbox; what was in it."""
        self._on_written.clear()
        return self.outbox.drop()

    def _wake(self) -> None:
        if self.wires:
            self.wires[-1].wake()

    # ------------------------------------------------------------ towards the runtime

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        self.on_publication(self, publication, tags)

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return self.on_request(self, request, delivered)

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        self.on_status(self, status)
        delivered()
        return True

    def close(self, reason: str) -> None:
        self.on_closed(self, reason)


def _parent(address: str) -> str | None:
    parent, children, _ = address.partition("/children/")
    return parent if children else None


TOKEN_CHARS = 32


def fresh_token() -> str:
    """A runtime token."""
    return secrets.token_urlsafe(TOKEN_CHARS * 3 // 4)


def token_hash(token: str) -> str:
    """What is kept of a runtime token: enough to know it again, useless to whoever reads the file."""
    return hashlib.sha256(token.encode()).hexdigest()


Permit = Callable[[NodeSession], bool]
"""Whether the client of a session may still see a message, asked when its turn comes."""
