"""Clients that read slowly or not at all: they slow whoever sends to them, and end nobody's session."""

import json
from pathlib import Path

import anyio
import pytest

from bindings.messaging_node.outbox import OWN, Item, NodeOutbox
from bindings.messaging_node.settings import NodeSettings
from tests.bindings.messaging_node.support import SM, Client, client, connected
from tests.support import skep

pytestmark = pytest.mark.anyio

SMALL = {"max_outbox": 200, "max_outbox_bytes": 262_144}


def item(text: str, cause: str = "bob", *, is_news: bool = False) -> Item[None]:
    return Item(text.encode(), None, cause, is_news=is_news)


def left(outbox: NodeOutbox[None]) -> list[str]:
    found = []
    while (one := outbox.take()) is not None:
        found.append(one.text.decode())
    return found


def test_sender_has_a_share_and_others_theirs_up_to_what_all_share() -> None:
    outbox = NodeOutbox[None](NodeSettings(max_outbox=8, max_outbox_bytes=800))
    for number in range(2):
        assert outbox.has_room("bob", 1)
        outbox.put(item(str(number)))
    assert not outbox.has_room("bob", 1)
    assert outbox.has_room("carol", 100_000) is False
    assert outbox.has_room("carol", 700)
    outbox.put(item("x" * 200, "carol"))
    assert not outbox.has_room("carol", 1)
    for name in ("dora", "emil", "fred"):
        assert outbox.has_room(name, 200) is (name != "fred")
        outbox.put(item("x" * 199, name))
        outbox.put(item("y", name))
    # Nobody else has room any more, and the client's own answers have.
    assert not outbox.has_room("gina", 1)
    assert not outbox.is_own_full
    assert left(outbox)[:2] == ["0", "1"]
    assert outbox.has_room("bob", 1)


def test_oldest_news_of_the_same_teller_go_and_nothing_else() -> None:
    outbox = NodeOutbox[None](NodeSettings(max_outbox=40, max_outbox_bytes=80_000))
    outbox.put(item("own", OWN))
    outbox.put(item("request"))
    for number in range(1_000):
        outbox.put_news(item(str(number), is_news=True))
        outbox.put_news(item("c", "carol", is_news=True)) if number == 0 else None
        assert len(outbox) <= 12
    assert (outbox.dropped, len(outbox._items) < 200) == (991, True)
    assert left(outbox) == ["own", "request", "c", *(str(number) for number in range(991, 1_000))]


def test_what_was_not_written_is_the_next_and_counts_again() -> None:
    outbox = NodeOutbox[None](NodeSettings(max_outbox=8, max_outbox_bytes=800))
    for text in ("a", "b"):
        outbox.put_news(item(text, is_news=True))
    first = outbox.take()
    assert first is not None
    outbox.put_back(first)
    outbox.put_news(item("c", is_news=True))
    assert left(outbox) == ["b", "c"]


async def flood(one: Client, to: str, number: int, size: int) -> list[int]:
    """Send pings, and the codes of those that were answered before the question that follows them."""
    for _ in range(number):
        await one.send("ping", to, {"p": "z" * size})
    await one.ask("read", "nobody://at/all")
    refused = [message["body"]["code"] for message in one.aside]
    one.aside.clear()
    return refused


async def test_flood_ends_nobody_s_session_and_is_refused_to_its_sender(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=SMALL) as house:
        alice, bob, carol = [await house.add(name) for name in ("alice", "bob", "carol")]
        async with (
            client(house, "a", alice.token) as a,
            client(house, "b", bob.token) as b,
            client(house, "c", carol.token) as c,
        ):
            (held,) = await a.allocate()
            a.socket.transport.pause_reading()

            with anyio.fail_after(30):
                codes = await flood(b, held, 150, 100_000)
            assert set(codes) == {429}
            # Another account has its own share.
            await c.send("ping", held, {"from": "carol"})

            a.socket.transport.resume_reading()
            while (await a.next())["body"].get("from") != "carol":
                pass
            await b.send("ping", held, {"from": "bob"})
            assert (await a.next())["body"] == {"from": "bob"}


async def test_flood_does_not_end_the_session_of_who_is_away(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=SMALL) as house:
        alice, bob = await house.add("alice"), await house.add("bob")
        async with client(house, "a", alice.token) as a, client(house, "b", bob.token) as b:
            (held,) = await a.allocate()
            assert await a.code("subscribe", SM, {"resources": ["comm://localhost/o/changes"]}) == 200
            await a.socket.close()
            await b.ask("read", "nobody://at/all")
            codes = await flood(b, held, 30, 10_000)
            assert 0 < len(codes) < 30
            assert set(codes) == {429}
            async with connected(house, a.runtime, alice.token) as back:
                assert (await back.reopen(a.session))["body"]["code"] == 200
                for _ in range(30 - len(codes)):
                    await back.next()
                await b.send("ping", held, {"n": 1})
                assert (await back.next())["body"] == {"n": 1}


async def test_slow_receiver_slows_its_sender_and_loses_nothing(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=SMALL) as house:
        alice, bob = await house.add("alice"), await house.add("bob")
        async with client(house, "a", alice.token) as a, client(house, "b", bob.token) as b:
            (held,) = await a.allocate()
            number = 1_000

            async def send() -> None:
                for n in range(number):
                    await b.send("ping", held, {"n": n, "p": "z" * 10_000})

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                for n in range(number):
                    assert (await a.next())["body"]["n"] == n
            assert await b.nothing()


async def test_observer_that_does_not_read_holds_up_no_other_and_hears_the_newest(tmp_path: Path) -> None:
    changes = "comm://localhost/o/changes"
    async with (
        skep(tmp_path, messaging_node={"open": True, **SMALL}) as house,
        client(house, "lazy") as lazy,
        client(house, "busy") as busy,
        client(house, "keen") as keen,
    ):
        for one in (lazy, keen):
            await one.ask("subscribe", SM, {"resources": [changes]})
        lazy.socket.transport.pause_reading()

        with anyio.fail_after(30):
            for number in range(200):
                body = {"n": number, "text": "x" * 50_000}
                await busy.send("update", changes, body, **{"from": "comm://localhost/o"})
                assert (await keen.next())["body"]["n"] == number

        assert len(house.running.runtime.sessions.everyone()) == 3
        lazy.socket.transport.resume_reading()
        heard = [-1]
        while heard[-1] != 199:
            heard.append((await lazy.next())["body"]["n"])
        assert heard == sorted(heard)
        assert len(heard) < 200


async def test_client_that_does_not_read_its_answers_is_not_read_and_loses_none(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node=SMALL) as house:
        alice, bob = await house.add("alice"), await house.add("bob")
        async with client(house, "a", alice.token) as a, client(house, "b", bob.token) as b:
            value = {"url": "hyperty://localhost/x", "pad": "z" * 60_000}
            assert await b.code("create", "domain://registry.localhost", {"value": value}) == 200
            a.socket.transport.pause_reading()
            number = 200
            question = {"type": "read", "from": a.runtime, "to": "domain://registry.localhost"}
            for n in range(number):
                body = {"resource": "hyperty://localhost/x"}
                await a.socket.send(json.dumps({"id": 1_000 + n, **question, "body": body}))
            assert await b.code("read", "domain://registry.localhost", {"resource": "hyperty://localhost/x"}) == 200

            a.socket.transport.resume_reading()
            for n in range(number):
                answer = await a.next()
                assert (answer["id"], answer["body"]["code"]) == (1_000 + n, 200)
