"""The native engine over real sockets: publishing, acknowledging, subscribing, ending."""

import asyncio

import anyio
import pytest

from bindings.mqtt.engines.seam import ACCEPTED, Closed, Flow, Limits, Outcome, Publish
from tests.bindings.mqtt.engines.native.peer import (
    RecordingGate,
    ack,
    connect,
    publish,
    serving,
    subscribe,
    unsubscribe,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both loops: their transports differ in what they allow when."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.mark.parametrize("level", [4, 5])
async def test_a_publish_reaches_the_gate_and_is_acknowledged(level: int) -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=level)

        client.send(publish("t/0", b"zero", level=level), publish("t/1", b"one", 1, 7, level=level))
        await client.expect(0x40, b"\0\7")

        assert [(each.topic, each.payload, each.qos) for each in served.gate.messages] == [
            ("t/0", b"zero", 0),
            ("t/1", b"one", 1),
        ]


@pytest.mark.parametrize("level", [4, 5])
async def test_a_qos_2_publish_sent_twice_is_routed_once(level: int) -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=level)

        client.send(publish("t", b"x", 2, 9, level=level))
        await client.expect(0x50, b"\0\x09")
        client.send(publish("t", b"x", 2, 9, level=level, flags=8))
        await client.expect(0x50, b"\0\x09")
        client.send(ack(0x62, 9))
        await client.expect(0x70, b"\0\x09")
        client.send(publish("t", b"y", 2, 9, level=level))
        await client.expect(0x50, b"\0\x09")

        assert [each.payload for each in served.gate.messages] == [b"x", b"y"]


async def test_a_refusal_is_a_reason_code_for_5_and_an_acknowledgement_for_3() -> None:
    gate = RecordingGate()
    gate.refused_topics["no"] = Outcome(reason_code=0x87, reason="not yours")
    async with serving(gate=gate) as served, served.client() as five, served.client() as three:
        await five.connect("five", level=5)
        await three.connect("three")

        five.send(publish("no", b"", 1, 3, level=5))
        three.send(publish("no", b"", 1, 3))

        body = await five.expect(0x40)
        assert body[:3] == b"\0\3\x87"
        assert b"not yours" in body
        await three.expect(0x40, b"\0\3")


async def test_acknowledgements_keep_order_while_commits_overlap_and_ping_is_answered() -> None:
    gate, waiting = RecordingGate(), dict[str, asyncio.Future[Outcome]]()

    def answer(message: Publish) -> asyncio.Future[Outcome]:
        return waiting.setdefault(message.topic, asyncio.get_running_loop().create_future())

    gate.answer = answer
    async with serving(gate=gate) as served, served.client() as client:
        await client.connect()
        client.send(publish("a", b"", 1, 1), publish("b", b"", 1, 2), publish("c", b"", 2, 3))
        await client.ping()
        assert sorted(waiting) == ["a", "b", "c"]

        waiting["c"].set_result(ACCEPTED)
        waiting["b"].set_result(ACCEPTED)
        await client.ping()
        waiting["a"].set_result(ACCEPTED)

        await client.expect(0x40, b"\0\1")
        await client.expect(0x40, b"\0\2")
        await client.expect(0x50, b"\0\3")


async def test_a_failed_commit_closes_without_acknowledgement() -> None:
    gate = RecordingGate()

    async def fail(message: Publish) -> Outcome:
        raise OSError("disk")

    gate.answer = fail
    async with serving(gate=gate) as served, served.client() as client:
        await client.connect()
        client.send(publish("a", b"", 1, 1))

        assert await client.closed() == b""

        await gate.until(lambda: "closed alice/c refused" in gate.events)


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_delivery_runs_its_callback_when_the_client_has_it(level: int, qos: int) -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=level)
        client.send(subscribe("t", qos=qos, level=level))
        await client.expect(0x90)
        link, delivered = served.gate.links[0], list[str]()

        assert link.push(Publish(topic="t", payload=b"x", qos=qos), lambda: delivered.append("yes"))
        topic, payload, packet_id, _ = await client.publish_of(level)
        assert (topic, payload) == ("t", b"x")
        assert delivered == (["yes"] if qos == 0 else [])
        if qos == 1:
            client.send(ack(0x40, packet_id))
        elif qos == 2:
            client.send(ack(0x50, packet_id))
            await client.expect(0x62)
            client.send(ack(0x70, packet_id))
        await client.ping()

        assert delivered == ["yes"]
        assert not served.gate.drops


