"""The numbers and addresses of the HTTP binding, each limit with its reason."""

from dataclasses import dataclass
from pathlib import Path

from bindings.web.limits import Address, ConnectionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(ConnectionLimits):
    """Where the binding listens and what it bounds. A plain listener takes loopback only, unless `insecure`."""

    http: Address | None = ("127.0.0.1", 0)
    https: Address | None = None
    control_socket: Path | None = None
    """Unix socket on which the owner of the process is the local admin; its folder must exist."""
    insecure: bool = False
    mdns: bool = False
    """Whether the directory is announced on the local network."""
    hsts: bool = False
    """Whether browsers are told to come by TLS only: where the certificate is one that they trust anyway. It holds for
    a whole host, and our own authority's certificate must not take other servers of this machine from them."""

    max_batch_bytes: int = 4_194_304
    """5,000 envelopes of store-and-forward do not fit into one message."""

    default_wait_s: float = 5.0
    """A property write's patience without `Prefer: wait`."""
    max_wait_s: float = 60.0
    max_long_poll_s: float = 3_600.0
    """Clients of the longpoll subprotocol wait up to an hour."""
    poll_position_s: float = 120.0
    """After so long without a poll its client is taken to have gone, and begins anew."""
    max_poll_positions: int = 10_000
    """Each is some hundred bytes."""
    poll_interval_s: float = 30.0
    """An agent that has not polled for this long counts as gone; told as `Poll-Interval`."""
    ping_s: float = 15.0
    stream_events: int = 1_000
    stream_bytes: int = 4_194_304
    """What one stream may have waiting; over it, it closes (events) or keeps the newest per name (properties)."""
    max_streams_per_account: int = 50
    max_patterns: int = 1_000
    page_items: int = 100
    max_page_items: int = 1_000
    max_history_items: int = 10_000
    max_tickets: int = 10_000
    searches_at_once: int = 2
    """Each runs in a process of its own; more wait for their turn. As many Arrow pages are made at the same time."""
