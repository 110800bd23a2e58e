"""Finds what this gateway is called, at the start and whenever an address comes or goes."""

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import ifaddr

from things.hosts import Names, normalized
from things.network import is_link_local, is_loopback

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
"""A look takes a millisecond in a thread; to be told by the kernel would work on one system only."""
ASK_EVERY_S = 300.0
RESOLVER_S = 2.0
"""What a resolver may take to say the full name of this machine; without it the start goes on."""
MAX_ADDRESSES = 64
"""A machine with hundreds of virtual interfaces does not make a certificate of hundreds of names."""


class NameFinder:
    """Looks up the names of this machine; `configured` and `public_url` are its owner's."""

    def __init__(self, configured: tuple[str, ...] = (), public_url: str | None = None) -> None:
        self._configured = configured
        self._public_url = public_url
        self._full_name: str | None = None

    async def find(self) -> Names:
        """What the gateway is called now."""
        with anyio.move_on_after(RESOLVER_S):
            # A resolver without a network blocks for longer; its thread is left behind.
            name = await anyio.to_thread.run_sync(full_name, abandon_on_cancel=True)
            # Once known it stays: a resolver that fails for a while takes no name from the certificate.
            self._full_name = name or self._full_name
        return await self.look()

    async def look(self) -> Names:
        """The same without asking a resolver again."""
        return await anyio.to_thread.run_sync(partial(self._looked, self._full_name))

    def _looked(self, known: str | None) -> Names:
        return Names(
            configured=self._configured,
            hosts=host_names(known),
            addresses=interface_addresses(),
            public_url=self._public_url,
        )

    async def watch(self, names: Names, changed: Callable[[Names], Awaitable[None]]) -> None:
        """Call `changed` with each other set of names than `names`, for ever."""
        while True:
            for _ in range(int(ASK_EVERY_S / LOOK_EVERY_S)):
                await anyio.sleep(LOOK_EVERY_S)
                try:
                    found = await self.look()
                except OSError as error:
                    log.warning("own addresses cannot be read", extra={"error": str(error)})
                    continue
                if found != names:
                    names = found
                    await changed(found)
            await self.find()


def host_names(full: str | None = None) -> tuple[str, ...]:
    """The host name, its full name if that is known, and its name on the local network."""
    given = normalized(socket.gethostname()) or ""
    host = given.partition(".")[0]
    if not host or host.isdigit() or host == "localhost":
        host = given = "gateway"
    names = [host, f"{host}.local"]
    names += [name for name in (given, full) if name and name.partition(".")[0] == host]
    return tuple(dict.fromkeys(names))


def full_name() -> str | None:
    """The full domain name of this machine as its resolver knows it. One that does not begin with the host name is not
    believed: who answers for the resolver could call this gateway anything."""
    host = socket.gethostname()
    try:
        found = socket.getaddrinfo(host, None, flags=socket.AI_CANONNAME, type=socket.SOCK_STREAM)
    except OSError:
        return None
    name = normalized(found[0][3]) if found and found[0][3] else None
    short = (normalized(host) or "").partition(".")[0]
    return name if name and "." in name and name.partition(".")[0] == short else None


def interface_addresses() -> tuple[str, ...]:
    """The addresses of all interfaces but loopback and link-local ones, that of the default route first and IPv4 before
    IPv6."""
    found = [
        normalized(ip.ip if isinstance(ip.ip, str) else ip.ip[0]) for one in ifaddr.get_adapters() for ip in one.ips
    ]
    usable = sorted(
        {one for one in found if one is not None and not is_loopback(one) and not is_link_local(one)},
        key=lambda one: (":" in one, one),
    )
    first = _default_route()
    return tuple(sorted(usable, key=lambda one: one != first)[:MAX_ADDRESSES])


def _default_route() -> str | None:
    """The own address from which packets to elsewhere would go; none is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.254", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])