async def test_suback_comes_before_the_latest_values_and_those_have_the_retain_flag() -> None:
    gate = RecordingGate()
    gate.latest = [Publish(topic="p", payload=b"1", flow=Flow.PROPERTY)]
    gate.refused_filters["secret"] = 0x87
    async with serving(gate=gate) as served, served.client() as three, served.client() as five:
        await three.connect("three")
        await five.connect("five", level=5)

        three.send(subscribe("p", "secret"))
        five.send(subscribe("p", "secret", level=5))

        await three.expect(0x90, b"\0\1\0\x80")
        assert (await three.publish_of())[3] == 0x31
        await five.expect(0x90, b"\0\1\0\0\x87")
        assert (await five.publish_of(5))[3] == 0x31


async def test_unsubscribing_is_answered_whatever_was_subscribed() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5)
        client.send(subscribe("a", level=5))
        await client.expect(0x90)

        client.send(unsubscribe("a", "b", packet_id=2, level=5))

        await client.expect(0xB0, b"\0\2\0\0\x11")


async def test_a_newer_value_is_not_followed_by_an_older_latest_value() -> None:
    gate = RecordingGate()
    gate.latest = [Publish(topic=f"p/{number}", payload=b"old", qos=1, flow=Flow.PROPERTY) for number in range(5)]
    async with serving(Limits(max_inflight=2), gate=gate) as served, served.client() as client:
        await client.connect()
        client.send(subscribe("#", qos=1))
        await client.expect(0x90)
        first = await client.publish_of()
        second = await client.publish_of()

        gate.publish(Publish(topic="p/3", payload=b"new", qos=1, flow=Flow.PROPERTY))
        seen = []
        for delivery in (first, second):
            client.send(ack(0x40, delivery[2]))
        for _ in range(3):
            topic, payload, packet_id, _ = await client.publish_of()
            seen.append((topic, payload))
            client.send(ack(0x40, packet_id))
        await client.ping()

        assert seen == [("p/3", b"new"), ("p/2", b"old"), ("p/4", b"old")]


async def test_everything_in_one_segment_up_to_fin_is_handled() -> None:
    async with serving() as served:
        clients = []
        for number in range(5):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            packets = [publish(f"t/{number}/{each}", b"x") for each in range(50)]
            writer.write(connect(f"c{number}", keep_alive=0) + b"".join(packets) + b"\xe0\0")
            writer.write_eof()
            clients.append(writer)

        await served.gate.until(lambda: sum(each.startswith("closed") for each in served.gate.events) == 5)

        assert len(served.gate.messages) == 250
        assert all(each.endswith("disconnect") for each in served.gate.events if each.startswith("closed"))
        for writer in clients:
            writer.close()
        await served.all_gone()


async def test_three_hundred_garbage_connections_leave_nothing() -> None:
    async with serving() as served:
        for number in range(300):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(bytes((number * 7 + each * 13) & 0xFF for each in range(50)))
            writer.close()

        await served.all_gone()

        assert served.gate.events == []
        assert len(served.engine.sessions) == 0


async def test_a_client_without_connect_is_cut_off() -> None:
    async with serving(Limits(connect_timeout_s=0.2)) as served, served.client() as silent, served.client() as slow:
        slow.send(connect()[:5])

        assert await silent.closed() == b""
        assert await slow.closed() == b""

        await served.all_gone()
        assert served.gate.events == []


@pytest.mark.parametrize(("level", "farewell"), [(4, b""), (5, b"\xe0")])
async def test_a_silent_client_is_cut_off_after_one_and_a_half_keep_alives(level: int, farewell: bytes) -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=level, keep_alive=1, will=("w", b"gone", 1))

        async with asyncio.TaskGroup() as tasks:

            async def drip() -> None:
                for each in publish("t", bytes(50)):
                    if served.gate.events:  # what is sent to a closed socket would take the farewell with it
                        return
                    client.send(bytes([each]))
                    await asyncio.sleep(0.1)

            dripping = tasks.create_task(drip())
            rest = await client.closed()
            dripping.cancel()

        assert rest[:1] == farewell
        assert level == 4 or rest[2] == 0x8D
        assert served.gate.events[-2:] == ["received w", "closed alice/c keep-alive"]


