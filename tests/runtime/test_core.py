"""The core as bindings see it: what it takes while it runs, and whom it lets go."""

from pathlib import Path

import anyio
import pytest

from tests.runtime.doubles import agent_principal
from tests.runtime.harness import house
from things.delivery import State
from things.errors import Unavailable

pytestmark = pytest.mark.anyio


async def test_revoking_ends_the_sessions_that_are_covered_and_no_others(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        mill, other = h.agent("mill"), h.agent("other")

        assert h.runtime.revoke(lambda who: who.account == "mill") == 1

        assert (mill.closed_with, other.closed_with) == ("revoked", None)


async def test_requests_after_the_end_are_refused(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        await h.invoke(pump, "setSpeed", 1)

    with pytest.raises(Unavailable):
        await h.invoke(pump, "setSpeed", 2)


async def test_final_status_is_waited_for_or_known(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("mill", "pump")
        agent = h.agent("mill")
        asked = await h.invoke(pump, "setSpeed", 1)
        await h.until(lambda: agent.requests)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: h.report("mill", asked.request_id, state="completed", output=5))
            waited = await h.runtime.final(asked.request_id, 5)

        known = await h.runtime.final(asked.request_id, 0)
        assert waited is not None
        assert known is not None
        assert (waited.state, waited.output, known.output) == (State.COMPLETED, 5, 5)


async def test_presence_follows_who_takes_requests(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        agent = h.agent("mill")
        seen = h.runtime.presence.of("mill")
        assert seen is not None
        assert seen.is_online

        agent.close("gone")

        seen = h.runtime.presence.of(agent_principal("mill").account)
        assert seen is not None
        assert not seen.is_online
