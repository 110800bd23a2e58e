"""Bad input over real sockets: the right answer, nobody else disturbed, nothing left behind."""

import asyncio
import itertools
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bindings.mqtt.engines.native.connection import Connection
from bindings.mqtt.engines.native.incoming import MAX_UNRELEASED
from bindings.mqtt.engines.native.reading import UNREAD
from bindings.mqtt.engines.native.writing import FLUSH_BYTES, MAX_UNREAD_BYTES
from bindings.mqtt.engines.seam import Limits, Publish
from tests.bindings.mqtt.engines.native.peer import (
    Client,
    Served,
    ack,
    connect,
    packet,
    props,
    publish,
    serving,
    subscribe,
    text,
    unsubscribe,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ in what they allow when."""
    return "asyncio", {"use_uvloop": request.param}


BEFORE_CONNECT = {
    "a publish": (publish("t"), b""),
    "a subscribe": (subscribe("t"), b""),
    "a ping": (b"\xc0\0", b""),
    "type 0": (b"\0\0", b""),
    "a reserved flag": (b"\x11" + connect()[1:], b""),
    "the wrong protocol name": (packet(0x10, text("HTTP") + b"\5\2\0\0\0" + text("c")), b""),
    "MQTT 3.1": (packet(0x10, text("MQIsdp") + b"\3\2\0\0" + text("c")), b"\x20\2\0\1"),
    "MQTT 6": (packet(0x10, text("MQTT") + b"\6\2\0\0\0" + text("c")), b"\x20\3\0\x84\0"),
    "MQTT 3": (packet(0x10, text("MQTT") + b"\3\2\0\0" + text("c")), b"\x20\2\0\1"),
    "a malformed CONNECT of 5": (connect(level=5, properties=props(b"\x7f\0")), b"\x20\3\0\x81\0"),
    "a protocol error in CONNECT of 5": (connect(level=5, properties=props(b"\x21\0\0")), b"\x20\3\0\x82\0"),
    "a malformed CONNECT of 3.1.1": (connect(user=None), b""),
    "no client id for a kept session of 3.1.1": (connect("", clean=False), b"\x20\2\0\2"),
    "a length of five bytes": (b"\x10\xff\xff\xff\xff\x7f", b""),
    "a packet over the limit": (b"\x10\xff\xff\xff\x7f", b""),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00", b""),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    "one byte of no CONNECT": (b"\x30", b""),
    "CONNECT with a flag and without end": (b"\x11\x7f", b""),
}


@pytest.mark.parametrize(("data", "answer"), BEFORE_CONNECT.values(), ids=BEFORE_CONNECT)
async def test_a_stranger_that_does_not_connect_properly_is_closed(data: bytes, answer: bytes) -> None:
    # At once, and not because the time for CONNECT is over.
    async with serving(Limits(connect_timeout_s=3_600)) as served:
        async with served.client() as client:
            client.send(data)

            assert await client.closed() == answer

        await served.all_gone()
        assert served.gate.hellos == []
        assert sum(served.engine.counts.values()) >= 1


AFTER_CONNECT = {
    "a second CONNECT": (connect(level=5), connect(), 0x82),
    "QoS 3": (packet(0x36, text("t") + b"\0\1\0"), packet(0x36, text("t") + b"\0\1"), 0x81),
    "packet id 0": (publish("t", b"", 1, 0, level=5), publish("t", b"", 1, 0), 0x82),
    "a wildcard in a publish": (publish("a/#", level=5), publish("a/#"), 0x90),
    "U+0000": (publish("a\0", level=5), publish("a\0"), 0x81),
    "bad UTF-8": (publish(b"\xff", level=5), publish(b"\xff"), 0x81),
    "no filters": (subscribe(level=5), subscribe(), 0x82),
    "an empty filter": (subscribe("", level=5), subscribe(""), 0x81),
    "reserved SUBSCRIBE flags": (b"\x80" + subscribe("t", level=5)[1:], b"\x80" + subscribe("t")[1:], 0x81),
    "a packet over the limit": (b"\x30\x80\x80\x04", b"\x30\x80\x80\x04", 0x95),
    "a remaining length of five bytes": (b"\x30\xff\xff\xff\xff\x01", b"\x30\xff\xff\xff\xff\x01", 0x81),
    "a server's packet": (b"\xd0\0", b"\xd0\0", 0x82),
    "SUBACK": (b"\x90\3\0\1\0", b"\x90\3\0\1\0", 0x82),
    "type 0": (b"\0\0", b"\0\0", 0x81),
    "a property twice": (publish("t", level=5, properties=props(b"\1\0", b"\1\0")), b"\xf0\0", None),
    "AUTH without a method": (packet(0xF0, b"\x19" + props(b"\x15" + text("token"))), b"\xf0\0", None),
}


@pytest.mark.parametrize(("five", "three", "code"), AFTER_CONNECT.values(), ids=AFTER_CONNECT)
async def test_a_client_that_breaks_the_rules_is_told_why_and_others_are_not_disturbed(
    five: bytes, three: bytes, code: int | None
) -> None:
    async with serving(Limits(max_packet_bytes=65_536)) as served, served.client() as canary:
        await canary.connect("canary")
        async with served.client() as client:
            await client.connect("five", level=5)
            client.send(five)
            rest = await client.closed()
            assert rest[0] == 0xE0
            assert rest[2] == (code or 0x82)
        async with served.client() as client:
            await client.connect("three")
            client.send(three)
            assert await client.closed() == b""

        await canary.ping()
        assert "closed alice/five protocol" in served.gate.events
        assert "closed alice/three protocol" in served.gate.events
        assert served.gate.messages == []


async def test_a_topic_or_filter_over_the_bounds_is_refused_and_the_link_stays() -> None:
    limits = Limits(max_topic_bytes=20, max_topic_levels=3, max_subscriptions=1)
    async with serving(limits) as served, served.client() as five, served.client() as three:
        await five.connect("five", level=5)
        await three.connect("three")

        five.send(publish("x" * 20, b"", 1, 1, level=5), publish("x" * 21, b"", 1, 2, level=5))
        five.send(publish("a/b/c", b"", 1, 3, level=5), publish("a/b/c/d", b"", 1, 4, level=5))
        codes = [(await five.expect(0x40))[2:3] for _ in range(4)]
        three.send(publish("x" * 21, b"", 1, 2))
        await three.expect(0x40, b"\0\2")
        five.send(subscribe("one", "two", "y" * 21, level=5))
        three.send(subscribe("one", "two", "y" * 21))

        assert codes == [b"", b"\x90", b"", b"\x90"]
        await five.expect(0x90, b"\0\1\0\0\x97\x8f")
        await three.expect(0x90, b"\0\1\0\x80\x80")
        assert [each.topic for each in served.gate.messages] == ["x" * 20, "a/b/c"]


async def test_acknowledgements_of_nothing_are_answered_as_the_protocol_says() -> None:
    async with serving() as served, served.client() as five, served.client() as three:
        await five.connect("five", level=5)
        await three.connect("three")

        five.send(ack(0x40, 9), ack(0x70, 9), ack(0x50, 9), ack(0x62, 9))
        three.send(ack(0x40, 9), ack(0x70, 9), ack(0x50, 9), ack(0x62, 9))

        await five.expect(0x62, b"\0\x09\x92")
        await five.expect(0x70, b"\0\x09\x92")
        await three.expect(0x62, b"\0\x09")
        await three.expect(0x70, b"\0\x09")


async def test_a_gate_that_breaks_costs_its_caller_the_link_and_nobody_else() -> None:
    async with serving() as served, served.client() as canary, served.client() as client:
        await canary.connect("canary")
        await client.connect("client")

        def broken(*_: object) -> None:
            raise RuntimeError("broken")

        served.gate.answer = broken  # type: ignore[assignment]
        client.send(publish("t", b"", 1))

        assert await client.closed() == b""
        await canary.ping()


async def test_a_gate_that_breaks_at_the_end_of_a_link_does_not_end_the_engine() -> None:
    async with serving() as served, served.client() as canary:
        await canary.connect("canary")

        def broken(*_: object) -> None:
            raise RuntimeError("broken")

        served.gate.closed = broken  # type: ignore[method-assign,assignment]
        async with served.client() as client:
            await client.connect("client", keep_alive=1)
            assert await client.closed() == b""

        await canary.ping()
        assert len(served.engine.sessions) == 1


@asynccontextmanager
async def deaf(served: Served) -> AsyncIterator[Client]:
    """A raw connection for which the kernel holds next to nothing while it does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1_024)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()


