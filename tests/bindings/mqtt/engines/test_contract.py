"""What every wire engine must show, over real sockets; each group names what it is about."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import replace

import psutil
import pytest

from bindings.mqtt.engines.seam import Closed, Flow, Limits, Listener, Publish
from tests.bindings.mqtt import wire
from tests.bindings.mqtt.engines.contract import DEADLINE_S, ENGINES, EngineType, Recording, serving
from tests.bindings.mqtt.wire import connect, connected, puback, publish, pubrel, raw, subscribe
from things.errors import AddressInUse

pytestmark = pytest.mark.anyio

Address = tuple[str, int]


@pytest.fixture(params=sorted(ENGINES))
def engine_type(request: pytest.FixtureRequest) -> EngineType:
    return ENGINES[request.param]


@pytest.fixture
def gate() -> Recording:
    return Recording()


@pytest.fixture
def limits() -> Limits:
    return Limits(connect_timeout_s=0.5)


@pytest.fixture
async def address(engine_type: EngineType, gate: Recording, limits: Limits) -> AsyncIterator[Address]:
    async with serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _):
        yield addresses[0]


# ---------------------------------------------------------------- a: who somebody is


async def test_two_accounts_may_use_the_same_client_id_at_once(address: Address, gate: Recording) -> None:
    async with connected(address, "ann", "same") as ann, connected(address, "bob", "same") as bob:
        await ann.ping()
        await bob.ping()

        assert [link.principal.account for link in gate.links] == ["ann", "bob"]
        assert gate.closings == []


async def test_a_wrong_password_with_a_victims_client_id_does_not_touch_the_victim(
    address: Address, gate: Recording
) -> None:
    async with connected(address, "ann", "mine", clean=False) as ann:
        ann.send(subscribe(1, ("a/#", 1)))
        await ann.expect(wire.SUBACK)
        for clean in (True, False):
            async with raw(address) as mallory:
                mallory.send(connect("mine", "ann", "guess", clean=clean))
                refused = await mallory.expect(wire.CONNACK)
                assert refused.body[1] in (4, 5)
                assert await mallory.is_cut_off()

        gate.links[0].push(Publish(topic="a/b", payload=b"still here", qos=1))
        delivery = await ann.expect(wire.PUBLISH)

        assert delivery.payload == b"still here"
        assert gate.closings == []


async def test_a_publish_during_a_forged_connect_keeps_its_real_sender(address: Address, gate: Recording) -> None:
    async with connected(address, "mallory", "m", clean=False) as mallory, raw(address) as forger:
        forger.send(connect("m", "admin", "guess", clean=False))
        mallory.send(publish("x", b"1", qos=1))
        await mallory.expect(wire.PUBACK)
        await forger.expect(wire.CONNACK)
        mallory.send(publish("x", b"2", qos=1, packet_id=2))
        await mallory.expect(wire.PUBACK)

    assert {link.principal.account for link, _ in gate.messages} == {"mallory"}


async def test_nothing_of_a_client_is_read_before_it_is_admitted(address: Address, gate: Recording) -> None:
    async with raw(address) as client:
        client.send(connect("c", "ann", "guess"), publish("x", b"early"), subscribe(1, ("a", 0)))

        assert await client.is_cut_off()

    assert (gate.messages, gate.filters, gate.log) == ([], [], [])


async def test_the_same_client_again_takes_over_and_the_old_link_closes_first(
    address: Address, gate: Recording
) -> None:
    async with connected(address, "ann", "c") as first, connected(address, "ann", "c") as second:
        assert await first.is_cut_off()
        await second.ping()

    await gate.until(lambda: len(gate.closings) == 2)
    assert gate.log == [("opened", "c"), ("closed", "c"), ("opened", "c"), ("closed", "c")]
    assert gate.reasons[0] is Closed.TAKEN_OVER


async def test_a_client_without_an_id_gets_one_and_a_persistent_one_needs_one(
    address: Address, gate: Recording
) -> None:
    async with connected(address, "ann", "") as one, connected(address, "ann", "") as two:
        await one.ping()
        await two.ping()
        assert len({link.client_id for link in gate.links}) == 2

    async with raw(address) as client:
        client.send(connect("", "ann", "ann-secret", clean=False))
        assert (await client.expect(wire.CONNACK)).body[1] == 2


# ---------------------------------------------------------------- b: acknowledgements


async def test_a_hundred_publishes_in_flight_share_a_few_commits_and_are_acknowledged_in_order(
    address: Address, gate: Recording
) -> None:
    gate.slow = True
    async with connected(address, "ann") as client:
        client.send(*(publish("x", b"%d" % n, qos=1, packet_id=n) for n in range(1, 101)))

        acks = await client.receive_many(100)

    assert [ack.kind for ack in acks] == [wire.PUBACK] * 100
    assert [ack.packet_id for ack in acks] == list(range(1, 101))
    assert gate.payloads == [b"%d" % n for n in range(1, 101)]
    assert gate.commits <= 5


async def test_a_ping_is_answered_while_a_commit_takes_its_time(address: Address, gate: Recording) -> None:
    gate.slow = True
    async with connected(address, "ann") as client:
        client.send(publish("x", b"1", qos=1), wire.PINGREQ_BYTES)

        answers = await client.receive_many(2)

    assert [answer.kind for answer in answers] == [wire.PINGRESP, wire.PUBACK]


async def test_a_publish_is_not_acknowledged_before_its_commit(address: Address, gate: Recording) -> None:
    gate.slow = True
    async with connected(address, "ann") as client:
        client.send(publish("x", b"1", qos=1, packet_id=7), publish("x", b"2", qos=2, packet_id=8))
        await gate.until(lambda: len(gate.messages) == 2)
        assert gate.commits == 0

        puback_, pubrec = await client.receive_many(2)

    assert (puback_.kind, puback_.packet_id) == (wire.PUBACK, 7)
    assert (pubrec.kind, pubrec.packet_id) == (wire.PUBREC, 8)
    assert gate.commits == 1


async def test_a_repeated_qos_2_publish_is_routed_once(address: Address, gate: Recording) -> None:
    async with connected(address, "ann") as client:
        client.send(publish("x", b"1", qos=2, packet_id=5))
        await client.expect(wire.PUBREC)
        client.send(publish("x", b"1", qos=2, packet_id=5, dup=True))
        await client.expect(wire.PUBREC)
        client.send(pubrel(5))
        await client.expect(wire.PUBCOMP)
        client.send(publish("x", b"2", qos=2, packet_id=5))
        await client.expect(wire.PUBREC)

    assert gate.payloads == [b"1", b"2"]


async def test_a_failed_commit_is_never_acknowledged_and_closes_the_connection(
    address: Address, gate: Recording
) -> None:
    async with connected(address, "ann") as client:
        client.send(publish("x", b"1", qos=1, packet_id=1))
        await client.expect(wire.PUBACK)
        client.send(publish("bad/x", b"2", qos=1, packet_id=2), publish("x", b"3", qos=1, packet_id=3))

        async with asyncio.timeout(DEADLINE_S):
            rest = await client.reader.read()

    assert rest == b""
    await gate.until(lambda: gate.closings)


async def test_a_refused_publish_is_acknowledged_and_the_client_stays(address: Address, gate: Recording) -> None:
    async with connected(address, "ann") as client:
        client.send(publish("no/x", b"1", qos=1, packet_id=4))
        assert (await client.expect(wire.PUBACK)).packet_id == 4
        await client.ping()


# ---------------------------------------------------------------- c: nothing is distributed by the engine


async def test_nothing_reaches_a_subscriber_but_what_is_pushed(address: Address, gate: Recording) -> None:
    async with connected(address, "ann", "1") as ann, connected(address, "bob", "2") as bob:
        for client in (ann, bob):
            client.send(subscribe(1, ("x/#", 1), ("#", 0)))
            await client.expect(wire.SUBACK)
        bob.send(wire.packet(0x33, wire.text("x/y") + b"\x00\x01" + b"retained"))
        await bob.expect(wire.PUBACK)
        gate.links[0].push(Publish(topic="x/z", payload=b"pushed"))

        assert (await ann.expect(wire.PUBLISH)).payload == b"pushed"
        await bob.ping()
        ann.send(subscribe(2, ("x/+", 1)))
        await ann.expect(wire.SUBACK)
        await ann.ping()


# ---------------------------------------------------------------- d: subscriptions and latest values


async def test_each_filter_is_granted_or_refused_on_its_own(address: Address, gate: Recording) -> None:
    async with connected(address, "ann") as client:
        client.send(subscribe(3, ("a/#", 0), ("no/x", 1), ("b", 1)))

        answer = await client.expect(wire.SUBACK)

    assert answer.packet_id == 3
    assert list(answer.body[2:]) == [0, 0x80, 1]
    assert [topic for _, topic in gate.filters] == ["a/#", "b"]


async def test_a_filter_with_misplaced_wildcards_is_never_granted(address: Address, gate: Recording) -> None:
    async with connected(address, "ann") as client:
        client.send(subscribe(3, ("c#", 0)))
        with contextlib.suppress(asyncio.IncompleteReadError):  # an engine may also close
            assert (await client.expect(wire.SUBACK)).body[2:] == b"\x80"

    assert gate.filters == []


async def test_latest_values_follow_the_suback_with_the_retain_flag_before_anything_newer(
    address: Address, gate: Recording
) -> None:
    gate.latest = [Publish(topic=f"a/{n}", payload=b"old", qos=1, flow=Flow.PROPERTY) for n in range(3)]
    newer = Publish(topic="a/1", payload=b"new", qos=1, flow=Flow.PROPERTY)
    gate.on_subscribe = lambda link, topic_filter: link.push(newer)
    async with connected(address, "ann") as client:
        client.send(subscribe(1, ("a/#", 1)))

        received = await client.receive_many(5)

    at_suback = [received_.kind for received_ in received].index(wire.SUBACK)
    retained = [index for index, received_ in enumerate(received) if received_.flags & 1]
    assert len(retained) == 3
    assert min(retained) > at_suback
    new = next(
        index
        for index, received_ in enumerate(received)
        if received_.kind == wire.PUBLISH and not received_.is_retained
    )
    assert received[new].payload == b"new"


async def test_more_latest_values_than_the_queue_holds_all_arrive(address: Address, gate: Recording) -> None:
    count = 3_000
    gate.latest = [Publish(topic=f"a/{n}", payload=b"x" * 200, qos=1, flow=Flow.PROPERTY) for n in range(count)]
    topics: set[str] = set()
    async with connected(address, "ann") as client:
        client.send(subscribe(1, ("a/#", 1)))
        await client.expect(wire.SUBACK)
        while len(topics) < count:
            delivery = await client.expect(wire.PUBLISH)
            topics.add(delivery.topic)
            client.send(puback(delivery.delivery_id))

    assert not gate.drops


async def test_an_unsubscribed_filter_is_forgotten_and_unknown_ones_are_no_error(
    address: Address, gate: Recording
) -> None:
    async with connected(address, "ann") as client:
        client.send(subscribe(1, ("a/#", 1)))
        await client.expect(wire.SUBACK)
        client.send(wire.unsubscribe(2, "a/#", "never"))

        assert (await client.expect(wire.UNSUBACK)).packet_id == 2

    assert gate.filters == []


# ---------------------------------------------------------------- e: wills, clocks, bounds


async def test_a_refused_will_refuses_the_connect(address: Address, gate: Recording) -> None:
    async with raw(address) as client:
        client.send(connect("c", "ann", "ann-secret", will=("no/x", b"boo", 1)))

        assert (await client.expect(wire.CONNACK)).body[1] != 0
        assert await client.is_cut_off()

    assert gate.log == []


async def test_a_will_goes_the_way_of_every_publish_when_the_client_is_lost(address: Address, gate: Recording) -> None:
    async with connected(address, "ann", "c", will=("x/will", b"gone", 1)) as client:
        await client.ping()

    await gate.until(lambda: gate.closings)
    link, will = gate.messages[0]
    assert (link.principal.account, will.topic, will.payload) == ("ann", "x/will", b"gone")
    assert gate.log == [("opened", "c"), ("received", "c"), ("closed", "c")]
    assert gate.reasons == [Closed.LOST]


async def test_a_will_of_a_client_that_says_goodbye_never_fires(address: Address, gate: Recording) -> None:
    async with connected(address, "ann", "c", will=("x/will", b"gone", 1)) as client:
        client.send(wire.DISCONNECT_BYTES)
        assert await client.is_cut_off()

    await gate.until(lambda: gate.closings)
    assert gate.messages == []
    assert gate.reasons == [Closed.DISCONNECT]


async def test_keep_alive_counts_whole_packets_so_a_drip_of_bytes_is_cut_off(address: Address, gate: Recording) -> None:
    loop = asyncio.get_running_loop()
    async with connected(address, "ann", keep_alive=1) as client:
        started = loop.time()
        drip = iter(publish("x", b"." * 1_000))
        closed = asyncio.ensure_future(client.is_cut_off())
        while not closed.done() and loop.time() - started < DEADLINE_S:
            client.send(bytes([next(drip)]))
            await asyncio.wait([closed], timeout=0.1)
        assert closed.done()

    assert 1.3 <= loop.time() - started < DEADLINE_S
    assert gate.reasons == [Closed.KEEP_ALIVE]


async def test_a_client_that_pings_outlives_its_keep_alive(address: Address, gate: Recording) -> None:
    async with connected(address, "ann", keep_alive=1) as client:
        ended = asyncio.ensure_future(client.is_cut_off())
        for _ in range(4):
            await asyncio.wait([ended], timeout=0.6)
            client.send(wire.PINGREQ_BYTES)
        ended.cancel()

        assert gate.closings == []


@pytest.mark.parametrize("sent", [b"", b"\x10", connect("c", "ann", "ann-secret")[:-1]], ids=["none", "one", "most"])
async def test_a_connect_that_never_comes_is_given_up(address: Address, gate: Recording, sent: bytes) -> None:
    async with raw(address) as client:
        client.send(sent)

        assert await client.is_cut_off()

    assert gate.hellos == []


async def test_a_packet_over_the_limit_is_refused_by_its_length_alone(
    address: Address, gate: Recording, limits: Limits
) -> None:
    async with connected(address, "ann") as client:
        at_limit = publish("x", b"." * (limits.max_packet_bytes - 7))
        assert len(at_limit) == limits.max_packet_bytes
        client.send(at_limit)
        await gate.until(lambda: gate.messages)
        client.send(publish("x", b"." * (limits.max_packet_bytes - 6))[:5])

        assert await client.is_cut_off()

    await gate.until(lambda: gate.closings)
    assert len(gate.messages) == 1
    assert gate.reasons == [Closed.PROTOCOL]


async def test_a_client_that_never_reads_costs_little_and_gets_the_newest_when_it_resumes(
    address: Address, gate: Recording
) -> None:
    async with connected(address, "ann") as client:
        before = psutil.Process(os.getpid()).memory_info().rss
        for n in range(20_000):
            gate.links[0].push(Publish(topic="x", payload=b"%06d" % n + b"." * 1_018, qos=0))
            if n % 100 == 0:
                await asyncio.sleep(0)
        grown = psutil.Process(os.getpid()).memory_info().rss - before
        last = b""
        while not last.startswith(b"019999"):
            last = (await client.expect(wire.PUBLISH)).payload

    assert grown < 32 * 1024 * 1024
    assert gate.drops["event", "queue-full"] > 10_000
    assert len(gate.drops) == 1


async def test_requests_beyond_the_queue_are_not_taken_and_the_rest_arrive_in_order(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    limits = replace(limits, max_inflight=5, max_queued=20)
    delivered: list[int] = []
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann") as client,
    ):
        taken = [
            n
            for n in range(100)
            if gate.links[0].push(
                Publish(topic="x", payload=b"%d" % n, qos=1, flow=Flow.LEDGER),
                lambda n=n: delivered.append(n),  # type: ignore[misc]
            )
        ]
        assert taken == list(range(25))
        for n in taken:
            delivery = await client.expect(wire.PUBLISH)
            assert (delivery.payload, delivery.flags & 6) == (b"%d" % n, 2)
            client.send(puback(delivery.delivery_id))
        await client.ping()

    assert delivered == taken


async def test_only_so_many_deliveries_are_unacknowledged_at_once(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    limits = replace(limits, max_inflight=3)
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann") as client,
    ):
        for n in range(10):
            gate.links[0].push(Publish(topic="x", payload=b"%d" % n, qos=1))
        first = await client.receive_many(3)
        await client.ping()  # a fourth would come before this answer
        client.send(puback(first[0].delivery_id))

        assert (await client.expect(wire.PUBLISH)).payload == b"3"


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_delivery_that_no_publish_can_hold_costs_that_delivery_and_not_the_link(
    address: Address, gate: Recording, qos: int
) -> None:
    gate.latest = [Publish(topic="n" * 65_536, payload=b"1", qos=qos), Publish(topic="x", payload=b"2", qos=qos)]
    async with connected(address, "ann") as client:
        client.send(subscribe(1, ("x", qos)))
        await client.expect(wire.SUBACK)
        assert (await client.expect(wire.PUBLISH)).payload == b"2"

        gate.links[0].push(Publish(topic="n" * 65_536, payload=b"3", qos=qos))
        gate.links[0].push(Publish(topic="x", payload=b"4", qos=qos))
        assert (await client.expect(wire.PUBLISH)).payload == b"4"
        await client.ping()
        assert not gate.closings


async def test_a_client_whose_publishes_wait_is_not_read_further(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    limits = replace(limits, max_unacknowledged=10)
    gate.slow = True
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann") as client,
    ):
        client.send(*(publish("x", b"%d" % n, qos=1, packet_id=n) for n in range(1, 201)))
        await gate.until(lambda: len(gate.messages) >= 10)
        before_first_commit = len(gate.messages)

        acks = await client.receive_many(200)

    # Some engines look at the credit once a turn of the loop, so a few more may have been taken.
    assert before_first_commit <= 60
    assert [ack.packet_id for ack in acks] == list(range(1, 201))


async def test_subscriptions_and_links_are_counted(engine_type: EngineType, gate: Recording, limits: Limits) -> None:
    limits = replace(limits, max_subscriptions=2, max_links_per_account=1)
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann", "1") as client,
    ):
        client.send(subscribe(1, ("a", 0), ("b", 0), ("c", 0)))
        assert list((await client.expect(wire.SUBACK)).body[2:]) == [0, 0, 0x80]
        async with raw(addresses[0]) as second:
            second.send(connect("2", "ann", "ann-secret"))
            assert (await second.expect(wire.CONNACK)).body[1] != 0
        async with connected(addresses[0], "bob", "2"):
            pass


async def test_connections_are_counted(engine_type: EngineType, gate: Recording, limits: Limits) -> None:
    limits = replace(limits, max_connections=1)
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann", "1") as client,
        raw(addresses[0]) as second,
    ):
        assert await second.is_cut_off()
        await client.ping()


async def test_connections_before_login_are_bounded_by_source_and_the_oldest_goes_first(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    limits = replace(limits, max_unauthenticated_per_source=2, connect_timeout_s=30)
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann", "member") as member,
        raw(addresses[0]) as first,
        raw(addresses[0]) as second,
        raw(addresses[0]) as third,
    ):
        assert await first.is_cut_off()
        for client, name in ((third, "third"), (second, "second")):
            client.send(connect(name, "ann", "ann-secret"))
            assert (await client.expect(wire.CONNACK)).body[1] == 0
        await member.ping()


async def test_where_all_connections_are_taken_one_without_a_login_makes_room(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    limits = replace(limits, max_connections=2, connect_timeout_s=30)
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        connected(addresses[0], "ann", "member") as member,
        raw(addresses[0]) as stranger,
        connected(addresses[0], "bob", "next") as newcomer,
    ):
        assert await stranger.is_cut_off()
        await newcomer.ping()
        await member.ping()


async def test_a_connect_over_its_limit_is_refused_by_its_length_and_later_packets_may_be_larger(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    limits = replace(limits, max_connect_bytes=1_024, connect_timeout_s=30)
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, _),
        raw(addresses[0]) as large,
        connected(addresses[0], "ann", "c") as client,
    ):
        large.send(connect("c", "ann", "ann-secret", will=("w", bytes(2_000), 0))[:20])
        assert await large.is_cut_off()

        client.send(publish("t", bytes(100_000), qos=1))
        await client.expect(wire.PUBACK)


# ---------------------------------------------------------------- f: versions


async def test_mqtt_3_1_is_refused_in_its_own_words(address: Address, gate: Recording) -> None:
    async with raw(address) as client:
        client.send(connect("c", "ann", "ann-secret", protocol="MQIsdp", level=3))

        assert (await client.expect(wire.CONNACK)).body == b"\x00\x01"
        assert await client.is_cut_off()


async def test_mqtt_5_is_spoken_or_refused_in_its_own_words(
    address: Address, gate: Recording, request: pytest.FixtureRequest
) -> None:
    async with raw(address) as client:
        client.send(connect("c", "ann", "ann-secret", level=5))

        answer = await client.expect(wire.CONNACK)

        if "native" in request.node.name:
            assert answer.body[:2] == b"\x00\x00"
        else:
            assert answer.body == b"\x00\x84\x00"
            assert await client.is_cut_off()


async def test_another_protocol_is_cut_off(address: Address, gate: Recording) -> None:
    async with raw(address) as client:
        client.send(connect("c", "ann", "ann-secret", protocol="AMQP"))

        assert await client.is_cut_off()


# ---------------------------------------------------------------- g: opened and closed alternate


async def test_connect_to_fin_in_one_segment_without_keep_alive_handles_every_publish(
    address: Address, gate: Recording
) -> None:
    for n in range(5):
        async with raw(address) as client:
            hello = connect(f"c{n}", "ann", "ann-secret", keep_alive=0)
            client.send(hello, *(publish("x", b"%d" % m) for m in range(50)), wire.DISCONNECT_BYTES)
            client.writer.write_eof()
            assert await client.is_cut_off()

    await gate.until(lambda: len(gate.closings) == 5)
    assert len(gate.messages) == 250
    assert gate.reasons == [Closed.DISCONNECT] * 5


async def test_a_reset_connection_is_closed_once(address: Address, gate: Recording) -> None:
    async with connected(address, "ann") as client:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()
        await gate.until(lambda: gate.closings)

    assert gate.reasons == [Closed.LOST]


@pytest.mark.parametrize(
    "garbage",
    [
        connect("c", "ann", "ann-secret"),
        b"\x36\x05\x00\x01x\x00\x01",
        b"\x32\x05\x00\x01x\x00\x00",
        b"\x38\x03\x00\x01x",
        publish("a/+/b", b""),
        publish("a/#", b""),
        publish("", b""),
        b"\x30\x04\x00\x02\xff\xfe",
        b"\x30\x03\x00\x01\x00",
        b"\x30\x05\x00\x03\xed\xa0\x80",
        b"\x30\x02\x00\x09",
        b"\x30\xff\xff\xff\xff\x01",
        b"\x80\x06\x00\x01\x00\x01a\x00",
        b"\x82\x02\x00\x01",
        b"\x82\x06\x00\x01\x00\x01a\x03",
        b"\x82\x06\x00\x00\x00\x01a\x00",
        b"\x82\x05\x00\x01\x00\x00\x00",
        b"\xa2\x02\x00\x01",
        b"\x60\x02\x00\x01",
        b"\x40\x01\x00",
        b"\xc1\x00",
        b"\xc0\x01x",
        b"\xe0\x01x",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x20\x02\x00\x00",
        b"\xd0\x00",
    ],
    ids=lambda garbage: garbage[:12].hex(),
)
async def test_what_no_client_may_send_closes_it_and_nobody_else(
    address: Address, gate: Recording, garbage: bytes
) -> None:
    async with connected(address, "ann", "bad") as client, connected(address, "bob", "canary") as canary:
        client.send(garbage)

        assert await client.is_cut_off()
        await canary.ping()

    await gate.until(lambda: gate.closings)
    assert gate.closings[0][0].client_id == "bad"
    assert gate.reasons[0] is Closed.PROTOCOL
    assert gate.messages == []


async def test_three_hundred_broken_connections_leave_nothing(address: Address, gate: Recording) -> None:
    hello = connect("c", "ann", "ann-secret")
    broken = [b"", b"\xff" * 40, b"GET / HTTP/1.1\r\n\r\n", hello[:9], hello + b"\xff\xff", publish("x"), hello * 2]
    tasks_before = len(asyncio.all_tasks())

    async def once(n: int) -> None:
        async with raw(address) as client:
            client.send(broken[n % len(broken)])
            client.writer.write_eof()
            assert await client.is_cut_off()

    for start in range(0, 300, 30):
        await asyncio.gather(*(once(n) for n in range(start, start + 30)))

    async with connected(address, "bob", "canary") as canary:
        await canary.ping()
    await gate.until(lambda: len(gate.closings) == len(gate.links))
    async with asyncio.timeout(DEADLINE_S):
        while len(asyncio.all_tasks()) > tasks_before:  # noqa: ASYNC110 - nothing tells when a task is gone
            await asyncio.sleep(0)
    assert [what for what, who in gate.log if who == "c"] == ["opened", "closed"] * (len(gate.links) - 1)


async def test_closing_a_link_tells_the_gate_before_it_returns_and_only_once(address: Address, gate: Recording) -> None:
    async with connected(address, "ann", "c", will=("x", b"gone", 0)) as client:
        link = gate.links[0]

        link.close(Closed.REFUSED)
        closings = list(gate.reasons)
        link.close(Closed.LOST)

        assert closings == [Closed.REFUSED]
        assert await client.is_cut_off()
        assert link.push(Publish(topic="x", payload=b"")) is False
    assert gate.reasons == [Closed.REFUSED]
    assert gate.payloads == [b"gone"]


async def test_stopping_acknowledges_what_is_being_committed_and_closes_every_link(
    engine_type: EngineType, gate: Recording, limits: Limits
) -> None:
    gate.slow = True
    async with (
        serving(engine_type([Listener(host="127.0.0.1", port=0)], limits), gate) as (addresses, stop),
        connected(addresses[0], "ann") as client,
    ):
        client.send(publish("x", b"1", qos=1, packet_id=9))
        await gate.until(lambda: gate.messages)
        assert gate.commits == 0

        stop()

        assert (await client.expect(wire.PUBACK)).packet_id == 9
        assert await client.is_cut_off()
    assert gate.reasons == [Closed.SHUTDOWN]


async def test_an_address_somebody_else_listens_on_is_named(
    engine_type: EngineType, gate: Recording, limits: Limits, address: Address
) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        async with serving(engine_type([Listener(host=address[0], port=address[1])], limits), gate):
            pass

    error: BaseException = raised.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, AddressInUse)
    assert str(address[1]) in error.detail


# ---------------------------------------------------------------- h: no hidden queue


async def test_what_was_not_delivered_before_a_clean_client_went_is_not_delivered_by_the_engine(
    address: Address, gate: Recording
) -> None:
    delivered: list[bool] = []
    async with connected(address, "ann", "c") as client:
        gate.links[0].push(Publish(topic="x", payload=b"1", qos=1, flow=Flow.LEDGER), lambda: delivered.append(True))
        await client.expect(wire.PUBLISH)
    await gate.until(lambda: gate.closings)
    async with connected(address, "ann", "c") as client:
        await client.ping()

    assert delivered == []
