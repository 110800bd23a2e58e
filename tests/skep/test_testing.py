"""The gateway for users' tests: what it shows, asks and refuses, and that it can be entered from anywhere."""

import asyncio
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

from skep import (
    Agent,
    AgentFailed,
    AgentRequest,
    Forbidden,
    Invalid,
    Refused,
    Rejected,
    TimedOut,
    Unauthenticated,
    Unavailable,
    UnknownName,
    UnknownThing,
)
from skep.testing import Gateway
from things.samples import sample_td

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent.parent


def an_agent(gateway: Gateway) -> Agent:
    agent = Agent(gateway.url, "climate", gateway.secret)
    agent.expose("room-1", sample_td("room-climate"))
    agent.expose("pump-1", sample_td("pump-station"))

    @agent.write("room-1", "setPoint")
    async def set_point(value: JsonValue, request: AgentRequest) -> JsonValue:
        await agent.publish("room-1", "setPoint", value)
        return None

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: float, request: AgentRequest) -> JsonValue:
        if speed == 13:
            raise Refused("not this one")
        if speed == 14:
            raise Forbidden("nor this one")
        return speed

    return agent


async def test_what_an_agent_says_is_seen() -> None:
    async with Gateway() as gateway, an_agent(gateway) as agent:
        await agent.publish("pump-1", "flow", 1)
        await agent.publish("pump-1", "flow", 2)
        await agent.event("pump-1", "alarm", {"reason": "pressure"})
        await agent.flush()
        standing = sorted(gateway.tds)
        agent.withdraw("room-1")
        await agent.flush()

    assert standing == ["pump-1", "room-1"]
    assert gateway.tds["pump-1"].title == "Pump station"
    assert "room-1" not in gateway.tds
    assert gateway.values("pump-1", "flow") == [1, 2]
    assert gateway.events("pump-1", "alarm") == [{"reason": "pressure"}]


async def test_agent_is_asked_as_by_a_runtime() -> None:
    async with Gateway() as gateway, an_agent(gateway) as agent:
        assert await gateway.invoke("pump-1", "setSpeed", 30) == 30
        assert await gateway.call("pump-1", "setSpeed", 30) == 30
        assert await gateway.write("room-1", "setPoint", 21.5) is None
        await agent.flush()

        assert gateway.values("room-1", "setPoint") == [21.5]
        with pytest.raises(AgentFailed, match="not this one"):
            await gateway.invoke("pump-1", "setSpeed", 13)
        with pytest.raises(Forbidden, match="nor this one"):
            await gateway.invoke("pump-1", "setSpeed", 14)
        with pytest.raises(Rejected):
            await gateway.invoke("pump-1", "stop")


async def test_what_a_runtime_would_refuse_never_reaches_the_agent() -> None:
    async with Gateway() as gateway, an_agent(gateway):
        await gateway.takes_requests()
        with pytest.raises(UnknownThing, match="did you mean 'pump-1'"):
            await gateway.invoke("pump1", "setSpeed", 1)
        with pytest.raises(UnknownName):
            await gateway.invoke("pump-1", "fly")
        with pytest.raises(Invalid):
            await gateway.invoke("pump-1", "setSpeed", "fast")
        with pytest.raises(Invalid):
            await gateway.invoke("pump-1", "setSpeed")
        with pytest.raises(Invalid):
            await gateway.write("pump-1", "flow", 1)

    assert gateway.acknowledged == []


async def test_value_that_is_sent_again_after_a_lost_connection_is_counted_once() -> None:
    async with Gateway() as gateway, an_agent(gateway) as agent:
        await gateway.takes_requests()
        gateway.hold = asyncio.Event()
        await agent.publish("pump-1", "flow", 1)
        await gateway.until(gateway.readings)
        gateway.drop()
        gateway.hold = None
        await agent.flush()

        assert len(gateway.readings()) == 2
        assert gateway.values("pump-1", "flow") == [1]


async def test_waiting_ends_in_time_and_wrong_secrets_are_refused() -> None:
    async with Gateway() as gateway:
        with pytest.raises(TimedOut):
            await gateway.until(lambda: False, 0.01)
        with pytest.raises(Unauthenticated):
            async with Agent(gateway.url, "pumps", "wrong"):
                pytest.fail("was let in")

    with pytest.raises(Unavailable, match="async with gateway"):
        _ = gateway.url


async def test_gateway_may_be_left_in_another_task_than_it_was_entered_in() -> None:
    gateway = Gateway()
    with anyio.fail_after(30):
        await asyncio.create_task(gateway.start())
        async with an_agent(gateway):
            pass
        await asyncio.create_task(gateway.stop())
        await gateway.start()  # and serve again
        await gateway.stop()


def test_example_of_a_users_test_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_agent.py"],
        cwd=ROOT / "docs" / "examples",
        capture_output=True,
        text=True,
        timeout=90,
    )

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
