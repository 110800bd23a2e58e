"""What a page from elsewhere can make a browser send, and what comes of it: nothing that changes anything."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from anyio import open_file

from authn.certificates import Certificates
from bindings.http.config import HttpConfig
from bindings.http.context import Health
from runtime.clocks import wall_clock
from tests.bindings.http.support import PASSWORD, House, house, lamp_house
from tests.support import skep

pytestmark = pytest.mark.anyio

UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {protocol}\r\n{origin}\r\n"
)


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize("fields", FOREIGN)
async def test_a_foreign_page_changes_nothing_by_basic(lamps: House, fields: dict[str, str]) -> None:
    async with lamps.client() as client:
        form = {"content-type": "application/x-www-form-urlencoded", **fields}
        invoked = await client.post("/things/dtw:lights:lamp/actions/blink", auth=("operator1", PASSWORD), headers=form)
        read = await client.get("/things/dtw:lights:lamp/properties", auth=("operator1", PASSWORD), headers=fields)

    assert invoked.status_code == 403
    assert read.status_code == 200, "a page cannot read what is answered to it"


@pytest.mark.parametrize("fields", [*FOREIGN, {}])
async def test_a_foreign_page_changes_and_reads_nothing_by_cookie(lamps: House, fields: dict[str, str]) -> None:
    own = {"origin": lamps.url}
    async with lamps.client() as client:
        given = {"login": "operator1", "password": PASSWORD, "cookie": True}
        assert (await client.post("/authn/login", json=given, headers=own)).status_code == 200
        form = {"content-type": "application/x-www-form-urlencoded", **fields}
        invoked = await client.post("/things/dtw:lights:lamp/actions/blink", headers=form)
        read = await client.get("/authn/profile", headers=fields)
        by_own_page = await client.post("/things/dtw:lights:lamp/actions/blink", headers=own)

    assert (invoked.status_code, read.status_code) == (403, 403 if fields else 200)
    assert by_own_page.status_code == 201


@pytest.mark.parametrize("fields", [*FOREIGN, {}])
async def test_a_foreign_page_takes_no_requests_away_from_an_agent(lamps: House, fields: dict[str, str]) -> None:
    async with lamps.client() as client:
        taken = await client.get("/agent/requests?wait=0", auth=("lights", lamps.tokens["lights"]), headers=fields)

    assert taken.status_code == (403 if fields else 200)


@pytest.mark.parametrize("fields", FOREIGN)
@pytest.mark.parametrize(
    "path", ["/authn/login", "/authn/provision", "/authn/claim", "/authn/refresh", "/authn/logout"]
)
async def test_a_form_of_a_foreign_page_gets_nowhere(lamps: House, path: str, fields: dict[str, str]) -> None:
    body = json.dumps({"login": "operator1", "password": PASSWORD, "clientID": "d", "publicKey": "k", "code": "c"})
    async with lamps.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            sent = await client.post(path, content=body, headers={"content-type": kind, **fields})
            assert sent.status_code in (401, 403, 415), sent.text


@pytest.mark.parametrize("origin", [True, False])
async def test_programs_and_own_pages_act_by_basic(lamps: House, origin: bool) -> None:
    fields = {"origin": lamps.url} if origin else {}
    async with lamps.client() as client:
        reply = await client.post(
            "/rpc/dtw:authn:user/getProfile", json={}, auth=("operator1", PASSWORD), headers=fields
        )

    assert reply.status_code == 200, reply.text


async def test_a_foreign_page_changes_nothing_by_client_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certs", wall_clock)
    config = HttpConfig(https=("127.0.0.1", 0))
    async with lamp_house(tmp_path / "home", config, tls=certificates.server_context()) as lamps:
        issued = lamps.authenticator.certificates
        pem, key, _ = await issued.issue(certificates, "operator1", None, by="test")
        assert key is not None
        async with await open_file(tmp_path / "client.pem", "w") as file:
            await file.write(pem + key)
        context = certificates.client_context()
        context.load_cert_chain(tmp_path / "client.pem")
        async with httpx.AsyncClient(base_url=lamps.binding.https_url or "", verify=context) as client:
            replies = [
                await client.post("/rpc/dtw:authn:user/getProfile", json={}, headers=fields)
                for fields in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {})
            ]

    assert [reply.status_code for reply in replies] == [403, 403, 200]


async def _answer(url: str, request: str) -> str:
    """The first line that is answered to what is sent, over a socket of its own."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.encode())
        line = await reader.readline()
        writer.close()
        return line.decode().strip()


