"""Doors that must stay shut: other accounts' runtimes and addresses, guests from elsewhere, foreign domains."""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from bindings.messaging_node.node import MessagingNode
from bindings.messaging_node.routes import _lineage
from bindings.messaging_node.stubs import Stubs
from bindings.messaging_node.websocket import is_local
from bindings.web.upgraded import WebSocketConnection
from skep import Consumer
from tests.bindings.messaging_node.support import ALLOCATION, NODE, REGISTRY, SM, client, connected, stub
from tests.support import Skep, skep
from things.errors import NoStub

pytestmark = pytest.mark.anyio


async def test_runtime_of_one_account_is_not_opened_or_spoken_for_by_another(closed_house: Skep) -> None:
    ann, eve = await closed_house.add("ann"), await closed_house.add("eve")
    runtime = "hyperty-runtime://localhost/anns"
    async with connected(closed_house, runtime, ann.token) as a, connected(closed_house, runtime, eve.token) as e:
        assert (await a.open())["body"]["code"] == 200
        assert (await e.open())["body"]["code"] == 409
        for mine in ("hyperty-runtime://localhost/eves", "hyperty-runtime://localhost", "comm://localhost"):
            async with connected(closed_house, mine, eve.token) as eves:
                assert (await eves.open())["body"]["code"] == 200
                for sender in (runtime, f"{runtime}/sm", f"{runtime}/registry/allocation", f"{runtime}/{'x' * 32}"):
                    assert await eves.code("ping", "x", **{"from": sender}) == 403
                assert await eves.code("create", ALLOCATION, {"value": {"allocated": [f"{runtime}/x"]}}) == 409
                assert await eves.code("subscribe", SM, {"resources": [f"{runtime}/sm"]}) == 403
        async with connected(closed_house, runtime, ann.token) as again:
            assert (await again.open())["body"]["code"] == 200


@pytest.mark.parametrize("runtime", [NODE, REGISTRY, "mn:/session", "thing://localhost/works", "global://registry"])
@pytest.mark.parametrize("compatible", [False, True])
async def test_no_runtime_lives_at_the_node_s_own_addresses(tmp_path: Path, runtime: str, compatible: bool) -> None:
    settings = {"open": True, "compatible": compatible}
    async with skep(tmp_path, messaging_node=settings) as house, connected(house, runtime) as posing:
        assert (await posing.open())["body"]["code"] == 403
        async with client(house) as guest:
            assert await guest.code("ping", f"{guest.runtime}/sm", **{"from": f"{runtime}/x"}) == 403


async def test_whoever_heard_an_address_before_it_was_held_hears_it_no_more(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "e") as e:
        (mine,) = await a.allocate("comm")
        assert await e.code("subscribe", SM, {"resources": [f"{mine}/diary"]}) == 200
        assert await a.code("create", ALLOCATION, {"value": {"allocated": [f"{mine}/diary"]}}) == 200

        await a.send("ping", f"{mine}/diary")

        assert (await a.next())["to"] == f"{mine}/diary"
        assert await e.nothing()


async def test_forged_response_reaches_nobody_and_ends_no_wait(closed_house: Skep) -> None:
    ann, bob, eve = [await closed_house.add(name) for name in ("ann", "bob", "eve")]
    async with (
        client(closed_house, "a", ann.token) as a,
        client(closed_house, "b", bob.token) as b,
        client(closed_house, "e", eve.token) as e,
    ):
        (address,) = await b.allocate()
        number = await a.send("read", address)
        asked = await b.next()
        await e.send("response", asked["from"], {"code": 200, "value": "forged"}, id=number, **{"from": address})
        assert await e.nothing()
        await b.send("response", asked["from"], {"code": 200, "value": "true"}, id=number, **{"from": address})

        assert (await a.next())["body"]["value"] == "true"
        assert await a.nothing()


