"""The gateway behind a real reverse proxy, at its root and below a path: clients are themselves, addresses its own."""

import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Origin

from tests.nginx import nginx
from tests.support import PUMP, Skep, skep

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse battery"
VERA, GUESSER = "127.0.0.2", "127.0.0.3"
PANEL = {"host": "panel.example"}
FORGED = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https", "x-forwarded-host": "panel.example"}

ROOT: dict[str, Any] = {"names": ["panel.example"]}
BELOW: dict[str, Any] = {"public_url": "https://panel.example/skep"}


class Panel(NamedTuple):
    """A gateway, and where its proxy shows it."""

    house: Skep
    address: str
    tls: ssl.SSLContext

    def client(self, source: str, **headers: str) -> httpx2.AsyncClient:
        """Comes from an address of its own."""
        transport = httpx2.AsyncHTTPTransport(verify=self.tls, local_address=source)
        return httpx2.AsyncClient(
            base_url=self.address, transport=transport, headers=PANEL | headers, trust_env=False, timeout=30
        )

    async def logins(self) -> list[tuple[object, object]]:
        """From where accounts logged in, and what came of it."""
        audited = await self.house.running.stores.authenticator.audited()
        return [(line.get("source"), line["outcome"]) for line in audited if line["act"] == "login"]


@asynccontextmanager
async def panel(folder: Path, gateway: dict[str, Any], **http: Any) -> AsyncIterator[Panel]:
    async with skep(folder / "home", gateway=gateway, http=http, security={"login_attempts_per_minute": 5}) as house:
        await house.add("vera")
        await house.running.stores.authenticator.administration.set_password("vera", PASSWORD, by="test")
        certs = folder / "home" / "certs"
        async with nginx(folder / "nginx", house.http, certs / "server.pem", certs / "server.key") as address:
            path = "/skep" if "public_url" in gateway else ""
            yield Panel(house, address + path, ssl.create_default_context(cafile=str(house.ca)))


@pytest.mark.parametrize("gateway", [ROOT, BELOW], ids=["at the root", "below a path"])
async def test_behind_a_trusted_proxy_clients_are_themselves(tmp_path: Path, gateway: dict[str, Any]) -> None:
    async with panel(tmp_path, gateway, trusted_proxies=["127.0.0.1"]) as shown:
        wrong = {"login": "vera", "password": "wrong"}
        async with shown.client(GUESSER) as guesser:
            replies = [(await guesser.post("/authn/login", json=wrong)).status_code for _ in range(6)]
        assert (replies[0], replies[-1]) == (401, 429)

        # What a client says of itself in front of the proxy is worth nothing.
        async with shown.client(VERA, **{"x-forwarded-for": GUESSER}) as vera:
            reply = await vera.post("/authn/login", json={"login": "vera", "password": PASSWORD})
            assert reply.status_code == 200

        assert set(await shown.logins()) == {(GUESSER, "refused"), (VERA, "ok")}


@pytest.mark.parametrize("gateway", [ROOT, BELOW], ids=["at the root", "below a path"])
async def test_behind_a_trusted_proxy_pages_and_addresses_are_the_proxy_s(
    tmp_path: Path, gateway: dict[str, Any]
) -> None:
    async with panel(tmp_path, gateway, trusted_proxies=["127.0.0.0/8"]) as shown:
        pump = await shown.house.add("pump", "agent")
        async with shown.client(VERA, authorization=f"Bearer {pump.token}") as agent:
            assert (await agent.put("/agent/things/p1", json=PUMP)).is_success
        async with shown.client(VERA, origin="https://panel.example") as page:
            body = {"login": "vera", "password": PASSWORD, "cookie": True}
            reply = await page.post("/authn/login", json=body)
            assert reply.status_code == 200
            cookies = reply.headers.get_list("set-cookie")
            assert all(one.startswith("__Host-skep") and "Secure" in one for one in cookies)
            cookie = "; ".join(one.partition(";")[0] for one in cookies)
            td = (await page.get("/things/dtw:pump:p1", headers={"cookie": cookie})).json()
            hrefs = [form["href"] for form in td["properties"]["flow"]["forms"] if form["href"].startswith("http")]
            base = "https://panel.example/skep/" if "public_url" in gateway else "https://panel.example/"
            assert hrefs
            assert all(href.startswith(base) for href in hrefs)
        async with shown.client(VERA, origin="https://evil.example") as page:
            assert (await page.post("/authn/login", json=body)).status_code == 403


@pytest.mark.parametrize("gateway", [ROOT, BELOW], ids=["at the root", "below a path"])
async def test_websockets_come_through_as_those_who_open_them(tmp_path: Path, gateway: dict[str, Any]) -> None:
    async with panel(tmp_path, gateway, trusted_proxies=["127.0.0.1"]) as shown:
        basic = base64.b64encode(f"vera:{PASSWORD}".encode()).decode()
        address = urlsplit(shown.address)
        async with connect(
            f"wss://panel.example{address.path}/ws",
            host=address.hostname,
            port=address.port,
            ssl=shown.tls,
            server_hostname=address.hostname,
            local_addr=(VERA, 0),
            origin=Origin("https://panel.example"),
            additional_headers={"authorization": f"Basic {basic}"},
            proxy=None,
        ) as socket:
            await socket.send('{"id":1,"type":"open","from":"rt://panel.example/1","to":"mn:/session"}')
            assert '"code":200' in str(await socket.recv())

        assert await shown.logins() == [(VERA, "ok")]


async def test_what_a_proxy_says_that_is_not_listed_is_not_believed(tmp_path: Path) -> None:
    async with panel(tmp_path, ROOT, trusted_proxies=["10.0.0.0/8", VERA]) as shown:
        body = {"login": "vera", "password": PASSWORD}
        async with shown.client(GUESSER) as client:
            assert (await client.post("/authn/login", json=body)).status_code == 200
            page = {"origin": "https://panel.example"}
            foreign = await client.post("/authn/login", json=body | {"cookie": True}, headers=page)
            assert foreign.status_code == 403
        assert await shown.logins() == [("127.0.0.1", "ok")]


async def test_what_anybody_says_of_itself_is_not_believed(tmp_path: Path) -> None:
    async with skep(tmp_path, gateway=ROOT, http={"trusted_proxies": ["10.0.0.1"]}) as house:
        await house.add("vera")
        await house.running.stores.authenticator.administration.set_password("vera", PASSWORD, by="test")
        transport = httpx2.AsyncHTTPTransport(local_address=GUESSER)
        async with httpx2.AsyncClient(base_url=house.http, transport=transport, headers=FORGED) as client:
            client.headers["origin"] = house.http
            reply = await client.post("/authn/login", json={"login": "vera", "password": PASSWORD, "cookie": True})
            assert reply.headers.get_list("set-cookie")[0].startswith("skep=")

        audited = await house.running.stores.authenticator.audited()
        assert [line["source"] for line in audited if line["act"] == "login"] == [GUESSER]
