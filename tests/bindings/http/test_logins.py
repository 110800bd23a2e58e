"""Claim, login, cookies, tickets, provisioning, the control socket, TLS and client certificates."""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from authn.certificates import Certificates
from bindings.http.config import HttpConfig
from bindings.http.context import Health
from bindings.http.tickets import Tickets, canonical
from bindings.web.connections import peer_uid
from runtime.clocks import wall_clock
from tests.bindings.http.support import PASSWORD, Events, House, eventually, house, lamp_house
from things.errors import AddressInUse, ConfigInvalid, Conflict, TokenInvalid
from things.identity import AccountType, Principal

pytestmark = pytest.mark.anyio

LAMP_PATH = "/things/dtw:lights:lamp"


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def test_claim_makes_the_first_admin_once(tmp_path: Path) -> None:
    async with house(tmp_path / "home") as fresh, fresh.client() as nobody:
        code = (tmp_path / "home" / "claim").read_text().strip()
        body = {"code": code, "login": "ada", "password": PASSWORD}
        assert (await nobody.post("/authn/claim", json=body | {"code": "wrong"})).status_code == 403
        weak = await nobody.post("/authn/claim", json=body | {"password": "short"})
        assert weak.status_code == 400
        first = await nobody.post("/authn/claim", json=body)
        assert first.status_code == 200
        assert (first.json()["clientID"], first.json()["role"]) == ("ada", "admin")
        second = await nobody.post("/authn/claim", json=body | {"login": "eve"})
        assert second.status_code == 409


async def test_login_refresh_and_logout(lamps: House) -> None:
    async with lamps.client() as nobody:
        for wrong in ({"login": "viewer1", "password": "wrong"}, {"login": "nobody", "password": PASSWORD}):
            reply = await nobody.post("/authn/login", json=wrong)
            assert (reply.status_code, reply.json()["detail"]) == (401, "wrong account or credentials")
        assert (await nobody.post("/authn/login", json={"login": "viewer1"})).status_code == 400

        login = (await nobody.post("/authn/login", json={"login": "viewer1", "password": PASSWORD})).json()
        assert set(login) == {"accessToken", "refreshToken", "expiresIn", "clientID", "role"}
        bearer = {"authorization": f"Bearer {login['accessToken']}"}
        assert (await nobody.get("/authn/profile", headers=bearer)).json()["clientID"] == "viewer1"
        as_access = {"authorization": f"Bearer {login['refreshToken']}"}
        assert (await nobody.get("/authn/profile", headers=as_access)).status_code == 401

        fresh = (await nobody.post("/authn/refresh", json={"refreshToken": login["refreshToken"]})).json()
        reused = await nobody.post("/authn/refresh", json={"refreshToken": login["refreshToken"]})
        assert reused.status_code == 401
        killed = {"authorization": f"Bearer {fresh['accessToken']}"}
        assert (await nobody.get("/authn/profile", headers=killed)).status_code == 401


async def test_browser_logs_in_by_cookie_and_its_pages_must_be_ours(lamps: House) -> None:
    ours = {"origin": lamps.url}
    async with lamps.client() as browser:
        body = {"login": "operator1", "password": PASSWORD, "cookie": True}
        foreign = await browser.post("/authn/login", json=body, headers={"origin": "https://evil.test"})
        assert foreign.status_code == 403
        reply = await browser.post("/authn/login", json=body, headers=ours)
        assert reply.status_code == 200
        assert set(reply.json()) == {"expiresIn", "clientID", "role"}
        for cookie in reply.headers.get_list("set-cookie"):
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie
            assert "Path=/" in cookie

        assert (await browser.get("/authn/profile")).status_code == 200
        assert (await browser.get("/authn/profile", headers=ours)).status_code == 200
        assert (await browser.get("/authn/profile", headers={"origin": "https://evil.test"})).status_code == 403
        assert (await browser.get("/authn/profile", headers={"origin": "null"})).status_code == 403
        assert (await browser.get("/authn/profile", headers={"sec-fetch-site": "cross-site"})).status_code == 403
        invoke = f"{LAMP_PATH}/actions/blink"
        assert (await browser.post(invoke)).status_code == 403
        assert (await browser.post(invoke, headers={"origin": "https://evil.test"})).status_code == 403
        assert (await browser.post(invoke, headers=ours)).status_code == 201

        assert (await browser.post("/authn/refresh", json={}, headers=ours)).status_code == 200
        assert (await browser.get("/authn/profile")).status_code == 200
        assert (await browser.post("/authn/logout", json={}, headers=ours)).status_code == 200
        assert (await browser.get("/authn/profile")).status_code == 401


