"""What a batch does once it is stored, whatever becomes of who sent it."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.doubles import agent_principal
from tests.runtime.harness import house
from things.addresses import Kind
from things.messages import Operation

pytestmark = pytest.mark.anyio


async def test_a_batch_is_passed_on_though_its_sender_left_before_the_commit(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        who = agent_principal("agent")
        messages = [h.message(Operation.PUBLISH_PROPERTY, who, pump, "flow", flow) for flow in (1, 2, 3)]

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(h.runtime.batch, messages)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

        await h.until(lambda: h.twin.values.get(pump, Kind.PROPERTY, "flow"))
        latest = h.twin.values.get(pump, Kind.PROPERTY, "flow")
        assert latest is not None
        assert latest.value == 3
