"""Calls: answered by a connected agent or refused, never queued."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from gateway.config import Config
from tests.runtime.doubles import principal
from tests.runtime.harness import house
from things.delivery import Reason, State
from things.errors import (
    NotConnected,
)

pytestmark = pytest.mark.anyio


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
