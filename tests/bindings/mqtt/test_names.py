"""Names that no topic can hold: refused when they come, and harmless where an earlier version has stored one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bindings.mqtt.engines.contract import ENGINES, EngineType
from tests.bindings.mqtt.support import House, Refused, house, lamp_house
from things.addresses import Kind
from things.records import Reading, Value

pytestmark = pytest.mark.anyio

HUGE = "n" * 70_000
TOPIC = "agents/lights/properties/lamp"


def values_of(house: House) -> set[str]:
    return {name for kind, name in house.twin.values.of_thing("dtw:lights:lamp") if kind is Kind.PROPERTY}


async def stored_by_an_earlier_version(house: House, name: str, value: Any) -> None:
    now = house.runtime.clock()
    reading = Reading(
        thing_id="dtw:lights:lamp",
        kind=Kind.PROPERTY,
        name=name,
        value=json.dumps(value).encode(),
        created=now,
        received=now,
        sender="lights",
        td_version=1,
    )
    (row,) = await house.twin.history.append([reading])
    latest = Value(value=value, payload=reading.value, created=now, received=now, row_id=row.row_id, quality=0)
    house.twin.values.put(reading.thing_id, reading.kind, name, latest)


async def test_an_object_of_one_unspeakable_name_is_refused_and_subscribers_stay(lamp: House) -> None:
    async with lamp.client("viewer1") as viewer, lamp.client("lights") as lights:
        await viewer.subscribe("things/#")
        await lights.subscribe("inbox/lights/#")
        await lights.publish(TOPIC, {HUGE: 1, "level": 5})

        problem = (await lights.receive_on("inbox/lights/refused")).value
        assert problem["type"] == "urn:skep:error:bad-address"
        assert "1 stored" in problem["detail"]
        assert (await viewer.receive_on("things/lights/lamp/property/level")).value == 5
        assert not viewer.lost.is_set()
    assert values_of(lamp) == {"level"}


async def test_mqtt_5_says_by_reason_code_that_a_name_cannot_be_one(lamp_5: House) -> None:
    async with lamp_5.client("lights", v5=True) as lights:
        with pytest.raises(Refused, match="Topic name invalid"):
            await lights.publish(TOPIC, {HUGE: 1})
    assert not values_of(lamp_5)


@pytest.mark.parametrize("name", ["", "..", "a\nb", "n" * 129, HUGE], ids=lambda name: ascii(name)[:20])
async def test_an_item_of_a_batch_is_rejected_under_a_name_that_cannot_be_one(lamp: House, name: str) -> None:
    def item(name: str) -> dict[str, Any]:
        return {"v": 1, "operation": "publish_property", "thingID": "lamp", "name": name, "data": 1}

    async with lamp.client("lights") as lights:
        await lights.subscribe("inbox/lights/#")
        await lights.publish("agents/lights/batch", [item(name), item("level")])
        result = (await lights.receive_on("inbox/lights/batch")).value
    assert result["stored"] == 1
    assert [(one["index"], one["code"]) for one in result["rejected"]] == [(0, "bad-address")]
    assert values_of(lamp) == {"level"}


@pytest.mark.parametrize("kind", ["event", "property"])
@pytest.mark.parametrize("level", ["..", "%2E", "a%0Ab", "n" * 129])
async def test_a_topic_that_names_what_cannot_be_a_name_is_refused(lamp_5: House, kind: str, level: str) -> None:
    async with lamp_5.client("lights", v5=True) as lights:
        with pytest.raises(Refused, match="Topic name invalid"):
            await lights.publish(f"agents/lights/{kind}/lamp/{level}", 1)
    assert not lamp_5.twin.values.of_thing("dtw:lights:lamp")


@pytest.mark.parametrize("topic_filter", ["things/#", "things/+/+/property/+"])
async def test_a_name_stored_by_an_earlier_version_costs_no_subscriber_its_connection(
    any_engine: EngineType, tmp_path: Path, topic_filter: str
) -> None:
    async with lamp_house(tmp_path / "home", any_engine) as before:
        for name, value in ((HUGE, 1), ("level", 7), ("a\nb", 2), ("temperature", 20.5)):
            await stored_by_an_earlier_version(before, name, value)
        tokens = before.tokens

    async with house(tmp_path / "home", any_engine) as after:
        after.tokens = tokens
        assert values_of(after) == {HUGE, "level", "a\nb", "temperature"}, "what was stored stays readable"
        for v5 in (False, True)[: 1 + (any_engine is ENGINES["native"])]:
            async with after.client("viewer1", v5=v5) as viewer:
                await viewer.subscribe(topic_filter)
                latest = {message.topic.rpartition("/")[2]: message.value for message in await viewer.settle()}
                assert {"level": 7, "temperature": 20.5, "a%0Ab": 2}.items() <= latest.items()
                assert not viewer.lost.is_set()
                async with after.client("lights") as lights:
                    await lights.publish("agents/lights/property/lamp/level", 7)
                assert (await viewer.receive_on("things/lights/lamp/property/level")).value == 7
