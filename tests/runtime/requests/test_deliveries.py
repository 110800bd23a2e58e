"""Requests on their way to agents: handed over, kept for absent ones, redelivered, answered."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.doubles import principal
from tests.runtime.harness import PUMP, House, house
from things.delivery import State

pytestmark = pytest.mark.anyio


async def test_action_for_a_connected_agent_is_handed_over_and_its_answer_is_final(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")

        first = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: agent.requests)
        request = agent.requests[0]
        agent.acknowledge[request.request_id]()
        await h.report("agent", request.request_id, state="completed", output={"speed": 3})

        final = await h.runtime.final(first.request_id, 1)
        assert first.state is State.PENDING
        assert (request.thing, request.name, request.input, request.caller) == ("pump", "setSpeed", 3, "alice")
        assert final is not None
        assert (final.state, final.output) == (State.COMPLETED, {"speed": 3})


async def test_action_for_an_absent_agent_waits_and_is_delivered_when_it_connects(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = [(await h.invoke(pump, "setSpeed", speed)).request_id for speed in range(5)]

        agent = h.agent("agent")

        await h.until(lambda: len(agent.requests) == 5)
        assert [request.request_id for request in agent.requests] == sent


async def test_a_request_is_handed_over_though_its_caller_left_before_the_commit(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent, caller = h.agent("agent"), h.session(principal("alice"))
        h.runtime.sessions.take_reports(caller)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(h.invoke, pump, "setSpeed", 3)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

        await h.until(lambda: agent.requests and caller.reports)
        assert [status.state for status in caller.reports] == [State.PENDING]


async def test_an_answer_is_passed_on_though_its_agent_left_before_the_commit(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: agent.requests)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: h.report("agent", sent.request_id, state="completed"))
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

        final = await h.runtime.final(sent.request_id, 5)
        assert final is not None
        assert final.state is State.COMPLETED


async def test_queued_action_survives_a_restart(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = await h.invoke(pump, "setSpeed", 3)

    async with house(tmp_path) as h:
        agent = h.agent("agent")

        await h.until(lambda: agent.requests)
        assert agent.requests[0].request_id == sent.request_id


async def test_delivered_action_is_delivered_again_after_a_restart(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: agent.requests)
        await h.report("agent", sent.request_id, state="running", progress=10)

    async with house(tmp_path) as h:
        row = await h.twin.ledger.get(sent.request_id)
        agent = h.agent("agent")

        await h.until(lambda: agent.requests)
        assert row is not None
        assert [step.state for step in row.transitions] == ["pending", "delivered", "running", "pending"]


async def test_unanswered_request_goes_back_when_its_session_ends_and_is_redelivered(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        first = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: first.requests)
        first.acknowledge[sent.request_id]()
        first.close("lost")

        second = h.agent("agent")

        await h.until(lambda: second.requests)
        await h.report("agent", sent.request_id, state="completed")
        row = await h.twin.ledger.get(sent.request_id)
        assert row is not None
        assert row.state is State.COMPLETED
        assert row.attempts == 2


async def test_a_request_spoken_of_before_it_was_offered_again_is_lost_with_its_session(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", PUMP | {"skep:order": "until-ack"})
        sent = [(await h.invoke(pump, "setSpeed", number)).request_id for number in (1, 2)]
        agent = h.agent("agent")
        await h.until(lambda: agent.requests)
        agent.acknowledge[sent[0]]()
        await h.until(lambda: len(agent.requests) == 2)
        agent.acknowledge[sent[1]]()
        await _until_waiting(h, 0)
        h.runtime.sessions.closed(agent)
        await _until_waiting(h, 2)

        agent = h.agent("agent")
        await h.until(lambda: agent.requests)
        await h.report("agent", sent[1], state="running")
        h.runtime.sessions.closed(agent)
        await _until_waiting(h, 2)
        agent = h.agent("agent")
        await h.until(lambda: agent.requests)
        agent.acknowledge[sent[0]]()

        await h.until(lambda: len(agent.requests) == 2)
        assert [request.request_id for request in agent.requests] == sent


async def _until_waiting(h: House, count: int) -> None:
    """Until so many requests wait for the agent."""
    with anyio.fail_after(30):
        while len(await h.twin.ledger.waiting("agent", limit=10)) != count:  # noqa: ASYNC110 - in the database
            await anyio.sleep(0.002)


async def test_requests_of_a_lost_session_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = [(await h.invoke(pump, "setSpeed", number)).request_id for number in range(5)]
        await h.until(lambda: len(agent.requests) == 5)
        for request_id in sent:
            agent.acknowledge[request_id]()
        await _until_waiting(h, 0)
        monkeypatch.setattr(h.twin.ledger, "advance", _all_of(5, h.twin.ledger.advance))

        h.runtime.sessions.closed(agent)

        await _until_waiting(h, 5)
        assert [row.request_id for row in await h.twin.ledger.waiting("agent", limit=10)] == sent


def _all_of(count: int, advance: Callable[..., Awaitable[Any]]) -> "Callable[..., asyncio.Future[Any]]":
    """Lets none through before so many have come."""
    come, all_there = 0, anyio.Event()

    async def together(*given: Any, **more: Any) -> Any:
        nonlocal come
        come += 1
        if come == count:
            all_there.set()
        await all_there.wait()
        return await advance(*given, **more)

    return lambda *given, **more: asyncio.ensure_future(together(*given, **more))
