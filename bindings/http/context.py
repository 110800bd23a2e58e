"""What all handlers of the binding share, put together once when it starts."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from anyio import CapacityLimiter
from anyio.lowlevel import checkpoint

from bindings.http.channels import CollectingChannel, QueueChannel, StreamChannel, StreamCount
from bindings.http.config import HttpConfig
from bindings.http.poll_positions import PollPositions
from bindings.http.routes.polls import Pollers
from bindings.http.searches import Searches
from bindings.http.sse import EventEncoder, PingTicker
from bindings.http.tickets import Tickets
from runtime.ports import Sink
from things.identity import Principal
from things.messages import JSONValue
from things.places import Places


class OpenedLogin(Protocol):
    """A login that has begun or was refreshed."""

    @property
    def principal(self) -> Principal: ...
    @property
    def access_token(self) -> str: ...
    @property
    def refresh_token(self) -> str: ...
    @property
    def expires_in_s(self) -> int: ...

    def document(self) -> dict[str, JSONValue]:
        """`{"accessToken","refreshToken","expiresIn","clientID","role"}`."""
        ...


class Revoked(Protocol):
    """Credentials that ended or changed."""

    def covers(self, principal: Principal) -> bool: ...


class ProvisionAnswer(Protocol):
    """What a device that asked to be let in is told."""

    def document(self) -> dict[str, JSONValue]: ...


class Provisions(Protocol):
    """Devices that ask for an account by their public key."""

    async def ask(
        self,
        account: str,
        public_key: str,
        *,
        signature: str | None = None,
        challenge: str | None = None,
        display_name: str = "",
        source: str | None,
    ) -> ProvisionAnswer: ...


class Accounts(Protocol):
    """Logins that last, which only HTTP opens. All raise Unauthenticated without telling which half was wrong, and
    RateLimited."""

    @property
    def provisioning(self) -> Provisions: ...

    async def open_login(self, account: str, password: str, *, source: str | None) -> OpenedLogin: ...

    async def refresh(self, refresh_token: str, *, source: str | None) -> OpenedLogin:
        """Continue a login; a refresh token used twice ends it."""
        ...

    async def logout(self, principal: Principal) -> None:
        """End the caller's login and its tokens; long-lived tokens stay."""
        ...

    async def claim(self, code: str, account: str, password: str, *, source: str | None) -> OpenedLogin:
        """Become the first admin by the one-time code."""
        ...

    def on_revoked(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` with a `Revoked` whenever credentials end or change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What the health pages ask. `ready` gives the reasons why the runtime is not ready; none means ready."""

    live: Callable[[], bool] = lambda: True
    refresh: Callable[[], Awaitable[None]] = checkpoint
    """Brings up to date what takes longer to learn than an answer may; awaited before the others are asked."""
    ready: Callable[[], Mapping[str, str]] = dict
    warnings: Callable[[], Mapping[str, str]] = dict
    metrics: Callable[[str], tuple[bytes, str]] = lambda accept: (b"", "text/plain")
    """What is measured and its media type, by the header Accept."""


class Changes:
    """Tells the streams that wait that something changed; what, they ask the directory."""

    def __init__(self) -> None:
        self._waiting: set[Callable[[], None]] = set()

    def heard(self) -> None:
        """Something changed."""
        for wake in self._waiting:
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake`, which does not block, at each change while the block runs."""
        self._waiting.add(wake)
        try:
            yield
        finally:
            self._waiting.discard(wake)


AnyChannel = StreamChannel | CollectingChannel | QueueChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Who signed the server's certificate: its own certificate (PEM) and the SHA-256 of that, as `AB:CD:…`."""

    pem: str
    fingerprint: str


@dataclass(slots=True, kw_only=True)
class HttpContext:
    """The sink and everything of the binding's own that outlives one exchange."""

    config: HttpConfig
    sink: Sink
    accounts: Accounts | None
    streams: StreamCount
    health: Health
    places: Places
    """Where callers reach us, and whose pages are our own."""
    tickets: Tickets
    pollers: Pollers
    polls: PollPositions
    ticker: PingTicker
    changes: Changes
    searches: Searches
    conversions: CapacityLimiter
    """Bounds how many replies are made in threads at the same time."""
    encoder: EventEncoder = field(default_factory=EventEncoder)
    authority: Callable[[], Authority | None] = lambda: None
    """Whom a client is to trust; None where the server shows a certificate of its owner."""
    documents: Mapping[str, Any] = field(default_factory=dict)
    """Documents that are served as they are: vocabulary, channel descriptions."""
    _channels: set["AnyChannel"] = field(default_factory=set)

    @contextmanager
    def opened(self, channel: "AnyChannel") -> Iterator[None]:
        """Register a stream's or long poll's channel for as long as the block runs. Raises QueueFull when the account
        has too many."""
        with self.streams.counted(channel.principal.account), channel.opened():
            self._channels.add(channel)
            if isinstance(channel, StreamChannel):
                self.ticker.add(channel)
            try:
                yield
            finally:
                self._channels.discard(channel)
                if isinstance(channel, StreamChannel):
                    self.ticker.discard(channel)

    def close(self) -> None:
        """End every stream and long poll."""
        for channel in tuple(self._channels):
            channel.close("shut-down")
        self.pollers.close()
