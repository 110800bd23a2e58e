"""Probes for identity over every engine, with paho: what one account may not do in another's name."""

import asyncio
from pathlib import Path

import anyio
import pytest

from bindings.mqtt.engines.native import NativeEngine
from tests.bindings.mqtt.engines.contract import EngineType
from tests.bindings.mqtt.engines.native.peer import connect
from tests.bindings.mqtt.support import DEADLINE_S, Client, House, Refused, lamp_house
from things.addresses import Kind
from things.identity import AccountType, Role
from things.records import HistoryQuery

pytestmark = pytest.mark.anyio

TWIN = "dtw:lights:lamp"


@pytest.fixture
async def house(lamp: House) -> House:
    """The lamp's house with an agent that means harm."""
    await lamp.account("mallory", AccountType.AGENT, Role.AGENT)
    return lamp


@pytest.mark.parametrize(
    "topic",
    [
        "agents/lights/event/lamp/touched",
        "agents/lights/td/lamp",
        "agents/lights/batch",
        "agents/Lights/event/lamp/touched",
        "things/lights/lamp/event/touched",
        "inbox/viewer1/status/r1",
        "req/operator1/action/lights/lamp/blink/r1",
        "agents/mallory/../lights/event/lamp/touched",
        "$SYS/mqtt/clients",
        "$share/g/things/lights/lamp/event/touched",
        "$",
    ],
)
async def test_a_forged_publish_reaches_nobody_and_changes_nothing(house: House, topic: str) -> None:
    async with (
        house.client("mallory") as mallory,
        house.client("lights") as lights,
        house.client("viewer1") as viewer,
    ):
        await lights.subscribe("inbox/lights/#")
        await viewer.subscribe("inbox/viewer1/#")
        await viewer.subscribe("things/+/+/event/+")
        await mallory.publish(topic, raw=b"1")
        await mallory.publish(topic, raw=b"")

        assert await lights.settle() == []
        assert await viewer.settle() == []

    assert await house.twin.history.read(HistoryQuery(things=[TWIN], kind=Kind.EVENT)) == []
    assert house.twin.directory.get(TWIN) is not None
    assert await house.twin.ledger.by_reference("operator1", "r1") is None


async def test_a_forged_will_refuses_the_connect_and_never_fires(house: House) -> None:
    async with house.client("viewer1") as viewer:
        await viewer.subscribe("things/+/+/event/+")
        with pytest.raises(Refused):
            async with house.client("mallory", will=("agents/lights/event/lamp/touched", b"1")):
                pass

        assert await viewer.settle() == []


@pytest.mark.parametrize("topic_filter", ["inbox/lights/#", "inbox/+/action/#", "inbox/#", "+/lights/#", "#"])
async def test_a_foreign_inbox_cannot_be_read(house: House, topic_filter: str) -> None:
    async with house.client("mallory") as mallory, house.client("operator1") as operator:
        with pytest.raises(Refused):
            await mallory.subscribe(topic_filter)
        await operator.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")

        assert await mallory.settle() == []


async def test_another_accounts_client_id_takes_nothing_over(house: House) -> None:
    async with house.client("lights", "lamp-agent", clean=False) as lights:
        await lights.subscribe("inbox/lights/#")
        async with (
            house.client("mallory", "lamp-agent", clean=False) as mallory,
            house.client("operator1") as operator,
        ):
            await operator.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")

            assert (await lights.receive()).topic.startswith("inbox/lights/action/")
            assert await mallory.settle() == []
        assert not lights.lost.is_set()


@pytest.mark.parametrize("clean", [True, False])
async def test_a_wrong_password_with_a_victims_client_id_does_not_touch_the_victim(house: House, clean: bool) -> None:
    async with house.client("lights", "lamp-agent", clean=False) as lights, house.client("operator1") as operator:
        await lights.subscribe("inbox/lights/#")
        for account, secret in (("lights", "guess"), ("lights", house.tokens["mallory"]), ("mallory", "guess")):
            with pytest.raises(Refused):
                async with Client(house.binding.addresses[0], account, secret, "lamp-agent", clean=clean):
                    pass
        await operator.publish("req/operator1/action/lights/lamp/blink/r1", raw=b"")

        assert (await lights.receive()).topic.startswith("inbox/lights/action/")
        assert not lights.lost.is_set()


async def test_latest_values_are_not_shown_without_the_right_to_see_them(house: House) -> None:
    async with house.client("lights") as lights:
        await lights.publish("agents/lights/property/lamp/level", 3)
    async with house.client("mallory") as mallory:
        for topic_filter in ("things/lights/lamp/#", "things/lights/lamp/property/level", "things/lights/+/td"):
            with pytest.raises(Refused):
                await mallory.subscribe(topic_filter)
        await mallory.subscribe("things/#")

        assert await mallory.settle() == []
    async with house.client("none1") as nobody:
        with pytest.raises(Refused):
            await nobody.subscribe("things/#")

        assert await nobody.settle() == []


async def test_a_batch_cannot_speak_for_another_agent(house: House) -> None:
    item = {"v": 1, "operation": "publish_event", "thingID": TWIN, "name": "touched", "data": 1}
    async with house.client("mallory") as mallory:
        await mallory.subscribe("inbox/mallory/batch")
        await mallory.publish("agents/mallory/batch", [item])

        result = (await mallory.receive()).value

    assert (result["stored"], result["rejected"][0]["code"]) == (0, "forbidden")
    assert await house.twin.history.read(HistoryQuery(things=[TWIN], kind=Kind.EVENT)) == []


@pytest.mark.parametrize(("level", "code"), [(4, 3), (5, 0x89)])
async def test_who_tries_too_often_is_told_that_the_server_is_busy(
    any_engine: EngineType, tmp_path: Path, level: int, code: int
) -> None:
    if level == 5 and any_engine is not NativeEngine:
        pytest.skip("this engine speaks 3.1.1 only")
    async with lamp_house(tmp_path / "home", any_engine) as lamp:

        async def answered() -> int:
            reader, writer = await asyncio.open_connection(*lamp.binding.addresses[0])
            writer.write(connect("c", level=level, user="operator1", password=b"wrong"))
            with anyio.fail_after(DEADLINE_S):
                answer = await reader.read(-1)
            writer.close()
            return answer[3]

        codes = [await answered() for _ in range(12)]

    assert set(codes) == {5 if level == 4 else 0x87, code}
    assert codes[-1] == code
