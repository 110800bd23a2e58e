"""The directory is found by DNS-SD while it is served, and not afterwards; on loopback only."""

import asyncio
import builtins
import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from runtime.announcement import DIRECTORY_TYPE, TYPE, Announced, addresses, announcing
from tests.support import skep
from things.errors import Unavailable

pytestmark = pytest.mark.anyio

HERE = Announced(instance="skep-test", host="127.0.0.1", port=8443, scheme="https")


class Browser:
    """Sees the services of one type on loopback come and go."""

    def __init__(self, responder: AsyncZeroconf, type_: str) -> None:
        self.seen: asyncio.Queue[tuple[str, ServiceStateChange]] = asyncio.Queue()
        self._browser = AsyncServiceBrowser(responder.zeroconf, type_, handlers=[self._changed])

    def _changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        self.seen.put_nowait((name, state_change))

    async def until(self, name: str, change: ServiceStateChange) -> None:
        with anyio.fail_after(15):
            while await self.seen.get() != (name, change):
                continue

    async def end(self) -> None:
        await self._browser.async_cancel()


@pytest.mark.parametrize("type_", [TYPE, DIRECTORY_TYPE])
async def test_a_directory_is_found_with_its_td_while_it_is_announced(type_: str) -> None:
    name = f"{HERE.instance}.{TYPE}"
    client = AsyncZeroconf(interfaces=["127.0.0.1"])
    browser = Browser(client, type_)
    try:
        async with announcing(HERE):
            await browser.until(name, ServiceStateChange.Added)
            info = AsyncServiceInfo(TYPE, name)
            with anyio.fail_after(10):
                assert await info.async_request(client.zeroconf, 5_000)
        await browser.until(name, ServiceStateChange.Removed)
    finally:
        await browser.end()
        await client.async_close()

    assert info.port == 8443
    assert info.decoded_properties == {"td": "/.well-known/wot", "type": "Directory", "scheme": "https"}
    assert info.parsed_addresses() == ["127.0.0.1"]


async def test_a_runtime_announces_itself_when_it_is_told_to_and_only_then(tmp_path: Path) -> None:
    client = AsyncZeroconf(interfaces=["127.0.0.1"])
    browser = Browser(client, TYPE)
    try:
        async with skep(tmp_path / "silent"):
            pass
        async with skep(tmp_path / "home", tls=True, discovery={"mdns": True}) as runtime:
            with anyio.fail_after(15):
                name, change = await browser.seen.get()
            info = AsyncServiceInfo(TYPE, name)
            with anyio.fail_after(10):
                assert await info.async_request(client.zeroconf, 5_000)
            port = int(runtime.https.rpartition(":")[2])
    finally:
        await browser.end()
        await client.async_close()

    assert change is ServiceStateChange.Added
    assert (info.port, info.decoded_properties["scheme"]) == (port, "https")


async def test_without_the_extra_a_runtime_that_should_announce_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "zeroconf"]:
        monkeypatch.delitem(sys.modules, module)
    imported = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.partition(".")[0] == "zeroconf":
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(Unavailable, match=r"skep\[discovery\]"):
        async with skep(tmp_path, discovery={"mdns": True}):
            pass
    async with skep(tmp_path):
        pass


async def test_a_network_without_multicast_does_not_stop_the_runtime(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*arguments: Any, **more: Any) -> None:
        raise OSError("no such device")

    monkeypatch.setattr(importlib.import_module("zeroconf.asyncio"), "AsyncZeroconf", refused)

    with caplog.at_level(logging.WARNING):
        async with announcing(HERE):
            pass

    assert "cannot announce" in caplog.text


def test_a_listener_everywhere_is_announced_by_its_outer_addresses() -> None:
    assert addresses("127.0.0.1") == [b"\x7f\x00\x00\x01"]
    assert b"\x7f\x00\x00\x01" not in addresses("0.0.0.0")
