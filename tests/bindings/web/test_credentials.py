"""Who comes over HTTP, by one rule for everything that is served there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bindings.web.credentials import by_certificate, by_cookie, by_header, cookie, is_loopback_only
from bindings.web.credentials import refuse_token_in_address as refuse
from bindings.web.fields import Fields
from tests.support import skep
from things.errors import Forbidden, TokenInvalid, Unauthenticated
from things.identity import LOCAL_ADMIN, AccountType, Principal

pytestmark = pytest.mark.anyio

OWN, FOREIGN = "https://gateway.example", "https://evil.example"
ANN = Principal(account="ann", type=AccountType.CONSUMER, role="viewer")


class Ann:
    """Knows Ann by the token, password and certificate `right`."""

    def verify(self, token: str) -> Principal:
        if token != "right":
            raise TokenInvalid
        return ANN

    async def login(self, account: str, secret: str, *, source: str | None) -> Principal:
        if (account, secret) != ("ann", "right"):
            raise Unauthenticated
        return ANN

    def identity_of(self, account: str) -> str | None:
        return None

    async def by_certificate(self, shown: Any) -> Principal:
        if shown != "right":
            raise Unauthenticated
        return ANN


def is_own(origin: str, host: str | None, scheme: str) -> bool:
    return origin == OWN


def scope_of(query: bytes = b"", method: str | None = "POST", **state: Any) -> dict[str, Any]:
    """A request, or a WebSocket's handshake where there is no method."""
    kind = {"type": "websocket", "scheme": "wss"} if method is None else {"type": "http", "scheme": "https"}
    return {**kind, "method": method, "query_string": query, "headers": [], "state": state, "client": ("192.0.2.1", 1)}


async def identified(scope: dict[str, Any], **fields: str) -> Principal | None:
    given = Fields([(name.replace("_", "-").encode(), text.encode()) for name, text in fields.items()])
    brought: tuple[Any, ...] = (scope, given, Ann(), is_own)
    return await by_header(*brought) or await by_certificate(*brought) or by_cookie(*brought)


@pytest.mark.parametrize(
    "query",
    [b"token=x", b"a=1&access_token=x", b"TOKEN=x", b"%74oken=x", b"access%5Ftoken=x", b"token", b"Access_Token=&b"],
)
def test_a_token_in_an_address_is_refused_however_it_is_spelled(query: bytes) -> None:
    with pytest.raises(TokenInvalid):
        refuse(scope_of(query))


@pytest.mark.parametrize(
    "query", [b"", b"mytoken=x", b"tokens=1", b"name=token", b"filter=%22token%3D1%22", b"runtimeURL=hyperty%3A%2F%2F"]
)
def test_other_parameters_pass(query: bytes) -> None:
    refuse(scope_of(query))


BASIC = "Basic YW5uOnJpZ2h0"


@pytest.mark.parametrize("method", ["GET", "POST", None])
async def test_each_credential_proves_its_account(method: str | None) -> None:
    own = {"origin": OWN}
    assert await identified(scope_of(method=method), authorization="Bearer right") == ANN
    assert await identified(scope_of(method=method), authorization=BASIC) == ANN
    assert await identified(scope_of(method=method, certificate="right")) == ANN
    assert await identified(scope_of(method=method), cookie="a=b; __Host-skep=right", **own) == ANN
    assert await identified(scope_of(method=method, local_admin=True)) == LOCAL_ADMIN
    assert await identified(scope_of(method=method)) is None


@pytest.mark.parametrize("authorization", ["Bearer wrong", "Basic !", "Basic YW5uOndyb25n", "Digest x", "Bearer"])
async def test_bad_credentials_are_refused_and_no_others_looked_at(authorization: str) -> None:
    with pytest.raises(Unauthenticated):
        await identified(scope_of(certificate="right"), authorization=authorization)


@pytest.mark.parametrize("method", ["POST", None])
@pytest.mark.parametrize(
    "page", [{"origin": FOREIGN}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}]
)
async def test_what_a_browser_sends_by_itself_changes_nothing_for_a_foreign_page(
    method: str | None, page: dict[str, str]
) -> None:
    for scope, fields in (
        (scope_of(method=method), {"authorization": BASIC}),
        (scope_of(method=method, certificate="right"), {}),
        (scope_of(method=method), {"cookie": "__Host-skep=right"}),
    ):
        with pytest.raises(Forbidden):
            await identified(scope, **fields, **page)
    assert await identified(scope_of(method=method), authorization="Bearer right", **page) == ANN


async def test_a_cookie_needs_an_origin_where_something_is_changed_or_a_socket_opened() -> None:
    assert await identified(scope_of(method="GET"), cookie="__Host-skep=right") == ANN
    for method in ("POST", None):
        with pytest.raises(Forbidden):
            await identified(scope_of(method=method), cookie="__Host-skep=right")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("skep=1", "1"),
        ('a=b; skep="1"', "1"),
        ("a=b, skep=1", "1"),
        ("xskep=1", None),
        ("a=skep=1", None),
        ("skep", None),
    ],
)
def test_one_cookie_is_found_among_others(header: str, found: str | None) -> None:
    assert cookie(Fields([(b"cookie", header.encode())]), "skep") == found


@pytest.mark.parametrize(
    ("fields", "local"),
    [
        ([(b"host", b"localhost:8080")], True),
        ([(b"host", b"[::1]")], True),
        ([(b"host", b"evil.example")], False),
        ([(b"host", b"localhost"), (b"x-forwarded-host", b"a")], False),
        ([(b"host", b"localhost"), (b"forwarded", b"for=a")], False),
        ([], False),
    ],
)
def test_only_programs_of_this_machine_count_as_local(fields: list[tuple[bytes, bytes]], local: bool) -> None:
    here = {"server": ("127.0.0.1", 1), "client": ("127.0.0.1", 2), "state": {"loopback": True}}

    assert is_loopback_only(here, Fields(fields)) is local
    assert not is_loopback_only({**here, "state": {"loopback": False}}, Fields(fields))
    assert not is_loopback_only({**here, "client": ("192.0.2.1", 2)}, Fields(fields))


UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
)
DOORS = [
    ("/mqtt?token={0}", "mqtt"),
    ("/wot/ws?access_token={0}", "webthingprotocol"),
    ("/ws?%74oken={0}", "x"),
    ("/stub/connect?runtimeURL=hyperty-runtime%3A%2F%2Flocalhost%2Fa&Token={0}", "x"),
    ("/node/mn:%2Fsession?token={0}", None),
    ("/things?token={0}", None),
    ("/stream?access_token={0}", None),
]


async def test_a_token_in_an_address_is_refused_alike_by_everything_that_is_served(tmp_path: Path) -> None:
    async with skep(tmp_path / "home") as runtime:
        ann = await runtime.add("ann")
        host = runtime.http.removeprefix("http://")
        answers: dict[str, str] = {}
        for path, protocol in DOORS:
            target = path.format(ann.token)
            plain = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {ann.token}\r\n\r\n"
            request = plain if protocol is None else UPGRADE.format(path=target, host=host, protocol=protocol)
            name, _, port = host.rpartition(":")
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection(name, int(port))
                writer.write(request.encode())
                answers[path] = (await reader.readline()).decode().split(" ")[1]
                writer.close()

    assert answers == {path: "401" for path, _ in DOORS}
