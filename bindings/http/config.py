"""The numbers and addresses of the HTTP binding, each limit with its reason."""

from dataclasses import dataclass
from pathlib import Path

Address = tuple[str, int]
"""Host and port; port 0 is any free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """Where the binding listens and what it bounds. A plain listener takes loopback only, unless `insecure`."""

    http: Address | None = ("127.0.0.1", 0)
    https: Address | None = None
    control_socket: Path | None = None
    """Unix socket on which the owner of the process is the local admin; its folder must exist."""
    insecure: bool = False
    mdns: bool = False
    """Whether the directory is announced on the local network."""
    origins: tuple[str, ...] = ()
    """Origins of pages that may use cookies and WebSockets, beside this binding's own addresses."""
    cors_origins: tuple[str, ...] = ()
    """Origins of pages that may call the API with bearer tokens; none by default."""

    max_body_bytes: int = 262_144
    """A message or a TD; the same as an MQTT packet."""
    max_batch_bytes: int = 4_194_304
    """5,000 envelopes of store-and-forward do not fit into one message."""
    max_batch_items: int = 5_000
    max_header_bytes: int = 65_536
    header_timeout_s: float = 10.0
    """From the connection, or the first byte of a further request, to the end of its headers."""
    body_timeout_s: float = 30.0
    max_connections: int = 10_000
    max_connections_per_source: int = 2_000
    """One address may not take all; loopback is not counted."""
    keep_alive_s: int = 30
    graceful_s: float = 3.0
    """How long running exchanges may take at the end."""

    default_wait_s: float = 5.0
    """A property write's patience without `Prefer: wait`."""
    max_wait_s: float = 60.0
    max_long_poll_s: float = 3_600.0
    """Clients of the longpoll subprotocol wait up to an hour."""
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
    """Searches run in threads; more wait for their turn."""
