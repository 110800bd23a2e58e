"""The directory announced on the local network by DNS-SD (multicast DNS), as WoT Discovery asks.

`_wot._tcp` and its subtype `_directory._sub._wot._tcp`, with `td`, `type` and `scheme` in the TXT record. Announced is
what can be reached: a listener on loopback is announced on loopback only.
"""

import logging
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import anyio

from things.errors import Unavailable
from things.network import is_loopback

log = logging.getLogger(__name__)

TYPE = "_wot._tcp.local."
DIRECTORY_TYPE = f"_directory._sub.{TYPE}"
TD_PATH = "/.well-known/wot"
_EVERYWHERE = ("0.0.0.0", "::", "")
_START_S = 10.0
_END_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced:
    """What is announced: the instance's name, and where its directory listens. `host` is as configured."""

    instance: str
    host: str
    port: int
    scheme: str
    path: str = TD_PATH

    @property
    def properties(self) -> dict[str, str]:
        """The TXT record."""
        return {"td": self.path, "type": "Directory", "scheme": self.scheme}


def check_available() -> None:
    """Raise Unavailable, saying what to install, where announcing is not possible."""
    try:
        import zeroconf.asyncio  # noqa: F401
    except ImportError as error:
        raise Unavailable("discovery.mdns needs more packages: pip install 'skep[discovery]'") from error


@asynccontextmanager
async def announcing(what: Announced) -> AsyncIterator[None]:
    """Announce for as long as the block runs, and take it back at the end. A network without multicast is logged: a
    gateway works without being found."""
    check_available()
    from zeroconf import InterfaceChoice  # only where announcing is wanted
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    host = "127.0.0.1" if what.host == "localhost" else what.host
    async with AsyncExitStack() as stack:
        try:
            with anyio.fail_after(_START_S):
                # One instance cannot hold a name under both types, though both are the same service.
                for type_ in (TYPE, DIRECTORY_TYPE):
                    responder = AsyncZeroconf(interfaces=InterfaceChoice.All if host in _EVERYWHERE else [host])
                    stack.push_async_callback(_end, responder)
                    info = AsyncServiceInfo(
                        type_,
                        f"{what.instance}.{TYPE}",
                        addresses=addresses(host),
                        port=what.port,
                        properties=what.properties,
                        server=f"{what.instance}.local.",
                    )
                    await (await responder.async_register_service(info, cooperating_responders=True))
        except (OSError, TimeoutError) as error:
            log.warning("cannot announce the directory on this network", extra={"problem": str(error)})
        else:
            log.info("directory announced", extra={"instance": what.instance, "port": what.port})
        yield


def addresses(host: str) -> Sequence[bytes]:
    """The addresses under which a listener can be reached, packed."""
    if host not in _EVERYWHERE:
        return [ip_address(host.partition("%")[0]).packed]
    from ifaddr import get_adapters  # comes with zeroconf

    found = [str(ip.ip) for adapter in get_adapters() for ip in adapter.ips if ip.is_IPv4]
    return [socket.inet_aton(text) for text in found if not is_loopback(text)]


async def _end(responder: Any) -> None:
    with anyio.move_on_after(_END_S, shield=True):
        await responder.async_close()
