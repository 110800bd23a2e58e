"""Who asked a device to act is in the audit log."""

from pathlib import Path

import pytest

from skep import Consumer
from tests.journeys.peers import mqtt_agent
from tests.support import PUMP, skep

pytestmark = pytest.mark.anyio


async def test_action_and_write_are_noted_with_who_asked_for_them(tmp_path: Path) -> None:
    async with skep(tmp_path) as runtime:
        works, ann = await runtime.add("works", "agent"), await runtime.add("ann", role="manager")
        async with mqtt_agent(runtime, works) as agent, Consumer(runtime.http, token=ann.token) as consumer:
            await agent.describe("pump-1", PUMP)
            pump = consumer.thing("dtw:works:pump-1")
            await pump.invoke("setSpeed", 3)
            await pump.write("target", 5, wait_s=0)

        acts = [entry for entry in await runtime.running.stores.authenticator.audited() if entry["by"] == "ann"]

    assert [(entry["act"], entry["target"]) for entry in acts] == [
        ("action", "dtw:works:pump-1 setSpeed"),
        ("write", "dtw:works:pump-1 target"),
    ]