async def test_ticket_opens_one_stream_again_and_again_but_one_at_a_time(lamps: House) -> None:
    stream = f"{LAMP_PATH}/properties/level?sse=unnamed"
    async with lamps.client("viewer1") as viewer, lamps.client() as nobody, lamps.client("lights") as lights:
        given = (await viewer.post("/authn/ticket", json={"stream": stream})).json()
        headers = {"accept": "text/event-stream"}
        assert given["expiresIn"] == 30
        for _ in range(2):
            async with nobody.stream("GET", given["href"], headers=headers) as response:
                assert response.status_code == 200
                second = await nobody.get(given["href"], headers=headers)
                assert (second.status_code, second.json()["code"]) == (409, "conflict")
                events = Events(response)
                await lights.post("/agent/things/lamp/properties", json={"level": 4})
                assert await events.data() == 4
            await eventually(lamps.no_sessions)
        other = given["href"].replace("level", "mode")
        assert (await nobody.get(other, headers=headers)).status_code == 401
        assert (await nobody.post(f"{LAMP_PATH}/actions/blink?ticket={given['ticket']}")).status_code == 401
        assert (await nobody.get("/authn/profile?ticket=nonsense")).status_code == 401
        assert (await viewer.post("/authn/ticket", json={"stream": "https://evil.test/"})).status_code == 400
        assert (await nobody.post("/authn/ticket", json={"stream": stream})).status_code == 401


async def test_ticket_dies_with_its_login(lamps: House) -> None:
    async with lamps.client() as nobody:
        login = (await nobody.post("/authn/login", json={"login": "viewer1", "password": PASSWORD})).json()
        bearer = {"authorization": f"Bearer {login['accessToken']}"}
        given = (await nobody.post("/authn/ticket", json={"stream": "/stream"}, headers=bearer)).json()
        assert (await nobody.post("/authn/logout", headers=bearer)).status_code == 200
        assert (await nobody.get(given["href"])).status_code == 401


def test_unused_tickets_end_after_half_a_minute_and_used_ones_after_twelve_hours() -> None:
    now = 0
    tickets = Tickets(lambda: now, limit=2)
    principal = Principal(account="a", type=AccountType.CONSUMER, role="viewer")
    unused, used = tickets.issue(principal, "/stream?b=2&a=1"), tickets.issue(principal, "/stream")
    assert tickets.redeem(unused, f"/stream?a=1&ticket={unused}&b=2").principal is principal
    with tickets.opened(used, print), pytest.raises(Conflict), tickets.opened(used, print):
        pass

    now = 30_000_000
    with pytest.raises(TokenInvalid):
        tickets.redeem(unused, "/stream?a=1&b=2")
    assert tickets.redeem(used, "/stream")
    now = 12 * 3_600 * 1_000_000
    with pytest.raises(TokenInvalid):
        tickets.redeem(used, "/stream")
    for _ in range(5):
        newest = tickets.issue(principal, "/stream")
    assert tickets.redeem(newest, "/stream")


def test_a_stream_has_one_spelling() -> None:
    assert canonical("/stream?b=2&ticket=x&a=1") == canonical("/stream?a=1&b=2") == "/stream?a=1&b=2"
    assert canonical("/stream?ticket=x") == "/stream"


async def test_device_asks_for_its_account(lamps: House) -> None:
    async with lamps.client() as nobody:
        assert (await nobody.post("/authn/provision", json={"clientID": "new1"})).status_code == 400
        reply = await nobody.post("/authn/provision", json={"clientID": "new1", "publicKey": "nonsense"})
        assert reply.status_code == 400


# ---------------------------------------------------------------- listeners


