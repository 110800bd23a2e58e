"""The directory on the local network: what a browser of DNS-SD finds, and that it is gone afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from bindings.http.announcement import SUBTYPE, TYPE, announced
from bindings.http.config import HttpConfig
from tests.bindings.http.support import house

pytestmark = pytest.mark.anyio

LISTENER = ("127.0.0.1", 0)

Seen = asyncio.Queue[tuple[ServiceStateChange, str]]


@asynccontextmanager
async def browser(type_: str) -> AsyncIterator[tuple[AsyncZeroconf, Seen]]:
    """Somebody who looks for services of a type, on loopback."""
    seen: Seen = asyncio.Queue()

    def changed(zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        seen.put_nowait((state_change, name))

    async with AsyncZeroconf(interfaces=["127.0.0.1"]) as resolver:
        browsing = AsyncServiceBrowser(resolver.zeroconf, [type_], handlers=[changed])
        yield resolver, seen
        await browsing.async_cancel()


@pytest.mark.parametrize("type_", [TYPE, SUBTYPE])
async def test_directory_is_found_with_the_path_of_its_description_and_gone_at_the_end(type_: str) -> None:
    async with browser(type_) as (resolver, seen):
        with anyio.fail_after(30):
            async with announced("https://127.0.0.1:8443", LISTENER):
                state, name = await seen.get()
                info = AsyncServiceInfo(TYPE, name)
                is_resolved = await info.async_request(resolver.zeroconf, 10_000)
            # The other instance of the pair comes and goes too.
            while (ServiceStateChange.Removed, name) != await seen.get():
                pass

    assert state is ServiceStateChange.Added
    assert is_resolved
    assert info.port == 8443
    assert info.parsed_addresses() == ["127.0.0.1"]
    assert info.decoded_properties == {"td": "/.well-known/wot", "type": "Directory", "scheme": "https"}


async def test_two_gateways_on_one_machine_have_names_of_their_own() -> None:
    async with browser(TYPE) as (_, seen):
        with anyio.fail_after(30):
            async with announced("https://127.0.0.1:8443", LISTENER), announced("https://127.0.0.1:9443", LISTENER):
                names = [(await seen.get())[1] for _ in range(4)]

    assert len(set(names)) == 4


async def test_a_listener_announces_itself_only_when_told(tmp_path: Path) -> None:
    async with browser(TYPE) as (resolver, seen):
        with anyio.fail_after(60):
            async with house(tmp_path / "silent", HttpConfig(http=LISTENER)):
                pass
            async with house(tmp_path / "loud", HttpConfig(http=LISTENER, mdns=True)) as loud:
                _, name = await seen.get()
                info = AsyncServiceInfo(TYPE, name)
                await info.async_request(resolver.zeroconf, 10_000)
                own = loud.binding.http_url

    assert own == f"http://127.0.0.1:{info.port}"
