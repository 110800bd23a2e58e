"""What becomes of a request before it goes to its agent, and what may be said of it: bounds, references, cancelling."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from gateway.config import Config
from tests.runtime.doubles import principal
from tests.runtime.harness import PUMP, house
from things.delivery import Reason, State
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


async def test_action_that_the_thing_never_queues_is_refused_while_its_agent_is_away(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")

        with pytest.raises(NotConnected):
            await h.invoke(pump, "now", None)

        agent = h.agent("agent")
        await h.invoke(pump, "now", None)
        await h.until(lambda: agent.requests)


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
