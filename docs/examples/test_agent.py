"""Tests of an agent without a gateway: pytest_plugins may as well stand in conftest.py. Run it with pytest."""

import asyncio

import pytest

from skep import Agent, AgentFailed, AgentRequest, Invalid, Refused
from skep.testing import Gateway

pytest_plugins = ["skep.testing.fixtures"]

TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {"speed": {"type": "number", "readOnly": True}},
    "actions": {"setSpeed": {"input": {"type": "number", "maximum": 100}}},
}


def a_pump(url: str, secret: str) -> Agent:
    agent = Agent(url, "pumps", secret)
    agent.expose("pump-1", TD)

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: float, request: AgentRequest) -> float:
        if speed > 90:
            raise Refused("the bearing is worn")
        await agent.publish("pump-1", "speed", speed)
        return speed

    return agent


def test_pump_sets_its_speed_and_says_so(skep_gateway: Gateway) -> None:
    async def test() -> None:
        async with skep_gateway as gateway, a_pump(gateway.url, gateway.secret) as agent:
            assert await gateway.invoke("pump-1", "setSpeed", 42) == 42
            await agent.flush()
            assert gateway.values("pump-1", "speed") == [42]

    asyncio.run(test())


def test_pump_spares_its_bearing(skep_gateway: Gateway) -> None:
    async def test() -> None:
        async with skep_gateway as gateway, a_pump(gateway.url, gateway.secret):
            with pytest.raises(AgentFailed, match="the bearing is worn"):
                await gateway.invoke("pump-1", "setSpeed", 95)
            with pytest.raises(Invalid):  # never reaches the agent
                await gateway.invoke("pump-1", "setSpeed", 101)

    asyncio.run(test())
