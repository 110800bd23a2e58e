"""The binding at its bounds: small windows and queues, many requests and statuses, too many sessions."""

from dataclasses import replace
from pathlib import Path

import pytest

from bindings.mqtt.engines.seam import Limits, Link
from bindings.mqtt.order import PublishOrder
from runtime.publications import sessions
from tests.bindings.mqtt import wire
from tests.bindings.mqtt.engines.contract import EngineType
from tests.bindings.mqtt.support import House, lamp_house
from tests.metrics import measured
from things.refusals import Refusals

pytestmark = pytest.mark.anyio

SMALL = replace(Limits(), max_inflight=5, max_queued=10)
MANY = 120


async def test_more_requests_than_the_queue_holds_all_arrive_in_order(any_engine: EngineType, tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", any_engine, limits=SMALL) as lamp:
        async with lamp.client("operator1") as caller:
            for number in range(MANY - 1):
                caller.send(f"req/operator1/action/lights/lamp/fade/r{number}", {"to": number})
            await caller.publish(f"req/operator1/action/lights/lamp/fade/r{MANY - 1}", {"to": MANY - 1})
        async with lamp.client("lights") as agent:
            await agent.subscribe("inbox/lights/#")
            received = [(await agent.receive()).value["to"] for _ in range(MANY)]

            assert await agent.settle() == []

    assert received == list(range(MANY))


async def test_more_statuses_than_the_queue_holds_are_all_told_in_order(any_engine: EngineType, tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", any_engine, limits=SMALL) as lamp:
        async with lamp.client("operator1") as caller:
            for number in range(MANY - 1):
                caller.send(f"req/operator1/action/lights/lamp/blink/r{number}", raw=b"")
            await caller.publish(f"req/operator1/action/lights/lamp/blink/r{MANY - 1}", raw=b"")
        async with lamp.client("operator1") as caller:
            await caller.subscribe("inbox/operator1/#")
            await caller.publish("req/operator1/replay", {"after": 0})
            statuses = [(await caller.receive()).value for _ in range(MANY)]

            assert await caller.settle() == []

    assert [status["callerRef"] for status in statuses] == [f"r{number}" for number in range(MANY)]
    assert [status["seq"] for status in statuses] == sorted(status["seq"] for status in statuses)


async def test_more_latest_values_than_the_queue_holds_are_all_told(any_engine: EngineType, tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", any_engine, limits=SMALL) as lamp, lamp.client("lights") as agent:
        await agent.publish("agents/lights/properties/lamp", {f"p{number}": number for number in range(MANY)})
        async with lamp.client("viewer1") as viewer:
            await viewer.subscribe("things/lights/lamp/property/+")
            values = [(await viewer.receive()).value for _ in range(MANY)]

    assert sorted(values) == list(range(MANY))


async def test_a_fresh_token_renews_a_session_and_a_foreign_one_does_not(lamp: House) -> None:
    async with lamp.client("viewer1") as viewer:
        await viewer.subscribe("things/#")
        (link,) = _links(lamp)

        renewed = await lamp.binding.reauthenticate(link, lamp.tokens["viewer1"].encode())
        foreign = await lamp.binding.reauthenticate(link, lamp.tokens["lights"].encode())
        broken = await lamp.binding.reauthenticate(link, b"\xff")

    assert renewed is not None
    assert renewed.account == "viewer1"
    assert (foreign, broken) == (None, None)


async def test_an_account_has_only_so_many_sessions(any_engine: EngineType, tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", any_engine) as lamp:
        lamp.runtime.sessions.max_per_account = 1
        async with lamp.client("viewer1", "1") as first, lamp.client("viewer1", "2") as second:
            assert await second.is_lost()
            await first.subscribe("things/#")
            await first.settle()


async def test_nothing_waits_where_nothing_is_ahead() -> None:
    order = PublishOrder()

    await order.wait_described("lamp")
    await order.wait_described()
    await order.wait_stored()
    async with order.describing("lamp"):
        await order.wait_described("other")
        await order.wait_stored()
    with order.storing():
        await order.wait_described()


def _links(lamp: House) -> list[Link]:
    return list(lamp.binding._clients)


async def test_dropped_deliveries_are_counted_for_good_and_logged_once(
    any_engine: EngineType, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscriber acknowledges nothing: 5 events are on their way, 10 wait, 25 of 40 are given up."""
    caplog.set_level("INFO", "runtime.publications.sessions")
    monkeypatch.setattr(sessions, "REFUSALS", Refusals())
    async with lamp_house(tmp_path / "home", any_engine, limits=SMALL) as lamp, lamp.client("lights") as agent:
        async with wire.raw(lamp.binding.addresses[0]) as stalled:
            stalled.send(
                wire.connect("s", "viewer1", lamp.tokens["viewer1"]), wire.subscribe(1, ("things/+/+/event/+", 1))
            )
            assert (await stalled.expect(wire.CONNACK)).body[1] == 0
            await stalled.expect(wire.SUBACK)
            for number in range(40):
                await agent.publish("agents/lights/event/lamp/overheated", number)
        async with lamp.client("admin1") as admin:
            await admin.subscribe("$SYS/mqtt/dropped/#")
            figures = {message.topic: message.value for message in await admin.settle()}

    dropped = lamp.runtime.metrics.dropped["mqtt", "event", "queue-full"]
    assert dropped == 25
    assert figures["$SYS/mqtt/dropped/event"] == dropped, "also after the subscriber left"
    told = measured(lamp.runtime.metrics.families())
    assert told['skep_dropped_total{binding="mqtt",kind="event",reason="queue-full"}'] == dropped
    lines = [record for record in caplog.records if record.message == "deliveries dropped"]
    assert [(line.__dict__["who"], line.__dict__["code"]) for line in lines] == [("viewer1", "queue-full")]
