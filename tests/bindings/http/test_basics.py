"""What every exchange has in common: credentials, problems, limits, methods."""

import asyncio
import base64
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from bindings.http.binding import all_routes
from bindings.http.config import HttpConfig
from tests.bindings.http.support import PASSWORD, House, lamp_house
from things.errors import SkepError
from things.problems import STATUSES

pytestmark = pytest.mark.anyio

LEVEL = "/things/dtw:lights:lamp/properties/level"


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


def _all_errors(base: type[SkepError] = SkepError) -> set[str]:
    """The codes of the tree and of this binding. Clients have kinds of their own, which never come out of a runtime."""
    ours = (kind for kind in base.__subclasses__() if kind.__module__.startswith(("things.errors", "bindings.http.")))
    return {base.code}.union(*(_all_errors(kind) for kind in ours))


def test_every_error_code_has_a_status() -> None:
    assert _all_errors() <= set(STATUSES)


async def test_without_credentials_nothing_is_served(lamps: House) -> None:
    async with lamps.client() as nobody:
        reply = await nobody.get(LEVEL)

    assert reply.status_code == 401
    assert reply.headers["content-type"] == "application/problem+json"
    assert "Bearer" in reply.headers["www-authenticate"]
    assert reply.json() == {
        "type": "urn:skep:error:unauthenticated",
        "title": "Unauthorized",
        "status": 401,
        "detail": "log in first",
        "code": "unauthenticated",
    }


@pytest.mark.parametrize("authorization", ["Bearer nonsense", "Bearer", "Basic !!!", "Digest x=y", "Basic " + "QQ=="])
async def test_bad_credentials_are_refused(lamps: House, authorization: str) -> None:
    async with lamps.client(None) as nobody:
        reply = await nobody.get(LEVEL, headers={"authorization": authorization})

    assert reply.status_code == 401


async def test_basic_credentials_log_in_by_password_and_by_token(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client() as nobody:
        await lights.post("/agent/things/lamp/properties", json={"level": 3})
        for secret in (PASSWORD, lamps.tokens["viewer1"]):
            credentials = base64.b64encode(f"viewer1:{secret}".encode()).decode()
            reply = await nobody.get(LEVEL, headers={"authorization": f"Basic {credentials}"})
            assert reply.json() == 3

        wrong = base64.b64encode(b"viewer1:" + lamps.tokens["manager1"].encode()).decode()
        assert (await nobody.get(LEVEL, headers={"authorization": f"Basic {wrong}"})).status_code == 401


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/things?agnet=x", "'agnet' is no parameter of this address; did you mean 'agent'?"),
        ("/things/dtw:lights:lamp/history?frm=2026-01-01T00:00:00Z", "'frm' is no parameter of this address"),
        ("/things/dtw:lights:lamp/history?name=level&Limit=1", "did you mean 'limit'?"),
        ("/history?things=dtw:lights:lamp", "did you mean 'thing'?"),
        ("/requests?from=2026-01-01T00:00:00Z&%00=", "is no parameter"),
        (LEVEL + "?asOf=2026-01-01T00:00:00Z", "did you mean 'asof'?"),
        ("/stream?kinds=event", "did you mean 'kind'?"),
        ("/inbox?since=3", "'since' is no parameter"),
        ("/livez?verbose", "is no parameter"),
    ],
)
async def test_misspelt_parameter_is_refused_with_the_nearest_name(lamps: House, address: str, said: str) -> None:
    async with lamps.client("viewer1") as viewer:
        reply = await viewer.get(address)

    assert (reply.status_code, reply.json()["code"]) == (400, "invalid")
    assert said in reply.json()["detail"]


async def test_every_route_refuses_what_it_does_not_read_and_takes_what_it_documents(lamps: House) -> None:
    async with lamps.client("admin1") as admin:
        for route in all_routes({}):
            documented = route.documented
            path = re.sub(r"\{\w+\}", "x", route.path)
            if documented.any_query:
                continue
            wrong = await admin.request(route.method, f"{path}?nonsense=1")
            assert wrong.status_code == 400, route
            assert "'nonsense' is no parameter" in wrong.json()["detail"], route
            if documented.query:
                # Twice each, which no value would be allowed to be: so that streams do not begin.
                twice = "&".join(f"{name}=%20&{name}=%20" for name in documented.query)
                known = await admin.request(route.method, f"{path}?{twice}")
                assert "is no parameter" not in known.text, route


async def test_who_calls_is_asked_before_what_is_misspelt(lamps: House) -> None:
    async with lamps.client() as nobody:
        assert (await nobody.get("/things?agnet=x")).status_code == 401


