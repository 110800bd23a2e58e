"""`skep asof` against a running runtime."""

import json
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from skep import Agent
from tests.skep.runtimes import site
from tests.support import PUMP
from things.times import rfc3339

pytestmark = pytest.mark.anyio


async def run(*words: str) -> str:
    done = await anyio.run_process([sys.executable, "-m", "skep", *words], stderr=subprocess.STDOUT)
    return done.stdout.decode()


async def test_the_past_of_things_there_and_gone_and_what_changed_since(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with site(home) as runtime:
        with anyio.fail_after(60):
            assert runtime.running.mqtt is not None
            async with Agent(runtime.running.mqtt, "pumps", runtime.token) as agent:
                for thing in ("pump-1", "pump-2"):
                    agent.expose(thing, PUMP)
                await agent.flush()
                await agent.publish("pump-1", "flow", 1)
                await agent.publish("pump-2", "flow", 5)
                await agent.publish("pump-2", "unplanned", 7, undeclared=True)
                await agent.flush()
                then = rfc3339(runtime.running.stores.clocks.now())
                await agent.publish("pump-1", "flow", 2)
                await agent.flush()
            await runtime.running.stores.twin.directory.remove("dtw:pumps:pump-2")

            rows = json.loads(await run("asof", then, "--json", "--home", str(home)))
            some = await run("asof", then, "dtw:pumps:pump-2/un*", "--home", str(home))
            changes = json.loads(await run("asof", then, "--to", "now", "--json", "--home", str(home)))
            table = await run("asof", then, "--to", "now", "--home", str(home))
            before = await run("asof", "1 day ago", "--home", str(home))

    found = {(row["thingID"].removeprefix("dtw:pumps:"), row["name"]): row["value"] for row in rows}
    assert found == {("pump-1", "flow"): 1, ("pump-2", "flow"): 5, ("pump-2", "unplanned"): 7}
    assert "unplanned" in some
    assert "flow" not in some
    assert [(one["thingID"].removeprefix("dtw:pumps:"), one.get("change")) for one in changes] == [
        ("pump-1", None),
        ("pump-2", "removed"),
    ]
    assert "removed" in table
    assert "nothing was known then" in before