async def test_session_s_own_address_is_seen_by_nobody_else(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        (address,) = await b.allocate()
        number = await a.send("read", address, **{"from": a.session})
        asked = await b.next()
        assert asked["from"] == a.runtime
        await b.send("response", asked["from"], {"code": 200}, id=number, **{"from": address})

        assert (await a.next())["to"] == a.session
        await b.send("ping", a.session)
        assert (await a.next())["type"] == "ping"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("hyper-1", []),
        ("o/changes", ["o"]),
        ("runtime:/alice", []),
        ("runtime:/alice/sm/x", ["runtime:/alice/sm", "runtime:/alice"]),
        ("comm://localhost", []),
        ("comm://localhost/o", []),
        ("comm://localhost/o/children/chat", ["comm://localhost/o/children", "comm://localhost/o"]),
        ("/odd", []),
    ],
)
def test_address_lies_below_whatever_is_above_it_short_of_the_domain(address: str, found: list[str]) -> None:
    assert list(_lineage(address)) == [address, *found]


LOCAL: Mapping[str, Any] = {
    "state": {"loopback": True},
    "server": ("127.0.0.1", 80),
    "client": ("127.0.0.1", 4),
    "headers": [(b"host", b"localhost:8080")],
}


def with_headers(*headers: tuple[bytes, bytes], host: bytes = b"localhost") -> dict[str, Any]:
    return {"headers": [(b"host", host), *headers]}


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({}, True),
        (with_headers(host=b"127.0.0.1"), True),
        (with_headers(host=b"[::1]:443"), True),
        ({"state": {}}, False),
        ({"state": {"loopback": False}}, False),
        ({"client": ("192.0.2.1", 4)}, False),
        ({"server": ("192.0.2.1", 80)}, False),
        ({"client": None}, False),
        ({"headers": []}, False),
        (with_headers(host=b"gateway.example"), False),
        (with_headers(host=b"127.0.0.1.evil.example"), False),
        (with_headers((b"x-forwarded-for", b"x")), False),
        (with_headers((b"x-forwarded-proto", b"https")), False),
        (with_headers((b"forwarded", b"for=x")), False),
        (with_headers((b"via", b"1.1 proxy")), False),
        (with_headers((b"x-real-ip", b"x")), False),
    ],
)
def test_guest_is_local_by_listener_by_both_ends_and_by_name(differs: dict[str, Any], expected: bool) -> None:
    assert is_local({**LOCAL, **differs}) is expected


async def test_listener_for_every_interface_admits_no_guests(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "messaging_node": {"open": True},
        "http": {"http": "0.0.0.0:0"},
        "security": {"insecure": True},
    }
    async with skep(tmp_path, **sections) as house:
        ann = await house.add("ann")
        async with connected(house) as one:
            assert (await one.open())["body"]["code"] == 401
        async with connected(house, token=ann.token) as one:
            assert (await one.open())["body"]["code"] == 200


async def test_foreign_domain_is_refused_by_a_code_of_its_own(house: Skep) -> None:
    async with client(house) as one:
        for address in ("comm://elsewhere.example/o", "domain://registry.elsewhere.example", "thing://other/a/b"):
            body = (await one.ask("read", address))["body"]
            assert (body["code"], body["error"]) == (404, "no-stub")
        for address in ("comm://localhost/o", "hyper-1", "user://other.example/ann", "domain://nothing.localhost"):
            body = (await one.ask("read", address))["body"]
            assert (body["code"], body["error"]) == (404, "not-found")


def test_stubs_are_found_by_domain() -> None:
    found = Foreign()
    stubs = Stubs("localhost", {"other.example": found})

    assert stubs.resolve("comm://other.example/o") is found
    assert stubs.resolve("domain://registry.other.example") is found
    assert stubs.resolve("comm://localhost/o") is None
    with pytest.raises(NoStub):
        stubs.resolve("comm://third.example/o")


class Quality:
    """A connector of somebody else's."""

    addresses = ("domain://qos.localhost",)

    async def answer(self, envelope: Any, caller: Any) -> dict[str, Any]:
        return {"code": 200, "value": caller.principal.account}