async def test_pages_are_given_whatever_stands_in_their_query(lamps: House) -> None:
    async with lamps.client() as nobody:
        assert (await nobody.get("/?utm_source=mail")).status_code == 200


async def test_an_order_that_is_not_offered_is_refused_as_such(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        assert (await viewer.get("/things?sort_by=title")).status_code == 501
        assert (await viewer.get("/things?sort_order=desc")).status_code == 501


async def test_a_token_in_the_address_is_refused(lamps: House) -> None:
    async with lamps.client() as nobody:
        reply = await nobody.get(f"{LEVEL}?access_token={lamps.tokens['viewer1']}")

    assert reply.status_code == 401
    assert lamps.tokens["viewer1"] not in reply.text


async def test_a_published_value_can_be_read(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        assert (await lights.post("/agent/things/lamp/properties", json={"level": 7, "mode": "é"})).status_code == 204
        one = await viewer.get(LEVEL)
        every = await viewer.get("/things/dtw:lights:lamp/properties")

    assert (one.status_code, one.json()) == (200, 7)
    assert every.json().items() >= {"level": 7, "mode": "é"}.items()


async def test_head_answers_like_get_without_a_body(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("viewer1") as viewer:
        await lights.post("/agent/things/lamp/properties", json={"level": 7})
        for path in (LEVEL, "/things/dtw:lights:lamp", "/livez", "/stream", "/inbox", "/requests", "/openapi.json"):
            with anyio.fail_after(30):
                reply = await viewer.head(path)
            assert (reply.status_code, reply.content) == (200, b""), path


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("DELETE", LEVEL, 405, "GET, HEAD, OPTIONS, PUT"),
        ("GET", "/agent/batch", 405, "OPTIONS, POST"),
        ("GET", "/nowhere", 404, None),
        ("GET", LEVEL + "/", 404, None),
        ("GET", "/things//properties/level", 404, None),
        ("GET", "/things/dtw:lights:lamp/properties/no%2Fsuch", 404, None),
        ("GET", "/things/dtw:lights:other/properties/level", 404, None),
        ("GET", "/things/dtw:lights:lamp/properties/%ff", 400, None),
        ("GET", "/things/dtw:lights:lamp/properties/%zz", 400, None),
        ("OPTIONS", LEVEL, 204, "GET, HEAD, OPTIONS, PUT"),
    ],
)
async def test_paths_and_methods(lamps: House, method: str, path: str, status: int, allow: str | None) -> None:
    async with lamps.client("viewer1") as viewer:
        reply = await viewer.request(method, path)

    assert reply.status_code == status
    assert reply.headers.get("allow") == allow
    if status >= 400:
        assert reply.json()["status"] == status


async def test_every_reply_carries_security_headers(lamps: House) -> None:
    async with lamps.client() as nobody:
        for path in ("/", "/livez", "/nowhere", LEVEL):
            headers = (await nobody.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers


async def test_a_body_at_the_limit_passes_and_one_byte_more_is_refused(lamps: House) -> None:
    at_limit = json.dumps("x" * (262_144 - 2)).encode()
    assert len(at_limit) == 262_144
    async with lamps.client("lights") as lights:
        path = "/agent/things/lamp/events/touched"
        headers = {"content-type": "application/json"}
        assert (await lights.post(path, content=at_limit, headers=headers)).status_code == 204
        over = await lights.post(path, content=at_limit + b" ", headers=headers)
        assert (over.status_code, over.json()["code"]) == (413, "too-large")

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(262_145 // 4_096 + 1):
                yield b" " * 4_096

        streamed = await lights.post(path, content=chunks(), headers=headers)
        assert (streamed.status_code, streamed.json()["code"]) == (413, "too-large")


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {}, 400, "malformed"),
        (b"NaN", {}, 400, "malformed"),
        (b'"\xff"', {}, 400, "malformed"),
        (b"[" * 33 + b"]" * 33, {}, 400, "too-deep"),
        (b"1", {"content-type": "text/plain"}, 415, "unsupported-media-type"),
        (b"1", {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported-media-type"),
        (b"1", {"content-type": "application/json; charset=latin-1"}, 415, "unsupported-media-type"),
        (gzip.compress(b"1", mtime=0), {"content-encoding": "gzip"}, 415, "unsupported-media-type"),
        (b"1", {"idempotency-key": "x" * 129}, 400, "invalid"),
        (b"1", {"content-type": "application/json; charset=UTF-8"}, 204, None),
    ],
)
async def test_bodies(lamps: House, content: bytes, headers: dict[str, str], status: int, code: str | None) -> None:
    sent = {"content-type": "application/json", **headers}
    async with lamps.client("lights") as lights:
        reply = await lights.post("/agent/things/lamp/events/touched", content=content, headers=sent)

    assert reply.status_code == status, reply.text
    if code:
        assert reply.json()["code"] == code


async def test_null_is_data_and_an_empty_body_is_none(lamps: House) -> None:
    async with lamps.client("lights") as lights, lamps.client("operator1") as operator:
        assert (await lights.post("/agent/things/lamp/events/touched", json=None)).status_code == 204
        assert (await lights.post("/agent/things/lamp/events/overheated")).status_code == 400
        missing = await operator.post("/things/dtw:lights:lamp/actions/fade")
        assert (missing.status_code, missing.json()["code"]) == (400, "invalid")


async def test_host_header_decides_nothing(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer:
        reply = await viewer.get("/things/dtw:lights:lamp", headers={"host": "evil.test/authn"})

    assert reply.status_code == 200
    assert "evil" not in reply.text


async def _raw(house: House, sent: bytes) -> bytes:
    port = int(house.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        with anyio.fail_after(30):
            return await reader.read()
    finally:
        writer.close()


async def test_what_is_not_http_gets_a_problem(lamps: House) -> None:
    reply = await _raw(lamps, b"\x00\x01 nonsense\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in reply


async def test_headers_are_bounded_in_size_and_time(tmp_path: Path) -> None:
    config = HttpConfig(header_timeout_s=0.2, max_header_bytes=8_192)
    async with lamp_house(tmp_path / "home", config) as lamps:
        many = b"".join(b"x-%d: %s\r\n" % (index, b"y" * 100) for index in range(100))
        assert (await _raw(lamps, b"GET /livez HTTP/1.1\r\n" + many + b"\r\n")).startswith(b"HTTP/1.1 431 ")
        assert await _raw(lamps, b"GET /livez HTTP/1.1\r\nx-slow: ") == b""
        assert await _raw(lamps, b"") == b""


async def test_a_body_that_does_not_arrive_in_time_ends_the_connection(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", HttpConfig(body_timeout_s=0.2)) as lamps:
        head = (
            "POST /agent/things/lamp/events/touched HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {lamps.tokens['lights']}\r\ncontent-length: 9\r\n\r\n"
        )
        assert await _raw(lamps, head.encode() + b"12") == b""
        whole = await _raw(lamps, head.encode().replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b'"1234567"')
        assert whole.startswith(b"HTTP/1.1 204 ")


async def test_one_huge_header_is_refused_as_a_problem(lamps: House) -> None:
    reply = await _raw(lamps, b"GET /livez HTTP/1.1\r\nx-huge: " + b"y" * 70_000 + b"\r\n\r\n")

    assert reply.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers-too-large"' in reply
    assert (await _raw(lamps, b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).startswith(
        b"HTTP/1.1 200 "
    )


async def test_huge_headers_are_refused_behind_another_request_too(lamps: House) -> None:
    first, huge = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /livez HTTP/1.1\r\nx-huge: " + b"y" * 70_000
    reply = await _raw(lamps, first + huge + b"\r\n\r\n")

    assert b"HTTP/1.1 431 " in reply
    assert reply.count(b"HTTP/1.1 200 ") <= 1


async def test_connections_are_bounded(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", HttpConfig(max_connections=2)) as lamps:
        port = int(lamps.url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        try:
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError, httpx.ConnectError)):
                async with lamps.client() as nobody:
                    await nobody.get("/livez")
        finally:
            for _, writer in held:
                writer.close()


async def test_too_many_wrong_logins_are_told_when_to_come_back(lamps: House) -> None:
    async with lamps.client() as nobody:
        for _ in range(100):
            reply = await nobody.post("/authn/login", json={"login": "viewer1", "password": "wrong password"})
            if reply.status_code == 429:
                break

    assert reply.status_code == 429
    assert int(reply.headers["retry-after"]) >= 1


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": event["text"]})


async def test_silence_ends_a_connection_and_not_the_web_socket_it_became(tmp_path: Path) -> None:
    upgrade = (
        b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    config = HttpConfig(keep_alive_s=1)
    async with lamp_house(tmp_path / "home", config, mounts={"/echo": _echo}) as lamps:
        port = int(lamps.url.rpartition(":")[2])
        silent, became = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        try:
            for reader, writer in (silent, became):
                writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                assert (await reader.readuntil(b'{"live":true}')).startswith(b"HTTP/1.1 200 ")
            reader, writer = became
            writer.write(upgrade)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")

            async with asyncio.timeout(30):
                assert await silent[0].read() == b"", "nothing was asked for a second"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await reader.read(1)
            writer.write(b"\x81\x82\x00\x00\x00\x00hi")
            async with asyncio.timeout(30):
                assert await reader.readexactly(4) == b"\x81\x02hi"
        finally:
            for _, writer in (silent, became):
                writer.close()