async def test_a_slow_reader_costs_little_and_gets_the_newest() -> None:
    limits = Limits(max_queued=100)
    async with serving(limits) as served, served.client() as client:
        await client.connect()
        client.send(subscribe("e"))
        await client.expect(0x90)
        link = served.gate.links[0]
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]

        for number in range(20_000):
            link.push(Publish(topic="e", payload=b"%06d" % number + bytes(1_000)))
            if number % 500 == 0:
                await asyncio.sleep(0)

        assert served.gate.drops["event", "queue-full"] > 1_000
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        last = b""
        while not last.startswith(b"019999"):
            last = (await client.publish_of())[1]


async def test_a_client_that_publishes_faster_than_the_runtime_answers_is_not_read() -> None:
    gate, waiting = RecordingGate(), list[asyncio.Future[Outcome]]()

    def answer(message: Publish) -> asyncio.Future[Outcome]:
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    gate.answer = answer
    async with serving(Limits(max_unacknowledged=10), gate=gate) as served, served.client() as client:
        await client.connect()
        for number in range(1, 1001):
            client.send(publish("t", bytes(100), 1, number))
        await gate.until(lambda: len(waiting) >= 11)
        assert len(waiting) == 11

        with anyio.fail_after(30):
            for number in range(1, 1001):
                await gate.until(lambda wanted=number: len(waiting) >= wanted)  # type: ignore[misc]
                assert len(waiting) <= number + 11
                waiting[number - 1].set_result(ACCEPTED)
                await client.expect(0x40)


async def test_the_gate_can_end_a_link_and_closed_is_called_before_it_returns() -> None:
    async with serving() as served, served.client() as client:
        await client.connect(level=5)
        link = served.gate.links[0]

        link.close(Closed.REFUSED)
        link.close(Closed.REFUSED)

        assert served.gate.events == ["opened alice/c", "closed alice/c refused"]
        assert not link.push(Publish(topic="t", payload=b""))
        assert (await client.closed())[2] == 0x98


async def test_stopping_acknowledges_what_was_read_and_says_why() -> None:
    gate, waiting = RecordingGate(), list[asyncio.Future[Outcome]]()

    def answer(message: Publish) -> asyncio.Future[Outcome]:
        waiting.append(asyncio.get_running_loop().create_future())
        asyncio.get_running_loop().call_later(0.1, waiting[-1].set_result, ACCEPTED)
        return waiting[-1]

    gate.answer = answer
    reader = None
    async with serving(gate=gate) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(connect(level=5))
        writer.write(publish("t", b"", 1, 5, level=5))
        await gate.until(lambda: bool(waiting))

    rest = await reader.read(-1)
    assert rest.endswith(b"\x40\x02\0\5" + b"\xe0\x01\x8b")
    assert gate.events[-1] == "closed alice/c shutdown"
    writer.close()


async def test_a_peer_that_goes_away_counts_as_lost_and_its_will_is_routed_first() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(will=("w", b"gone", 1))

        await served.gate.until(lambda: "closed alice/c lost" in served.gate.events)

        assert served.gate.events == ["opened alice/c", "received w", "closed alice/c lost"]


async def test_an_ordinary_disconnect_drops_the_will_and_one_with_reason_4_does_not() -> None:
    async with serving() as served:
        async with served.client() as client:
            await client.connect(level=5, will=("w", b"gone", 1))
            client.send(b"\xe0\0")
            await client.closed()
        assert served.gate.events == ["opened alice/c", "closed alice/c disconnect"]
        async with served.client() as client:
            await client.connect(level=5, will=("w", b"gone", 1))
            client.send(b"\xe0\1\4")
            await client.closed()

        assert served.gate.events[2:] == ["opened alice/c", "received w", "closed alice/c disconnect"]