class Foreign:
    """A stub that keeps what it was given."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def deliver(self, envelope: Any, caller: Any) -> None:
        self.taken.append(envelope.to)


async def test_connectors_and_stubs_of_others_are_used_and_listed_like_the_node_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = Foreign()
    given = partial(MessagingNode, connectors=[Quality()], stubs={"other.example": foreign})
    monkeypatch.setattr("gateway.assembly.MessagingNode", given)
    async with skep(tmp_path) as house:
        mia = await house.add("mia", role="manager")
        async with client(house, token=mia.token) as one, Consumer(house.http, token=mia.token) as consumer:
            assert (await one.ask("read", "domain://qos.localhost"))["body"]["value"] == "mia"
            await one.send("read", "comm://other.example/o")
            assert (await one.ask("read", "comm://third.example/o"))["body"]["error"] == "no-stub"
            found: Any = await consumer.call("dtw:skep:node", "routes")

    assert foreign.taken == ["comm://other.example/o"]
    assert {"address": "domain://qos.localhost", "kind": "Quality"} in found["connectors"]
    assert found["stubs"] == [{"domain": "other.example", "kind": "Foreign"}]


async def test_stub_connections_of_another_account_do_not_take_over(closed_house: Skep) -> None:
    ann, eve = await closed_house.add("ann"), await closed_house.add("eve")
    async with stub(closed_house, "runtime:/alice", ann.token) as one:
        (address,) = await one.allocate()
        one.socket.transport.abort()
    with pytest.raises(Exception, match="409"):
        async with stub(closed_house, "runtime:/alice", eve.token):
            pass
    async with stub(closed_house, "runtime:/alice", ann.token) as one, client(closed_house, "e", eve.token) as other:
        await other.send("ping", address)
        assert (await one.next())["to"] == address


async def test_strangers_cause_no_traceback_and_one_sampled_line(
    closed_house: Skep, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="bindings.web.upgraded")
    url = closed_house.http.replace("http", "ws", 1)
    for _ in range(3):
        async with connect(f"{url}/ws") as socket:
            await socket.send(b"\xff\xfe", text=True)
            await socket.wait_closed()
            assert socket.close_code == 1007
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{url}/stub/connect?runtimeURL=rt%3A%2F%2Fx")
        assert refused.value.response.status_code == 401

    lines = [record for record in caplog.records if record.name == "bindings.web.upgraded"]
    assert sorted((record.getMessage(), record.levelname) for record in lines) == [
        ("frame refused", "DEBUG"),
        ("upgrade refused", "DEBUG"),
    ]
    assert not [record for record in caplog.records if record.levelno > logging.INFO or record.exc_info]


@pytest.mark.parametrize("path", ["/ws/anything", "/ws/ws", "/stub/connect/x"])
async def test_paths_that_nobody_serves_are_not_upgraded(house: Skep, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{house.http.replace('http', 'ws', 1)}{path}")
    assert refused.value.response.status_code == 404
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{house.http}{path}")).status_code == 404


async def test_sender_that_is_read_slowly_is_not_taken_for_dead() -> None:
    connection = WebSocketConnection.__new__(WebSocketConnection)
    scheduled: list[str] = []
    loop = asyncio.get_running_loop()
    for name, value in {
        "read_paused": True,
        "writable": asyncio.Event(),
        "transport": asyncio.Transport(),
        "pong_timer": None,
        "pending_ping_payload": b"x",
        "loop": loop,
    }.items():
        setattr(connection, name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WebSocketConnection, "schedule_ping", lambda _self: scheduled.append("ping"))
        patch.setattr(WebSocketsSansIOProtocol, "keepalive_timeout", lambda _self: scheduled.append("dead"))
        patch.setattr(asyncio.Transport, "is_closing", lambda _self: False)
        connection.writable.set()
        connection.keepalive_timeout()
        connection.writable.clear()
        connection.keepalive_timeout()
        connection.writable.set()
        connection.read_paused = False
        connection.keepalive_timeout()
    assert scheduled == ["ping", "dead", "dead"]
