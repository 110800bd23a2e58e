"""What MQTT 5 adds, over real sockets."""

import asyncio
import time

import pytest

from bindings.mqtt.engines.seam import ACCEPTED, Limits, Outcome, Publish, SubscribeOptions
from tests.bindings.mqtt.engines.native.peer import (
    RecordingGate,
    ack,
    connect,
    packet,
    props,
    publish,
    serving,
    subscribe,
    text,
)

pytestmark = pytest.mark.anyio

WEEK = b"\x11\x00\x09\x3a\x80"
"""Session expiry of a week, as a property."""


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ in what they allow when."""
    return "asyncio", {"use_uvloop": request.param}


async def test_connack_says_what_the_server_keeps_to() -> None:
    limits = Limits(max_unacknowledged=20, max_packet_bytes=4_096, default_keep_alive_s=30)
    async with serving(limits) as served, served.client() as client:
        body = await client.connect("", level=5, keep_alive=0)

        assert b"\x21\0\x14" in body
        assert b"\x27\0\0\x10\0" in body
        assert b"\x13\0\x1e" in body
        assert b"\x22\0\x20" in body
        assert b"\x12" in body
        assert served.gate.links[0].client_id.encode() in body


@pytest.mark.parametrize(("asked", "told"), [(b"\x19\x01", True), (b"\x19\x00", False), (b"", False)])
async def test_a_client_is_told_where_its_answers_may_go_if_it_asks(asked: bytes, told: bool) -> None:
    async with serving() as served, served.client() as client:
        body = await client.connect(level=5, properties=props(asked))

        assert (b"\x1a" + text("inbox/alice/") in body) is told
        assert (b"\x1a" in body) is told


async def test_properties_of_a_publish_reach_the_gate_and_a_subscriber() -> None:
    sent = Publish(
        topic="t",
        payload=b"21",
        expiry_s=60,
        response_topic="inbox/me",
        correlation=b"\1\2",
        content_type="application/json",
        payload_is_text=True,
        user_properties=[("a", "1"), ("a", "2")],
    )
    properties = props(
        b"\x01\x01",
        b"\x02\0\0\0\x3c",
        b"\x03" + text("application/json"),
        b"\x08" + text("inbox/me"),
        b"\x09" + text(b"\1\2"),
        b"\x26" + text("a") + text("1"),
        b"\x26" + text("a") + text("2"),
    )
    async with serving() as served, served.client() as client:
        served.gate.echo = False
        await client.connect(level=5)

        client.send(publish("t", b"21", level=5, properties=properties))
        await client.ping()

        assert served.gate.messages == [sent]
        served.gate.links[0].push(sent)
        _, body = await client.read()
        assert sorted(body) == sorted(text("t") + properties + b"21")


async def test_a_topic_alias_stands_for_its_topic_both_ways() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5, properties=props(b"\x22\0\1"))
        client.send(subscribe("#", level=5))
        await client.expect(0x90)

        client.send(publish("long/topic", b"1", level=5, properties=props(b"\x23\0\5")))
        client.send(publish("", b"2", level=5, properties=props(b"\x23\0\5")))
        client.send(publish("other", b"3", level=5))
        client.send(publish("", b"4", level=5, properties=props(b"\x23\0\5")))
        first, second, third, fourth = [(await client.read())[1] for _ in range(4)]

        assert [each.topic for each in served.gate.messages] == ["long/topic", "long/topic", "other", "long/topic"]
        assert first == text("long/topic") + b"\3\x23\0\1" + b"1"
        assert second == text("") + b"\3\x23\0\1" + b"2"
        assert third == text("other") + b"\0" + b"3"
        assert fourth == text("") + b"\3\x23\0\1" + b"4"


@pytest.mark.parametrize(
    ("alias", "code"), [(b"\0\0", 0x94), (b"\0\x21", 0x94), (b"\0\7", 0x82)], ids=["zero", "too large", "unknown"]
)
async def test_a_bad_topic_alias_ends_the_link(alias: bytes, code: int) -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5)

        client.send(publish("", b"", level=5, properties=props(b"\x23" + alias)))

        assert (await client.closed())[2] == code


async def test_no_more_is_in_flight_than_the_clients_receive_maximum() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5, properties=props(b"\x21\0\2"))
        link = served.gate.links[0]
        for number in range(5):
            assert link.push(Publish(topic="t", payload=b"%d" % number, qos=1))
        ids = [(await client.publish_of(5))[2] for _ in range(2)]
        await client.ping()

        client.send(ack(0x40, ids[0]))

        assert (await client.publish_of(5))[1] == b"2"


async def test_a_client_over_our_receive_maximum_is_told_so() -> None:
    gate = RecordingGate()
    async with serving(Limits(max_unacknowledged=3), gate=gate) as served, served.client() as client:
        await client.connect(level=5)

        client.send(*(publish("t", b"", 2, number, level=5) for number in range(1, 5)))

        for number in range(1, 4):
            await client.expect(0x50, bytes([0, number]))
        assert (await client.closed())[2] == 0x93


async def test_publishes_of_an_earlier_connection_do_not_count_for_our_receive_maximum() -> None:
    async with serving(Limits(max_unacknowledged=2)) as served:
        async with served.client() as client:
            await client.connect(level=5, properties=props(WEEK))
            client.send(publish("t", b"", 2, 1, level=5), publish("t", b"", 2, 2, level=5))
            await client.expect(0x50)
            await client.expect(0x50)

        async with served.client() as client:
            assert (await client.connect(level=5, clean=False, properties=props(WEEK)))[0] == 1
            client.send(*(publish("t", b"", 2, number, level=5) for number in range(3, 6)))

            await client.expect(0x50, b"\0\3")
            await client.expect(0x50, b"\0\4")
            assert (await client.closed())[2] == 0x93


@pytest.mark.parametrize(
    ("first", "second", "answers"),
    [
        (publish("t", b"", 1, 7, level=5), publish("u", b"", 1, 7, level=5), [(0x40, 0), (0x40, 0x91)]),
        (publish("t", b"", 1, 7, level=5), publish("u", b"", 2, 7, level=5), [(0x40, 0), (0x50, 0x91)]),
        (publish("t", b"", 2, 7, level=5), publish("u", b"", 1, 7, level=5), [(0x50, 0), (0x40, 0x91)]),
        (publish("t", b"", 2, 7, level=5), publish("t", b"", 2, 7, level=5, flags=8), [(0x50, 0), (0x50, 0)]),
    ],
    ids=["QoS 1 twice", "QoS 1, then 2", "QoS 2, then 1", "QoS 2 sent again"],
)
async def test_a_packet_id_in_use_is_refused_and_its_publish_is_not_routed(
    first: bytes, second: bytes, answers: list[tuple[int, int]]
) -> None:
    async with serving() as served, served.client() as client:
        committed: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        served.gate.answer = lambda _: committed
        await client.connect(level=5)

        client.send(first, second)
        await client.ping()
        committed.set_result(ACCEPTED)

        for kind, code in answers:
            body = await client.expect(kind)
            assert body[:2] == b"\0\7"
            assert (body[2] if len(body) > 2 else 0) == code
        assert [each.topic for each in served.gate.messages] == ["t"]
        client.send(publish("again", b"", 1, 8, level=5))
        await client.expect(0x40, b"\0\x08")


async def test_nothing_larger_than_the_clients_maximum_packet_size_is_sent() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5, properties=props(b"\x27\0\0\0\x64", b"\x22\0\x09"))
        link = served.gate.links[0]

        assert not link.push(Publish(topic="t", payload=bytes(100)))
        assert link.push(Publish(topic="t", payload=b"small"))

        assert await client.publish_of(5) == ("t", b"small", 0, 0x30)


async def test_a_message_that_expired_in_the_queue_is_dropped_and_another_says_what_is_left() -> None:
    ahead_s = 0.0
    async with (
        serving(Limits(max_inflight=1), clock=lambda: time.monotonic() + ahead_s) as served,
        served.client() as client,
    ):
        await client.connect(level=5)
        link = served.gate.links[0]
        link.push(Publish(topic="t", payload=b"first", qos=1))
        link.push(Publish(topic="t", payload=b"short", qos=1, expiry_s=5))
        link.push(Publish(topic="t", payload=b"long", qos=1, expiry_s=60))
        packet_id = (await client.publish_of(5))[2]

        ahead_s = 10.5
        client.send(ack(0x40, packet_id))
        _, body = await client.read()

        assert body.endswith(b"\5\x02\0\0\0\x32long")


async def test_subscription_options_and_ids_reach_the_gate() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5)

        client.send(subscribe("$share/g/t", qos=1, options=0x18, level=5, properties=props(b"\x0b\xac\x02")))
        await client.expect(0x90, b"\0\1\0\1")

        assert next(iter(served.gate.filters.values())) == {
            "$share/g/t": SubscribeOptions(
                qos=1, no_local=False, retain_as_published=True, retain_handling=1, subscription_id=300
            )
        }
        served.gate.links[0].push(Publish(topic="t", payload=b"", subscription_ids=[300, 7]))
        assert (await client.read())[1] == text("t") + props(b"\x0b\xac\x02", b"\x0b\x07")


async def test_a_fresh_token_keeps_an_open_link() -> None:
    method = b"\x15" + text("token")
    async with serving() as served, served.client() as client:
        body = await client.connect(
            level=5, user=None, password=None, properties=props(method, b"\x16" + text(b"good"))
        )
        assert method in body

        client.send(packet(0xF0, b"\x19" + props(method, b"\x16" + text(b"token"))), publish("t", b"", 1, level=5))

        await client.expect(0xF0, b"\0" + props(method))
        await client.expect(0x40)


@pytest.mark.parametrize("data", [b"other", b""], ids=["of another account", "refused"])
async def test_a_token_that_does_not_hold_ends_the_link(data: bytes) -> None:
    method = b"\x15" + text("token")
    async with serving() as served, served.client() as client:
        await client.connect(level=5, user=None, password=None, properties=props(method, b"\x16" + text(b"good")))

        client.send(packet(0xF0, b"\x19" + props(method, b"\x16" + text(data))))

        assert (await client.closed())[2] == 0x87


async def test_an_unknown_authentication_method_is_refused() -> None:
    async with serving() as served, served.client() as client:
        client.send(connect(level=5, properties=props(b"\x15" + text("SCRAM"))))

        assert (await client.expect(0x20))[1] == 0x8C


async def test_a_client_that_wants_no_problem_information_gets_no_reason_string() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5, properties=props(b"\x17\0"))

        client.send(b"\xc1\0")

        assert await client.closed() == b"\xe0\1\x81"


async def test_disconnect_can_set_the_session_expiry_only_if_connect_had_one() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(level=5)
            client.send(packet(0xE0, b"\0" + props(b"\x11\0\0\0\5")))
            assert (await client.closed())[2] == 0x82
        async with served.client() as client:
            await client.connect("kept", level=5, properties=props(b"\x11\0\0\0\5"))
            client.send(packet(0xE0, b"\0" + props(b"\x11\0\0\0\0")))
            await client.closed()

        assert len(served.engine.sessions) == 0
