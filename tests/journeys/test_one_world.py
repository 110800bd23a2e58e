"""One world: Things over MQTT and hyperties on the messaging node, each seen by the other, with nothing in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiomqtt
import anyio
import pytest
from pydantic import JsonValue

from skep import Agent, Consumer
from skep.handlers import AgentRequest
from skep.hyperty import Runtime
from tests.support import PUMP, skep
from things.errors import NotFound
from things.records import LedgerQuery

pytestmark = pytest.mark.anyio

PUMP_ADDRESS = "thing://localhost/works/pump-1"


async def until(found: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while True:
            if found():
                return
            await anyio.sleep(0.01)


async def test_thing_published_over_mqtt_is_observed_by_a_hyperty(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        works, ann = await house.add("works", "agent"), await house.add("ann")
        with anyio.fail_after(30):
            async with (
                Agent(house.mqtt, works.name, works.token) as agent,
                Runtime(house.http, token=ann.token) as runtime,
            ):
                agent.expose("pump-1", PUMP)
                await agent.publish("pump-1", "flow", 3.5)
                await agent.flush()

                observer = await runtime.observe(PUMP_ADDRESS)
                assert observer.data["flow"] == 3.5
                await agent.publish("pump-1", "flow", 4.5)
                await until(lambda: observer.data["flow"] == 4.5)

                assert (await runtime.ask(PUMP_ADDRESS, "read", {"attribute": "flow"}))["value"] == 4.5
                with pytest.raises(NotFound):
                    await runtime.ask("thing://localhost/works/unknown", "read")


async def test_hyperty_invokes_an_action_with_the_whole_ledger(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        works, ann = await house.add("works", "agent"), await house.add("ann")
        with anyio.fail_after(30):
            async with Runtime(house.http, token=ann.token) as runtime:
                steps: list[JsonValue] = []
                async with Agent(house.mqtt, works.name, works.token) as agent:
                    agent.expose("pump-1", PUMP)
                    await agent.flush()

                async def invoked() -> None:
                    results.append(
                        await runtime.ask(
                            PUMP_ADDRESS,
                            "execute",
                            {"method": "setSpeed", "params": 3},
                            progress=steps.append,
                        )
                    )

                results: list[dict[str, JsonValue]] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(invoked)
                    await until(lambda: bool(steps))
                    assert isinstance(steps[0], dict)
                    assert steps[0]["state"] == "pending"
                    agent = Agent(house.mqtt, works.name, works.token)
                    agent.expose("pump-1", PUMP)

                    @agent.action("pump-1", "setSpeed")
                    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
                        return {"speed": speed}

                    async with agent:
                        await until(lambda: bool(results))

                value = results[0]["value"]
                assert isinstance(value, dict)
                assert (value["state"], value["output"]) == ("completed", {"speed": 3})
                rows = await house.running.stores.twin.ledger.query(LedgerQuery(limit=10))
                assert [(row.caller, row.name, row.state) for row in rows] == [("ann", "setSpeed", "completed")]


async def test_object_of_a_hyperty_is_a_thing_in_directory_history_and_over_mqtt(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        station, ann = await house.add("station", "agent"), await house.add("ann")
        with anyio.fail_after(30):
            async with (
                Runtime(house.http, token=station.token) as runtime,
                Consumer(house.http, token=ann.token) as consumer,
                aiomqtt.Client(*house.mqtt_address, username=ann.name, password=ann.token) as watcher,
            ):
                await watcher.subscribe("things/station/#", qos=1)
                schema: JsonValue = {"properties": {"temperature": {"type": "number", "unit": "°C"}}}
                reporter = await runtime.report("weather", {"temperature": 20.5}, scheme="ctxt", schema=schema)
                thing = consumer.thing(f"dtw:station:{reporter.url.rpartition('/')[2]}")

                td: Any = await thing.describe()
                assert td["properties"]["temperature"]["unit"] == "°C"
                await reporter.set("temperature", 21.5)
                await reporter.set("wind.speed", 4)
                await until_read(thing.read, "wind", {"speed": 4})
                assert await thing.read("temperature") == 21.5
                asked: JsonValue = {"thingID": thing.id, "kind": "property", "name": "temperature"}
                found = await consumer.call("dtw:history:readings", "readHistory", asked)

                assert isinstance(found, dict)
                items = found["items"]
                assert isinstance(items, list)
                assert [one["value"] for one in items if isinstance(one, dict)] == [20.5, 21.5]
                heard: list[bytes] = []
                async for message in watcher.messages:
                    if message.topic.value.endswith("/temperature"):
                        assert isinstance(message.payload, bytes)
                        heard.append(message.payload)
                    if len(heard) == 2:
                        break
                assert heard == [b"20.5", b"21.5"]


async def test_objects_of_consumers_are_shared_but_no_things(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        ann = await house.add("ann", role="operator")
        async with Runtime(house.http, token=ann.token) as runtime, Runtime(house.http, token=ann.token) as other:
            reporter = await runtime.report("note", {"text": "hi"})
            observer = await other.observe(reporter.url)

            assert observer.data == {"text": "hi"}
            assert not house.running.stores.twin.directory.things_of("ann")


async def until_read(read: object, name: str, value: JsonValue) -> None:
    assert callable(read)
    while True:
        try:
            if await read(name) == value:
                return
        except NotFound:
            pass
        await anyio.sleep(0.02)
