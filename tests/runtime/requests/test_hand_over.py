"""How a request ends that was handed over and never acknowledged, and one of which nothing left the process."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.harness import PUMP, House, house
from things.delivery import Reason, State
from things.records import LedgerRow

pytestmark = pytest.mark.anyio

BRIEF_S = 0.3


async def ended(h: House, request_id: str) -> LedgerRow:
    assert await h.runtime.final(request_id, 10) is not None
    row = await h.twin.ledger.get(request_id)
    assert row is not None
    return row


async def standing(h: House, request_id: str) -> tuple[State, int]:
    row = await h.twin.ledger.get(request_id)
    assert row is not None
    return row.state, row.attempts


async def test_a_request_that_its_agent_took_and_never_acknowledged_ends_as_timeout(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 3, expires_in_s=BRIEF_S)
        await h.until(lambda: agent.requests)
        agent.close("lost")

        row = await ended(h, sent.request_id)

    assert (row.state, row.reason, row.attempts) == (State.FAILED, Reason.TIMEOUT, 1)
    assert row.error is not None
    assert "the device may have acted" in row.error


async def test_the_hand_over_is_on_disk_before_the_agent_has_the_request(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        lane = await h.publish_td("agent", "lane", PUMP | {"skep:order": "until-response"})
        waited = [(await h.invoke(thing, "setSpeed", 1)).request_id for thing in (pump, lane, lane)]
        agent = h.agent("agent")
        await h.until(lambda: len(agent.requests) == 2)
        at_once = (await h.invoke(pump, "setSpeed", 2)).request_id
        await h.until(lambda: len(agent.requests) == 3)

        assert [await standing(h, one) for one in (*waited, at_once)] == [
            (State.PENDING, 1),
            (State.PENDING, 1),
            (State.PENDING, 0),  # held back by the one before
            (State.PENDING, 1),
        ]
        await h.report("agent", waited[1], state="completed")
        await h.until(lambda: len(agent.requests) == 4)
        assert await standing(h, waited[2]) == (State.PENDING, 1)


async def test_a_runtime_that_ended_meanwhile_knows_what_was_handed_over(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent", room=1)
        handed = await h.invoke(pump, "setSpeed", 3, expires_in_s=BRIEF_S)
        kept = await h.invoke(pump, "setSpeed", 4, expires_in_s=BRIEF_S)
        await h.until(lambda: agent.requests and agent.refused)
        with anyio.fail_after(30):
            while (await standing(h, kept.request_id))[1]:  # noqa: ASYNC110 - its hand-over is being taken back
                await anyio.sleep(0.002)

    async with house(tmp_path) as h:
        ends = [await ended(h, one.request_id) for one in (handed, kept)]

    assert [(row.reason, row.attempts) for row in ends] == [(Reason.TIMEOUT, 1), (Reason.EXPIRED, 0)]


async def test_what_a_full_session_left_ends_as_expired(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = [(await h.invoke(pump, "setSpeed", 1, expires_in_s=1.0)).request_id for _ in range(30)]
        agent = h.agent("agent", room=20)
        await h.until(lambda: len(agent.requests) == 20)

        ends = [await ended(h, one) for one in sent]

    assert [row.reason for row in ends] == [Reason.TIMEOUT] * 20 + [Reason.EXPIRED] * 10
    assert [row.attempts for row in ends] == [1] * 20 + [0] * 10


async def test_what_was_stored_for_an_agent_that_left_during_the_commit_ends_as_expired(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        async with anyio.create_task_group() as tasks:
            sent = {}

            async def ask() -> None:
                sent["it"] = await h.invoke(pump, "setSpeed", 3, expires_in_s=BRIEF_S)

            tasks.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            agent.close("lost")

        row = await ended(h, sent["it"].request_id)

    assert not agent.requests
    assert (row.reason, row.attempts) == (Reason.EXPIRED, 0)


async def test_every_hand_over_is_counted(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = await h.invoke(pump, "setSpeed", 3)
        for number in range(1, 4):
            agent = h.agent("agent")
            await h.until(lambda agent=agent: agent.requests)
            if number == 2:
                agent.acknowledge[sent.request_id]()
            assert (await standing(h, sent.request_id))[1] == number
            agent.close("lost")


async def test_a_cancel_says_that_the_device_may_have_acted_where_it_may(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        waiting = await h.invoke(pump, "setSpeed", 3)
        unsaid = await h.cancel(waiting.request_id)
        agent = h.agent("agent")
        handed = await h.invoke(pump, "setSpeed", 3)
        await h.until(lambda: agent.requests)
        said = await h.cancel(handed.request_id)

    assert (unsaid.state, unsaid.error) == (State.CANCELLED, None)
    assert said.state is State.CANCELLED
    assert said.error is not None
    assert "the device may have acted" in said.error


async def test_a_newer_write_leaves_an_older_one_that_may_have_been_carried_out(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        older = await h.write(pump, "target", 1)
        await h.until(lambda: agent.requests)
        agent.close("lost")
        newer = await h.write(pump, "target", 2)
        newest = await h.write(pump, "target", 3)

        assert await standing(h, older.request_id) == (State.PENDING, 1)
        assert await standing(h, newer.request_id) == (State.CANCELLED, 0)
        again = h.agent("agent")
        await h.until(lambda: len(again.requests) == 2)
        assert [request.request_id for request in again.requests] == [older.request_id, newest.request_id]
