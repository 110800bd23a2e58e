"""The directory announced on the local network by DNS-SD, as WoT Discovery's introduction: `_wot._tcp`.

Off unless configured. Announced is one listener, the TLS one where there is one, on the network it listens on, for as
long as it serves. A network without multicast, or a name that is taken, costs a warning or another name, not the start.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio

from bindings.web.limits import Address
from things.errors import ConfigInvalid
from things.hosts import EVERYWHERE, Names

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncServiceInfo

log = logging.getLogger(__name__)

TYPE = "_wot._tcp.local."
SUBTYPE = f"_directory._sub.{TYPE}"
"""What those browse for who want directories only."""
DESCRIPTION = "/.well-known/wot"
PATIENCE_S = 10.0


@asynccontextmanager
async def announced(url: str, listener: Address, names: Names | None = None) -> AsyncIterator[None]:
    """Announce the directory behind `url`, whose listener was configured as `listener`, while the block runs, under the
    addresses and the host name that `names` knows."""
    try:
        from zeroconf import Error, InterfaceChoice
        from zeroconf.asyncio import AsyncZeroconf
    except ImportError as error:
        raise ConfigInvalid("announcing the directory needs more packages: pip install 'skep[discovery]'") from error

    host = "127.0.0.1" if listener[0] == "localhost" else listener[0]
    everywhere, names = host in EVERYWHERE, names or Names()
    own = [one for one in names.addresses if host == "::" or ":" not in one] if everywhere else [host]
    responder = AsyncZeroconf(interfaces=InterfaceChoice.All if everywhere else [host])
    try:
        try:
            with anyio.fail_after(PATIENCE_S):
                for info in services(url, own, names):
                    await (await responder.async_register_service(info, allow_name_change=True))
                    log.info("directory announced", extra={"instance": info.name, "addresses": own})
        except (Error, OSError, TimeoutError) as error:
            log.warning("the directory is not announced", extra={"error": repr(error)})
        yield
    finally:
        # Says goodbye for every name, so that nobody keeps it until its record runs out.
        with anyio.move_on_after(2.0, shield=True):
            await responder.async_unregister_all_services()
        with anyio.move_on_after(2.0, shield=True):
            await responder.async_close()


def services(url: str, addresses: list[str], names: Names) -> "list[AsyncServiceInfo]":
    """What is announced: one instance for those who look for Things, one for those who look for directories."""
    from zeroconf.asyncio import AsyncServiceInfo

    address = urlsplit(url)
    host = next(iter(names.hosts), "gateway").partition(".")[0]
    return [
        AsyncServiceInfo(
            type_,
            # The port tells gateways on one machine apart; a label is at most 63 bytes.
            f"{title[:57]} {address.port}.{TYPE}",
            port=address.port,
            parsed_addresses=addresses,
            server=f"{host}.local.",
            properties={"td": DESCRIPTION, "type": "Directory", "scheme": address.scheme},
        )
        for type_, title in ((TYPE, f"skep {host}"), (SUBTYPE, f"skep directory {host}"))
    ]
