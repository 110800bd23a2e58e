"""What a client's connection may cost, each limit with its reason."""

from dataclasses import dataclass

from things.network import Network

Address = tuple[str, int]
"""Host and port; port 0 is any free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The bounds of every connection, whatever is spoken over it."""

    max_body_bytes: int = 262_144
    """Of one request, or of one WebSocket message; the same as an MQTT packet."""
    max_header_bytes: int = 65_536
    max_header_fields: int = 100
    """Browsers behind proxies send some thirty."""
    header_timeout_s: float = 10.0
    """From the connection, or the first byte of a further request, to the end of its headers."""
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    """A client that takes nothing of its reply for so long is cut off."""
    max_connections: int = 10_000
    max_connections_per_source: int = 2_000
    """One address may not take all; loopback and trusted proxies, behind which are many, are not counted."""
    trusted_proxies: tuple[Network, ...] = ()
    """Who is believed where a request came from, and how."""
    keep_alive_s: int = 30
    graceful_s: float = 3.0
    """How long running exchanges may take at the end."""