@pytest.mark.parametrize(
    ("path", "protocol"), [("/mqtt", "mqtt"), ("/wot/ws", "webthingprotocol"), ("/ws", "x"), ("/stub/connect", "x")]
)
async def test_one_rule_of_origins_holds_for_every_websocket(tmp_path: Path, path: str, protocol: str) -> None:
    async with skep(tmp_path / "home") as runtime:
        host = runtime.http.removeprefix("http://")
        foreign = UPGRADE.format(path=path, host=host, protocol=protocol, origin="Origin: https://evil.example\r\n")
        own = UPGRADE.format(path=path, host=host, protocol=protocol, origin=f"Origin: {runtime.http}\r\n")
        none = UPGRADE.format(path=path, host=host, protocol=protocol, origin="")
        answers = [await _answer(runtime.http, one) for one in (foreign, own, none)]

    assert answers[0].startswith("HTTP/1.1 403")
    assert not any(answer.startswith("HTTP/1.1 403") for answer in answers[1:])


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET /livez HTTP/1.1\r\n\r\n", 400),
        ("GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET /livez HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET /livez\r\n\r\n", 400),
        ("GET /livez HTTP/1.0\r\n\r\n", 200),
        ("GET /livez HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200),
    ],
)
async def test_a_request_has_one_host(lamps: House, request_: str, status: int) -> None:
    assert (await _answer(lamps.url, request_)).split(" ")[1] == str(status)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "evil.example"}, 401),
        ({"x-forwarded-for": "203.0.113.9"}, 401),
        ({"forwarded": "for=203.0.113.9"}, 401),
    ],
)
async def test_figures_are_open_to_programs_of_this_machine_only(
    tmp_path: Path, fields: dict[str, str], status: int
) -> None:
    async with (
        house(tmp_path / "home", health=Health(metrics=lambda accept: (b"up 1\n", "text/plain"))) as opened,
        opened.client() as nobody,
    ):
        assert (await nobody.get("/metrics", headers=fields)).status_code == status


@pytest.mark.parametrize("hsts", [True, False])
async def test_browsers_are_held_to_tls_where_they_trust_the_certificate(tmp_path: Path, hsts: bool) -> None:
    certificates = Certificates(tmp_path / "certs", wall_clock)
    config = HttpConfig(https=("127.0.0.1", 0), hsts=hsts)
    async with house(tmp_path / "home", config, tls=certificates.server_context()) as opened:
        context: ssl.SSLContext = certificates.client_context()
        async with httpx.AsyncClient(verify=context) as client:
            secure = await client.get(f"{opened.binding.https_url}/livez")
            plain = await client.get(f"{opened.binding.http_url}/livez")

    assert ("strict-transport-security" in secure.headers) is hsts
    assert "strict-transport-security" not in plain.headers


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_gateway_with_a_certificate_of_its_own_tells_browsers_so(tmp_path: Path, is_own: bool) -> None:
    other = Certificates(tmp_path / "other", wall_clock)
    files = {
        "certificate": str(tmp_path / "other" / "server.pem"),
        "certificate_key": str(tmp_path / "other" / "server.key"),
    }
    async with skep(tmp_path / "home", tls=True, security=files if is_own else {}) as runtime:
        context = other.client_context() if is_own else runtime.running.certificates.client_context()
        async with httpx.AsyncClient(verify=context, trust_env=False) as client:
            reply = await client.get(f"{runtime.https}/livez")

    assert ("strict-transport-security" in reply.headers) is is_own
