"""One contract for every pair of consumer binding and agent binding."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.bindings.websocket.peers import web_thing_agent
from tests.journeys.peers import (
    AgentPeer,
    ConsumerPeer,
    final,
    http_agent,
    http_consumer,
    mqtt_agent,
    mqtt_consumer,
)
from tests.support import PUMP, Account, Skep, skep

pytestmark = pytest.mark.anyio

AGENTS: dict[str, Callable[[Skep, Account], AbstractAsyncContextManager[AgentPeer]]] = {
    "mqtt": mqtt_agent,
    "sse": http_agent,
    "poll": partial(http_agent, polls=True),
    "websocket": web_thing_agent,
}
CONSUMERS: dict[str, Callable[[Skep, Account], AbstractAsyncContextManager[ConsumerPeer]]] = {
    "mqtt": mqtt_consumer,
    "http": http_consumer,
}
THING = "dtw:works:pump-1"


@pytest.fixture(params=[f"{consumer}-{agent}" for consumer in CONSUMERS for agent in AGENTS])
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    consumer, agent = str(request.param).split("-")
    return consumer, agent


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, http={"poll_interval_s": 0.5}) as running:
        yield running


class _Pair:
    """Accounts and ways to connect."""

    def __init__(self, runtime: Skep, pair: tuple[str, str], works: Account, ann: Account) -> None:
        self.runtime = runtime
        self._pair = pair
        self._works, self._ann = works, ann

    def agent(self) -> AbstractAsyncContextManager[AgentPeer]:
        return AGENTS[self._pair[1]](self.runtime, self._works)

    async def reachable(self, wanted: bool) -> None:
        """Until the agent takes requests, or no longer does."""
        with anyio.fail_after(30):
            while self.runtime.running.runtime.deliveries.is_reachable("works") != wanted:  # noqa: ASYNC110
                await anyio.sleep(0.01)

    def consumer(self) -> AbstractAsyncContextManager[ConsumerPeer]:
        return CONSUMERS[self._pair[0]](self.runtime, self._ann)


@pytest.fixture
async def sides(runtime: Skep, pair: tuple[str, str]) -> _Pair:
    works = await runtime.add("works", "agent")
    ann = await runtime.add("ann", role="manager")
    found = _Pair(runtime, pair, works, ann)
    async with found.agent() as agent:
        await agent.describe("pump-1", PUMP)
    return found


async def test_action_is_carried_out_with_every_status_reported(sides: _Pair) -> None:
    async with sides.agent() as agent, sides.consumer() as ann:
        await ann.invoke(THING, "setSpeed", 3, "r-1")
        request = await agent.asked()
        await agent.report(request.request_id, state="running", progress=50)
        await agent.report(request.request_id, state="completed", output={"speed": 3})

        statuses = await final(ann, "r-1")

    assert (request.operation, request.thing, request.name, request.input) == ("action", "pump-1", "setSpeed", 3)
    assert statuses[-1]["state"] == "completed"
    assert statuses[-1]["output"] == {"speed": 3}
    assert [s["progress"] for s in statuses if s["state"] == "running"] == [50]
    numbers = [s["seq"] for s in statuses]
    assert numbers == sorted(set(numbers))


async def test_property_write_reaches_the_agent_and_its_refusal_reaches_the_consumer(sides: _Pair) -> None:
    async with sides.agent() as agent, sides.consumer() as ann:
        await ann.write(THING, "target", 12.5, "w-1")
        request = await agent.asked()
        await agent.report(request.request_id, state="completed", error="valve stuck")

        statuses = await final(ann, "w-1")

    assert (request.operation, request.name, request.input) == ("property", "target", 12.5)
    assert statuses[-1]["state"] == "completed"
    assert statuses[-1]["error"] == "valve stuck"


async def test_action_waits_for_an_absent_agent_and_is_delivered_at_connect(sides: _Pair) -> None:
    async with sides.consumer() as ann:
        for number in range(3):
            await ann.invoke(THING, "setSpeed", number, f"r-{number}")
        async with sides.agent() as agent:
            inputs = []
            for _ in range(3):
                request = await agent.asked()
                inputs.append(request.input)
                await agent.report(request.request_id, state="completed")
            statuses = await final(ann, "r-2")

    assert inputs == [0, 1, 2]
    assert statuses[-1]["state"] == "completed"


async def test_rpc_is_answered_or_refused_at_once(sides: _Pair) -> None:
    async with sides.consumer() as ann:
        await sides.reachable(False)  # a polling agent counts as connected for its interval
        refused = await ann.call(THING, "setSpeed", 3, "c-1")
        async with sides.agent() as agent:
            await sides.reachable(True)
            answers: list[dict[str, Any]] = []
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    answers.append(await ann.call(THING, "setSpeed", 4, "c-2"))

                tasks.start_soon(call)
                request = await agent.asked()
                await agent.report(request.request_id, state="completed", output="fast")

    assert refused["reason"] == "not-connected"
    assert request.operation == "rpc"
    assert answers[0]["output"] == "fast"


async def test_cancel_reaches_the_agent_that_has_the_request(sides: _Pair) -> None:
    async with sides.agent() as agent, sides.consumer() as ann:
        await ann.invoke(THING, "setSpeed", 3, "r-1")
        request = await agent.asked()
        await agent.report(request.request_id, state="running")
        await ann.cancel("r-1")
        told = await agent.asked()
        await agent.report(request.request_id, state="cancelled")

        statuses = await final(ann, "r-1")

    assert (told.operation, told.request_id) == ("cancel", request.request_id)
    assert statuses[-1]["state"] == "cancelled"


@pytest.mark.parametrize(
    ("thing", "name", "data", "code"),
    [
        ("dtw:works:nothing", "setSpeed", 3, "unknown-thing"),
        (THING, "fly", 3, "unknown-name"),
        (THING, "setSpeed", "fast", "invalid"),
        (THING, "setSpeed", 11, "invalid"),
    ],
)
async def test_request_that_cannot_be_is_refused_with_its_code_and_leaves_no_row(
    sides: _Pair, thing: str, name: str, data: Any, code: str
) -> None:
    async with sides.consumer() as ann:
        await ann.invoke(thing, name, data, "bad")

        statuses = await final(ann, "bad")

    assert statuses[-1]["reason"] == code
    assert await sides.runtime.running.stores.twin.ledger.by_reference("ann", "bad") is None
