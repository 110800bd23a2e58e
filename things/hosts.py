"""What this gateway is called: the addresses and names it found, and those that its owner gave it.

One value for everything that tells others where the gateway is, or asks whether a name is its own: certificates,
origins of pages, forms, announcements, printed addresses. Pure; `gateway.hosts` finds what is in it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from things.errors import ConfigInvalid
from things.network import is_loopback

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = frozenset({"0.0.0.0", "::"})
"""Hosts of listeners that take connections on every interface."""

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """`configured` come from the owner, the first of them preferred; `hosts` are the host name, its full domain name
    and its name on the local network; `addresses` are those of all interfaces, the one of the default route first,
    without loopback and link-local ones. All as `normalized` spells them. `public_url` is where a reverse proxy or a
    port forwarding shows the HTTP interface, without a slash at its end."""

    configured: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    public_url: str | None = None

    def all(self) -> frozenset[str]:
        """Every host by which a caller may mean this gateway."""
        return frozenset((*LOOPBACK, *self.configured, *self.hosts, *self.addresses, *self._public))

    def reaching(self, listener: str) -> tuple[str, ...]:
        """The hosts under which others find what listens on the host `listener`, the preferred one first."""
        if is_loopback(listener):
            return tuple(dict.fromkeys((listener, *LOOPBACK[:2])))
        if listener not in EVERYWHERE:
            return tuple(dict.fromkeys((*self.configured, normalized(listener) or listener, *self.hosts)))
        both = listener == "::"  # listens on IPv4 too
        addresses = [one for one in self.addresses if both or ":" not in one]
        return (*self.configured, *addresses, *self.hosts, *(LOOPBACK if both else LOOPBACK[:2]))

    def certified(self, listeners: Iterable[str]) -> tuple[str, ...]:
        """The names of a certificate that is served on these hosts: those of this machine in any case."""
        found = [name for host in listeners for name in self.reaching(host)]
        return tuple(dict.fromkeys((*LOOPBACK, *self.hosts, *self.configured, *self._public, *found)))

    @property
    def _public(self) -> tuple[str, ...]:
        host = urlsplit(self.public_url).hostname if self.public_url else None
        return (host,) if host else ()


def normalized(host: str) -> str | None:
    """A host name or address as it is compared: lower case, no dot at the end, no zone, no brackets, addresses in
    their short form and IPv4 as IPv4; None for what is neither."""
    host = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host if len(host) <= 253 and _NAME.fullmatch(host) else None
    return str(getattr(address, "ipv4_mapped", None) or address)


def authority(host: str, port: int, scheme: str = "") -> str:
    """Host and port as a URL has them; the port of the scheme is left out."""
    text = f"[{host}]" if ":" in host else host
    return text if (scheme, port) in (("https", 443), ("http", 80)) else f"{text}:{port}"


def split_authority(text: str, scheme: str) -> tuple[str, int] | None:
    """Host, normalized, and port of a `Host` field; None if it is malformed."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]") or not port:
        host, port = (text if not colon or port.endswith("]") else host), ""
    found = normalized(host)
    if found is None or (":" in found and not host.startswith("[")):
        return None
    if not port:
        return found, 443 if scheme in ("https", "wss") else 80
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) <= 65_535):
        return None
    return found, int(port)


def checked_names(names: Iterable[str]) -> tuple[str, ...]:
    """Configured names, normalized; raises ConfigInvalid."""
    found = []
    for name in names:
        host = normalized(name)
        if host is None or host in EVERYWHERE:
            raise ConfigInvalid(f"{name!r} is neither a host name nor an address; names have no scheme, port or *")
        found.append(host)
    return tuple(dict.fromkeys(found))


def checked_public_url(text: str) -> str:
    """A configured public address, without a slash at its end; raises ConfigInvalid."""
    try:
        parts = urlsplit(text)
        host, port = normalized(parts.hostname or ""), parts.port
    except ValueError as error:
        raise ConfigInvalid(f"{text!r} is not a URL: {error}") from error
    if parts.scheme not in ("https", "http") or host is None or parts.query or parts.fragment or parts.username:
        raise ConfigInvalid(f"{text!r} is not a public address; expected https://HOST or https://HOST/PATH")
    default = {"https": 443, "http": 80}[parts.scheme]
    return f"{parts.scheme}://{authority(host, port or default, parts.scheme)}{parts.path.rstrip('/')}"
