"""A first day with a whole runtime: an agent by MQTT, a consumer by HTTP, nothing in between but the real thing."""

from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

from skep import Agent, Consumer
from skep.handlers import AgentRequest
from tests.support import PUMP, skep

pytestmark = pytest.mark.anyio

ENGINES = ["native", "amqtt"]


@pytest.mark.parametrize("engine", ENGINES)
async def test_value_event_and_action_travel_between_mqtt_agent_and_http_consumer(tmp_path: Path, engine: str) -> None:
    async with skep(tmp_path, mqtt={"engine": engine}) as runtime:
        works, ann = await runtime.add("works", "agent"), await runtime.add("ann")
        with anyio.fail_after(30):
            async with (
                Agent(runtime.mqtt, works.name, works.token) as agent,
                Consumer(runtime.http, token=ann.token) as consumer,
            ):
                agent.expose("pump-1", PUMP)

                @agent.action("pump-1", "setSpeed")
                async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
                    await agent.publish("pump-1", "flow", 42.5)
                    await agent.flush()
                    return {"speed": speed}

                await agent.publish("pump-1", "flow", 3.5)
                await agent.flush()
                pump = consumer.thing("dtw:works:pump-1")

                assert await pump.read("flow") == 3.5
                status = await pump.invoke("setSpeed", 3, wait_s=5)
                assert await status.result() == {"speed": 3}
                assert await pump.read("flow") == 42.5


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with skep(tmp_path) as runtime:
        works, ann = await runtime.add("works", "agent"), await runtime.add("ann")
        async with Agent(runtime.mqtt, works.name, works.token) as agent:
            agent.expose("pump-1", PUMP)
            await agent.publish("pump-1", "flow", 7)
            await agent.flush()

    async with skep(tmp_path) as runtime, Consumer(runtime.http, token=ann.token) as consumer:
        assert await consumer.thing("dtw:works:pump-1").read("flow") == 7
