"""What waits in the ledger goes out in its order, as sessions and the Thing's policy let it."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.harness import PUMP, house

pytestmark = pytest.mark.anyio


async def test_requests_during_a_backlog_keep_their_order(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = [(await h.invoke(pump, "setSpeed", 1)).request_id for _ in range(450)]
        agent = h.agent("agent")
        sent += [(await h.invoke(pump, "setSpeed", 2)).request_id for _ in range(50)]

        await h.until(lambda: len(agent.requests) == 500)
        assert [request.request_id for request in agent.requests] == sent


async def test_a_full_session_gets_the_rest_when_it_drains(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent", room=3)
        sent = [(await h.invoke(pump, "setSpeed", 1)).request_id for _ in range(10)]

        agent.room = 4
        h.runtime.sessions.drained(agent)
        await h.until(lambda: len(agent.requests) == 7)
        agent.room = None
        h.runtime.sessions.drained(agent)

        await h.until(lambda: len(agent.requests) == 10)
        assert [request.request_id for request in agent.requests] == sent


async def test_until_response_hands_over_one_request_of_a_thing_at_a_time(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", PUMP | {"skep:order": "until-response"})
        sent = [(await h.invoke(pump, "setSpeed", 1)).request_id for _ in range(5)]
        agent = h.agent("agent")
        sent.append((await h.invoke(pump, "setSpeed", 2)).request_id)

        for number in range(6):
            await h.until(lambda number=number: len(agent.requests) == number + 1)
            await anyio.lowlevel.checkpoint()
            assert len(agent.requests) == number + 1
            await h.report("agent", agent.requests[-1].request_id, state="completed")
        assert [request.request_id for request in agent.requests] == sent


async def test_until_ack_hands_over_the_next_when_the_agent_has_the_one_before(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", PUMP | {"skep:order": "until-ack"})
        other = await h.publish_td("agent", "other")
        agent = h.agent("agent")
        first = (await h.invoke(pump, "setSpeed", 1)).request_id
        second = (await h.invoke(pump, "setSpeed", 2)).request_id
        elsewhere = (await h.invoke(other, "setSpeed", 3)).request_id
        await h.until(lambda: len(agent.requests) == 2)
        assert [request.request_id for request in agent.requests] == [first, elsewhere]

        agent.acknowledge[first]()

        await h.until(lambda: len(agent.requests) == 3)
        assert agent.requests[-1].request_id == second


async def test_a_request_that_ends_while_the_queue_is_read_is_not_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        taken_back, kept = await h.invoke(pump, "setSpeed", 1), await h.invoke(pump, "setSpeed", 2)
        read, go_on = anyio.Event(), anyio.Event()
        waiting = h.twin.ledger.waiting

        async def slow(*given: Any, **more: Any) -> Any:
            page = await waiting(*given, **more)
            read.set()
            await go_on.wait()
            return page

        monkeypatch.setattr(h.twin.ledger, "waiting", slow)
        agent = h.agent("agent")
        await read.wait()
        await h.cancel(taken_back.request_id)
        go_on.set()

        await h.until(lambda: agent.requests)
        assert [request.request_id for request in agent.requests] == [kept.request_id]


async def test_an_agents_first_word_lets_the_next_request_go_like_its_acknowledgement(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", PUMP | {"skep:order": "until-ack"})
        agent = h.agent("agent")
        first = await h.invoke(pump, "setSpeed", 1)
        second = await h.invoke(pump, "setSpeed", 2)
        await h.until(lambda: agent.requests)

        await h.report("agent", first.request_id, state="running")
        agent.acknowledge[first.request_id]()

        await h.until(lambda: len(agent.requests) == 2)
        assert agent.requests[1].request_id == second.request_id
