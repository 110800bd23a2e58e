"""Requests on their way to agents: order, queueing, redelivery, expiry, cancelling, statuses."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from gateway.config import Config
from runtime.clocks import wall_clock
from tests.runtime.doubles import principal
from tests.runtime.harness import PUMP, House, house
from things.delivery import DeliveryStatus, Reason, State
from things.errors import (
    Conflict,
    Forbidden,
    IllegalStatus,
    Invalid,
    NotConnected,
    QueueFull,
    UnknownName,
    UnknownRequest,
    UnknownThing,
)
from things.identity import Role
from things.messages import Operation

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


async def test_action_that_the_thing_never_queues_is_refused_while_its_agent_is_away(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")

        with pytest.raises(NotConnected):
            await h.invoke(pump, "now", None)

        agent = h.agent("agent")
        await h.invoke(pump, "now", None)
        await h.until(lambda: agent.requests)


async def test_request_expires_on_time_without_anybody_connecting(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = await h.invoke(pump, "brief", None)

        final = await h.runtime.final(sent.request_id, 1.3)

        assert final is not None
        assert (final.state, final.reason) == (State.FAILED, Reason.EXPIRED)
        agent = h.agent("agent")
        await anyio.sleep(0.05)
        assert agent.requests == []


async def test_a_request_may_shorten_its_expiry_but_never_lengthen_it(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")

        short = await h.invoke(pump, "setSpeed", 1, expires_in_s=0.2)
        long = await h.invoke(pump, "brief", None, expires_in_s=3_000)

        for sent in (short, long):
            final = await h.runtime.final(sent.request_id, 1.3)
            assert final is not None
            assert final.reason is Reason.EXPIRED


@pytest.mark.parametrize("expires", [-1.0, 1e12, float("nan")])
async def test_absurd_expiry_is_refused(tmp_path: Path, expires: float) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")

        with pytest.raises(Invalid):
            await h.invoke(pump, "setSpeed", 1, expires_in_s=expires)


async def test_agent_that_never_answers_ends_as_timeout(tmp_path: Path) -> None:
    td = PUMP | {"actions": {"slow": {"skep:deadline": 0.3}}}
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", td)
        agent = h.agent("agent")
        sent = await h.invoke(pump, "slow", None)
        await h.until(lambda: agent.requests)
        agent.acknowledge[sent.request_id]()

        final = await h.runtime.final(sent.request_id, 2)

        assert final is not None
        assert (final.state, final.reason) == (State.FAILED, Reason.TIMEOUT)


async def test_same_reference_is_the_same_request_and_other_content_a_conflict(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        first = await h.invoke(pump, "setSpeed", 1, correlation="r1")

        again = await h.invoke(pump, "setSpeed", 1, correlation="r1")
        other = await h.invoke(pump, "setSpeed", 1, correlation="r1", caller="bob")

        assert again.request_id == first.request_id
        assert other.request_id != first.request_id
        with pytest.raises(Conflict):
            await h.invoke(pump, "setSpeed", 2, correlation="r1")


async def test_newer_property_write_supersedes_a_queued_one(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        first = await h.write(pump, "target", 1)
        second = await h.write(pump, "target", 2)

        old = await h.runtime.final(first.request_id, 1)
        agent = h.agent("agent")
        await h.until(lambda: agent.requests)

        assert old is not None
        assert (old.state, old.reason) == (State.CANCELLED, Reason.SUPERSEDED)
        assert [request.request_id for request in agent.requests] == [second.request_id]


async def test_cancel_before_delivery_removes_the_request(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = await h.invoke(pump, "setSpeed", 1)

        cancelled = await h.cancel(sent.request_id)

        agent = h.agent("agent")
        await anyio.sleep(0.05)
        assert cancelled.state is State.CANCELLED
        assert agent.requests == []
        with pytest.raises(Conflict):
            await h.cancel(sent.request_id)


async def test_cancel_after_delivery_is_passed_to_the_agent(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 1)
        await h.until(lambda: agent.requests)
        await h.report("agent", sent.request_id, state="running")

        standing = await h.cancel(sent.request_id)

        assert standing.state is State.RUNNING
        assert [request.operation for request in agent.requests] == ["invoke_action", "cancel"]
        done = await h.report("agent", sent.request_id, state="cancelled")
        assert done.state is State.CANCELLED


async def test_somebody_elses_request_cannot_be_cancelled_but_a_manager_can(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = await h.invoke(pump, "setSpeed", 1)

        with pytest.raises(UnknownRequest):
            await h.cancel(sent.request_id, caller="mallory")
        status = await h.cancel(sent.request_id, caller="boss", role=Role.MANAGER)

        assert status.state is State.CANCELLED


async def test_queue_is_bounded_per_agent_and_per_caller(tmp_path: Path) -> None:
    config = Config.of({"requests": {"max_waiting_per_agent": 3, "max_waiting_per_caller": 2}})
    async with house(tmp_path, config) as h:
        pump = await h.publish_td("agent", "pump")
        for _ in range(2):
            await h.invoke(pump, "setSpeed", 1)
        with pytest.raises(QueueFull, match="alice"):
            await h.invoke(pump, "setSpeed", 1)
        third = await h.invoke(pump, "setSpeed", 1, caller="bob")
        with pytest.raises(QueueFull, match="agent"):
            await h.invoke(pump, "setSpeed", 1, caller="bob")

        await h.cancel(third.request_id, caller="bob")

        await h.invoke(pump, "setSpeed", 1, caller="bob")


@pytest.mark.parametrize("state", ["pending", "delivered", "flying", None])
async def test_agent_cannot_report_a_state_that_is_not_its_to_report(tmp_path: Path, state: str | None) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 1)

        with pytest.raises(Invalid):
            await h.report("agent", sent.request_id, state=state)


async def test_foreign_unknown_and_late_statuses_are_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        h.agent("agent")
        sent = await h.invoke(pump, "setSpeed", 1)

        with pytest.raises(UnknownRequest):
            await h.report("mallory", sent.request_id, state="completed")
        with pytest.raises(UnknownRequest):
            await h.report("agent", "01890000-0000-7000-8000-000000000000", state="completed")
        await h.report("agent", sent.request_id, state="completed", output=1)
        with pytest.raises(IllegalStatus):
            await h.report("agent", sent.request_id, state="failed")

        row = await h.twin.ledger.get(sent.request_id)
        assert row is not None
        assert [step.state for step in row.transitions] == ["pending", "delivered", "completed"]


async def test_every_status_reaches_the_callers_sessions_in_order_and_none_elsewhere(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        alice, bob = h.session(principal("alice")), h.session(principal("bob"))
        for session in (alice, bob):
            h.runtime.sessions.take_reports(session)
        sent = await h.invoke(pump, "setSpeed", 1)
        await h.until(lambda: agent.requests)
        for progress in (10, 50, 90):
            await h.report("agent", sent.request_id, state="running", progress=progress)
        await h.report("agent", sent.request_id, state="completed")

        await h.until(lambda: alice.reports and alice.reports[-1].is_final)
        assert [s.state for s in alice.reports] == [
            "pending",
            "delivered",
            "running",
            "running",
            "running",
            "completed",
        ]
        assert alice.reports == await h.twin.ledger.inbox("alice", after=0, limit=10)
        assert bob.reports == []


async def test_missed_statuses_are_replayed_after_the_last_one_seen_and_none_twice(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        h.agent("agent")
        sent = [await h.invoke(pump, "setSpeed", 1) for _ in range(300)]
        for status in sent[:150]:
            await h.report("agent", status.request_id, state="completed")
        known = sent[0].seq
        alice = h.session(principal("alice"))

        h.runtime.sessions.take_reports(alice, after=known)
        for status in sent[150:]:
            await h.report("agent", status.request_id, state="completed")

        await h.until(lambda: sum(s.is_final for s in alice.reports) == 300)
        numbers = [s.seq for s in alice.reports]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > known


async def test_a_slow_caller_catches_up_from_the_ledger(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        alice = h.session(principal("alice"), room=2)
        h.runtime.sessions.take_reports(alice)
        sent = [await h.invoke(pump, "setSpeed", 1) for _ in range(20)]
        assert len(alice.reports) == 2

        alice.room = None
        h.runtime.sessions.drained(alice)

        await h.until(lambda: len(alice.reports) == 20)
        assert [s.request_id for s in alice.reports] == [s.request_id for s in sent]


async def test_rpc_is_answered_by_a_connected_agent(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        agent.on_request = None
        called = await h.call(pump, "setSpeed", 4)
        await h.report("agent", agent.requests[0].request_id, state="completed", output="ok")

        final = await h.runtime.final(called.request_id, 1)

        assert final is not None
        assert (final.state, final.output) == (State.COMPLETED, "ok")
        assert await h.twin.ledger.get(called.request_id) is None


async def test_rpc_is_never_queued(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")

        with pytest.raises(NotConnected):
            await h.call(pump, "setSpeed", 4)

        agent = h.agent("agent")
        await anyio.sleep(0.05)
        assert agent.requests == []


async def test_rpc_fails_when_the_agent_leaves_or_is_late(tmp_path: Path) -> None:
    config = Config.of({"requests": {"rpc_deadline_s": 0.2}})
    async with house(tmp_path, config) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        late = await h.call(pump, "setSpeed", 4)
        timed_out = await h.runtime.final(late.request_id, 2)
        lost = await h.call(pump, "setSpeed", 4)
        agent.close("lost")
        gone = await h.runtime.final(lost.request_id, 2)

        assert timed_out is not None
        assert gone is not None
        assert (timed_out.reason, gone.reason) == (Reason.TIMEOUT, Reason.NOT_CONNECTED)


async def test_rpc_answers_go_to_the_asking_session_only(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        one, other = h.session(principal("alice")), h.session(principal("alice"))
        await h.call(pump, "setSpeed", 4, session=one.session_id)
        await h.report("agent", agent.requests[0].request_id, state="completed")

        assert [s.state for s in one.reports] == [State.COMPLETED]
        assert other.reports == []


async def test_bad_requests_leave_the_ledger_unchanged(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")

        with pytest.raises(UnknownThing):
            await h.invoke("dtw:agent:nothing", "setSpeed", 1)
        with pytest.raises(UnknownName):
            await h.invoke(pump, "fly", 1)
        with pytest.raises(Invalid):
            await h.invoke(pump, "setSpeed", "fast")
        with pytest.raises(Invalid):
            await h.write(pump, "flow", 1)
        with pytest.raises(Forbidden):
            await h.runtime.handle(
                h.message(Operation.INVOKE_ACTION, principal("nobody", Role.NONE), pump, "setSpeed", 1)
            )

        assert await h.twin.ledger.waiting("agent", limit=10) == []


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


async def test_a_write_on_its_way_to_the_agent_is_not_superseded(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", PUMP | {"skep:order": "until-response"})
        agent = h.agent("agent")
        handed = await h.write(pump, "target", 1)
        await h.until(lambda: agent.requests)
        held_back = await h.write(pump, "target", 2)
        newest = await h.write(pump, "target", 3)

        await h.report("agent", handed.request_id, state="completed")
        await h.until(lambda: len(agent.requests) == 2)
        replaced = await h.runtime.final(held_back.request_id, 1)

        assert [request.request_id for request in agent.requests] == [handed.request_id, newest.request_id]
        assert replaced is not None
        assert replaced.reason is Reason.SUPERSEDED


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


async def test_requests_that_expire_at_once_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = wall_clock()
    async with house(tmp_path, steady=lambda: now) as h:
        pump = await h.publish_td("agent", "pump")
        sent = [await h.invoke(pump, "brief", None) for _ in range(5)]
        together = _all_of(5, h.twin.ledger.advance)
        monkeypatch.setattr(h.twin.ledger, "advance", together)

        now += 1_000_000
        h.runtime._due_changed(0)

        for one in sent:
            final = await h.runtime.final(one.request_id, 5)
            assert final is not None
            assert final.reason is Reason.EXPIRED


async def test_requests_that_come_and_end_in_time_cost_no_look_at_the_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        due = h.twin.ledger.due

        async def noted(now: int, *, limit: int) -> Any:
            looks.append(now)
            return await due(now, limit=limit)

        monkeypatch.setattr(h.twin.ledger, "due", noted)
        for number in range(10):
            sent = await h.invoke(pump, "setSpeed", number)
            await h.until(lambda: len(agent.requests) > number)  # noqa: B023 - awaited here
            for state in ("running", "completed"):
                await h.report("agent", sent.request_id, state=state)

    assert not looks


async def test_a_request_that_comes_while_the_clocks_are_read_expires_on_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        next_due = h.twin.ledger.next_due
        sent: list[DeliveryStatus] = []

        async def overtaken() -> int | None:
            first = await next_due()
            if not sent:
                sent.append(await h.invoke(pump, "brief", None))
            return first

        monkeypatch.setattr(h.twin.ledger, "next_due", overtaken)
        h.runtime._due_changed(0)
        await h.until(lambda: sent)

        final = await h.runtime.final(sent[0].request_id, 5)
        assert final is not None
        assert final.reason is Reason.EXPIRED


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