def with_small_buffers(served: Served) -> Connection:
    """The connection of `deaf`. What the kernels hold is the same for both directions, and not what is looked at."""
    link = next(each for each in served.engine.sessions if each.key[1] == "deaf").link
    assert isinstance(link, Connection)
    with socket.socket(fileno=os.dup(link._output.transport.get_extra_info("socket").fileno())) as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    return link


@pytest.mark.parametrize(
    ("level", "asked"),
    [(4, b"\xc0\0"), (4, ack(0x62, 9)), (5, unsubscribe("nothing", level=5)), (5, publish("t", b"", 1, 7, level=5))],
    ids=["PINGREQ", "PUBREL", "UNSUBSCRIBE", "PUBLISH"],
)
async def test_a_client_that_asks_and_never_listens_is_not_read_until_it_does(level: int, asked: bytes) -> None:
    async with serving() as served, served.client() as canary, deaf(served) as client:
        served.gate.echo = False
        await canary.connect("canary")
        await client.connect("deaf", level=level)
        link = with_small_buffers(served)
        count = 0
        with anyio.fail_after(60):
            while not link._reading.held & UNREAD:
                if count < 2_000_000 and not client.writer.transport.get_write_buffer_size():
                    client.send(asked * 5_000)
                    count += 5_000
                await canary.ping()

        assert link._output.transport.get_write_buffer_size() < MAX_UNREAD_BYTES + 2 * FLUSH_BYTES
        client.send(b"\xe0\0")
        answers = await client.closed()
        assert len(answers) >= 2 * count
        assert "closed alice/deaf disconnect" in served.gate.events


