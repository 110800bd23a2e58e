"""Sessions of runtimes: what one `open` began, through connections that come and go, until it closes or is stale.

A session holds addresses, subscriptions and a bounded outbox; each outlives a lost connection by the resume window. It
is a session of the runtime too, which is how changes of Things and statuses of requests reach a hyperty. Overflow ends
the session: its client is owed responses, so it must learn that it missed some.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Publication, Request
from things.delivery import DeliveryStatus
from things.envelopes import Document, Envelope
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


@dataclass(slots=True, eq=False)
class NodeSession:
    """One session; satisfies `runtime.ports.Session`. `on_closed` is told why the runtime ended it."""

    session_id: str
    principal: Principal
    runtime_url: str
    token: str | None
    """The runtime token; None for connections without a handshake."""
    source: str | None
    settings: NodeSettings
    on_publication: "Callable[[NodeSession, Publication, Sequence[object]], None]"
    on_status: "Callable[[NodeSession, DeliveryStatus], None]"
    on_closed: "Callable[[NodeSession, str], None]"
    binding: str = "node"
    wires: list[Wire] = field(default_factory=list)
    held: dict[str, None] = field(default_factory=dict)
    """Addresses this session holds."""
    claimed: set[str] = field(default_factory=set)
    """Those of them that were only claimed by listening, and go when it stops."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """Addresses by allocation key."""
    subscribed: dict[str, None] = field(default_factory=dict)
    asked: dict[str, Envelope] = field(default_factory=dict)
    """Requests to Things under way, by their references; their statuses answer the message."""
    pending: set[Pending] = field(default_factory=set)
    """Requests to other hyperties whose responses are routed back here."""
    is_registered: bool = False
    """Whether the runtime knows this session now."""
    is_ended: bool = False
    away_until: int | None = None
    _outbox: deque[bytes] = field(default_factory=deque)
    _bytes: int = 0

    @property
    def address(self) -> str | None:
        """The session's own address, a secret of its client."""
        return None if self.token is None else f"{self.runtime_url}/{self.token}"

    @property
    def is_live(self) -> bool:
        return bool(self.wires)

    @property
    def waiting(self) -> int:
        return len(self._outbox)

    # ------------------------------------------------------------ towards the client

    def send(self, document: Document) -> None:
        self.put(encode(document))

    def put(self, text: bytes) -> None:
        """Queue one message; a session that does not read ends here."""
        if self.is_ended:
            return
        self._outbox.append(text)
        self._bytes += len(text)
        if len(self._outbox) > self.settings.max_outbox or self._bytes > self.settings.max_outbox_bytes:
            self.close("queue-full")
        elif self.wires:
            self.wires[-1].wake()

    def take(self) -> bytes | None:
        """The message to write next."""
        if not self._outbox:
            return None
        text = self._outbox.popleft()
        self._bytes -= len(text)
        return text

    def put_back(self, text: bytes) -> None:
        """What could not be written stays the next, for the connection that comes."""
        if not self.is_ended:
            self._outbox.appendleft(text)
            self._bytes += len(text)

    def drop(self) -> list[bytes]:
        """Empty the outbox; what was in it."""
        left = list(self._outbox)
        self._outbox.clear()
        self._bytes = 0
        return left

    # ------------------------------------------------------------ towards the runtime

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        self.on_publication(self, publication, tags)

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        # A hyperty's objects are read-only Things: what they do is asked by message.
        return False

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        self.on_status(self, status)
        delivered()
        return True

    def close(self, reason: str) -> None:
        self.on_closed(self, reason)

    def kept(self) -> dict[str, object]:
        """What of the session is kept over a restart."""
        return {
            "sessionID": self.session_id,
            "runtimeURL": self.runtime_url,
            "account": self.principal.account,
            "held": list(self.held),
            "claimed": list(self.claimed),
            "keys": self.keys,
            "subscribed": list(self.subscribed),
        }


def token_hash(token: str) -> str:
    """What is kept of a runtime token: enough to know it again, useless to whoever reads the file."""
    return hashlib.sha256(token.encode()).hexdigest()