async def test_control_socket_is_the_local_admin(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text("left by a dead process")
    async with house(tmp_path / "home", HttpConfig(http=None, control_socket=path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://local", timeout=30) as client:
            profile = (await client.get("/authn/profile")).json()
            assert (profile["clientID"], profile["role"]) == ("skep", "admin")
            assert (await client.get("/requests")).status_code == 200
    assert not path.exists()


async def test_control_socket_refuses_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "control.sock"
    async with house(tmp_path / "home", HttpConfig(http=None, control_socket=path)):
        monkeypatch.setattr("bindings.web.connections.peer_uid", lambda transport: os.getuid() + 1)
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport, base_url="http://local", timeout=30) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/livez")


async def test_peer_uid_is_the_kernels_word(tmp_path: Path) -> None:
    seen: list[int] = []

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.append(peer_uid(transport))
            transport.close()

    server = await asyncio.get_running_loop().create_unix_server(Server, str(tmp_path / "s"))
    async with server:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        await reader.read()
        writer.close()
    assert seen == [os.getuid()]


async def test_tls_listener_with_client_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", wall_clock)
    tls = certificates.server_context()
    config = HttpConfig(https=("127.0.0.1", 0))
    async with lamp_house(tmp_path / "home", config, tls=tls) as lamps:
        assert lamps.binding.https_url is not None
        trusted = httpx.create_ssl_context(verify=str(certificates.ca_file))
        async with httpx.AsyncClient(base_url=lamps.binding.https_url, verify=trusted) as client:
            body = {"login": "viewer1", "password": PASSWORD, "cookie": True}
            reply = await client.post("/authn/login", json=body, headers={"origin": lamps.binding.https_url})
            cookies = reply.headers.get_list("set-cookie")
            assert all(cookie.startswith("__Host-skep") and "Secure" in cookie for cookie in cookies)
            assert (await client.get("/authn/profile")).json()["clientID"] == "viewer1"


async def test_plain_http_beyond_loopback_is_refused(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ConfigInvalid):
            async with house(tmp_path / "home", HttpConfig(http=(host, 0))):
                pass
    with pytest.raises(ConfigInvalid):
        async with house(tmp_path / "home", HttpConfig(https=("127.0.0.1", 0))):
            pass
    async with house(tmp_path / "home", HttpConfig(http=("0.0.0.0", 0), insecure=True)) as opened:
        assert opened.url.startswith("http://127.0.0.1:")


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(AddressInUse):
            async with house(tmp_path / "home", HttpConfig(http=taken.getsockname())):
                pass


async def test_health_says_why_not_ready(tmp_path: Path) -> None:

    reasons: dict[str, str] = {}
    health = Health(
        ready=lambda: reasons,
        warnings=lambda: {"certificate": "ends soon"},
        metrics=lambda accept: (b"up 1\n", "text/plain"),
    )
    async with house(tmp_path / "home", health=health) as opened, opened.client() as nobody:
        assert (await nobody.get("/livez")).json() == {"live": True}
        ready = await nobody.get("/readyz")
        assert (ready.status_code, ready.json()["warnings"]) == (200, {"certificate": "ends soon"})
        reasons["history"] = "disk full"
        unready = await nobody.get("/readyz")
        assert (unready.status_code, unready.json()["reasons"]) == (503, {"history": "disk full"})
        assert (await nobody.get("/metrics")).text == "up 1\n"


async def test_description_of_the_api_names_every_route(lamps: House) -> None:
    async with lamps.client() as nobody:
        document: dict[str, Any] = (await nobody.get("/openapi.json")).json()

        streams: dict[str, Any] = (await nobody.get("/asyncapi.json")).json()

    assert (streams["asyncapi"], streams["channels"]["inbox"]["address"]) == ("3.0.0", "/inbox")
    assert streams["servers"]["http"]["host"] == lamps.url.removeprefix("http://")
    assert document["openapi"].startswith("3.1")
    assert "post" in document["paths"]["/things/{id}/actions/{name}"]
    identifiers = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(identifiers) == len(set(identifiers))
    assert json.dumps(document)


async def test_mounted_applications_get_their_paths(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async with house(tmp_path / "home", mounts={"/node": app}) as opened, opened.client() as nobody:
        assert (await nobody.get("/node/x/y")).text == "/node/x/y"
        assert (await nobody.get("/nodex")).status_code == 404