async def test_a_client_that_reads_nothing_is_silent_however_much_it_says() -> None:
    async with serving() as served, deaf(served) as client:
        await client.connect("deaf", keep_alive=1)
        with_small_buffers(served)
        client.send(b"\xc0\0" * 2_000_000)

        await served.gate.until(lambda: "closed alice/deaf keep-alive" in served.gate.events)


async def test_user_properties_are_counted_before_and_behind_the_door() -> None:
    many = packet(0, b"\x26\0\1a\0\1b" * 257)[1:]
    async with serving() as served, served.client() as stranger, served.client() as client:
        stranger.send(connect(level=5, properties=many))
        assert await stranger.closed() == b"\x20\3\0\x97\0"

        await client.connect(level=5, properties=packet(0, b"\x26\0\1a\0\1b" * 256)[1:])
        client.send(publish("t", level=5, properties=many))
        assert (await client.closed())[2] == 0x97
        assert served.gate.messages == []


async def test_ids_of_qos_2_without_pubrel_are_bounded_in_3_1_1_too() -> None:
    async with serving() as served, served.client() as client:
        await client.connect()
        client.send(*(publish("t", b"", 2, number) for number in range(1, MAX_UNRELEASED + 2)))

        assert len(await client.closed()) == 4 * MAX_UNRELEASED
        assert len(served.gate.messages) == MAX_UNRELEASED


async def test_latest_values_that_were_not_sent_do_not_add_up() -> None:
    async with serving(Limits(max_inflight=1)) as served, served.client() as client:
        served.gate.latest = [Publish(topic="t", payload=b"%d" % number, qos=1) for number in range(3)]
        await client.connect()
        client.send(*(subscribe(*["t", "#"][: 1 + number % 2], qos=1) for number in range(50)), unsubscribe("#"))

        got = list[bytes]()
        while (packet := await client.read())[0] != 0xD0:
            first, body = packet
            if first >> 4 == 3:
                got.append(body[5:])
                client.send(ack(0x40, int.from_bytes(body[3:5], "big")))
                if body[5:] == b"2":
                    client.send(b"\xc0\0")

        assert got[-3:] == [b"0", b"1", b"2"]
        assert len(got) <= 4


PACKETS = [
    connect("fuzz"),
    connect("fuzz", level=5, will=("w", b"", 1), properties=props(b"\x11\0\0\0\1"), keep_alive=10),
    publish("t", b"x", 1, level=5),
    publish("t", b"x", 2),
    publish("t", bytes(500), level=5, properties=props(b"\x23\0\1", b"\x26" + text("a") + text("b"))),
    subscribe("a", "b/#", "$share/g/c", qos=1, level=5),
    subscribe("#", qos=2),
    unsubscribe("a"),
    ack(0x40, 1),
    ack(0x62, 1),
    b"\xc0\0",
    b"\xe0\0",
]


async def attack(served: Served, stream: bytes, cuts: list[int]) -> None:
    """Send a stream in pieces and leave."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    try:
        for start, end in itertools.pairwise(edges):
            writer.write(stream[start:end])
            await writer.drain()
        writer.write_eof()
        with anyio.fail_after(30):
            await reader.read(-1)
    except ConnectionError:
        pass
    writer.close()


def balanced(events: list[str]) -> bool:
    """Links open and close in turn."""
    return sum(each.startswith("opened") for each in events) == sum(each.startswith("closed") for each in events)


async def test_mutated_streams_leave_nothing_and_disturb_nobody() -> None:
    chance = random.Random(7)
    async with serving() as served, served.client() as raw:
        canary: Client = raw
        await canary.connect("canary", user="bob")
        for _ in range(300):
            stream = bytearray(b"".join([chance.choice(PACKETS[:2]), *chance.choices(PACKETS, k=5)]))
            for _ in range(chance.randrange(4)):
                stream[chance.randrange(len(stream))] = chance.randrange(256)
            await attack(served, bytes(stream), [chance.randrange(1_000) for _ in range(chance.randrange(6))])

        await canary.ping()
        with anyio.fail_after(30):
            while len(served.engine.connections) > 1:  # noqa: ASYNC110, nothing announces the end of a socket
                await asyncio.sleep(0)
        assert not balanced(served.gate.events)
        canary.send(b"\xe0\0")
        await canary.closed()
        await served.gate.until(lambda: balanced(served.gate.events))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from(PACKETS), max_size=6),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 255)), max_size=3),
    st.lists(st.integers(0, 5_000), max_size=5),
)
def test_any_mutation_cut_anywhere_ends_balanced(
    chosen: list[bytes], changes: list[tuple[int, int]], cuts: list[int]
) -> None:
    stream = bytearray(b"".join([PACKETS[0], *chosen]))
    for at, value in changes:
        stream[at % len(stream)] = value

    async def scenario() -> None:
        async with serving() as served:
            await attack(served, bytes(stream), cuts)
            await served.all_gone()
            await served.gate.until(lambda: balanced(served.gate.events))

    anyio.run(scenario)
