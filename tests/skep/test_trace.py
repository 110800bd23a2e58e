"""`skep trace`: one request through doors, checks, ledger, deliveries and rows, and what it may not show to whom."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

from skep import Agent, AgentRequest, Refused
from skep.cli import main
from tests.skep.runtimes import Site, site
from things.samples import sample_td

pytestmark = pytest.mark.anyio

PUMP = "dtw:pumps:pump-1"


@pytest.fixture
def trace(capsys: pytest.CaptureFixture[str]) -> Any:
    async def traced(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = await anyio.to_thread.run_sync(main, ["trace", *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    return traced


def _pump(house: Site) -> Agent:
    agent = house.agent()
    agent.expose("pump-1", sample_td("pump-station"))

    @agent.action("pump-1", "setSpeed")
    async def run(speed: JsonValue, request: AgentRequest) -> JsonValue:
        if speed == 13:
            raise Refused("unlucky")
        await request.progress(50)
        await agent.publish("pump-1", "flow", 7.5)
        await agent.flush(10)
        return speed

    return agent


async def test_a_request_is_followed_through_all_that_it_passed(tmp_path: Path, trace: Any) -> None:
    home = tmp_path / "home"
    async with site(home) as house, _pump(house) as agent, house.consumer() as ann:
        await agent.connected()
        done = await ann.thing(PUMP).invoke("setSpeed", 3, wait_s=10, reference="tea")
        refused = await ann.thing(PUMP).invoke("setSpeed", 13, wait_s=10)
        await house.running.stores.authenticator.audit.flush()

        code, said = await trace(done.status.request_id, "--json", "--home", str(home))
        found = json.loads(said)
        words = (await trace(done.status.request_id, "--home", str(home)))[1]
        by_reference = json.loads((await trace("tea", "--caller", "ann", "--json", "--home", str(home)))[1])
        other = json.loads((await trace(refused.status.request_id, "--json", "--home", str(home)))[1])
        unknown, _ = await trace("nobody", "--home", str(home))

    steps = [(step["part"], step["what"]) for step in found["steps"]]
    assert code == 0
    assert steps[0] == ("door", f"ann asked for action setSpeed of {PUMP}, input 3, by http, from 127.0.0.1, as tea")
    assert any(part == "audit" and "noted as act" in what for part, what in steps)
    assert ("rows", "property flow = 7.5") in steps
    ledger = [what.partition(";")[0] for part, what in steps if part in ("ledger", "delivery")]
    assert ledger == [
        "stored, for agent pumps",
        "agent pumps has it",
        "agent pumps says running",
        "done, output 3",
    ]
    assert steps[-1] == ("checks", "ann would now be allowed, by role operator allows invoke_action on any")
    assert "handed over once" in found["verdict"]
    assert f"completed: {found['verdict']}" in words
    assert by_reference["request"] == found["request"]
    assert any("refused by the device: unlucky" in step["what"] for step in other["steps"])
    assert unknown == 4


async def test_one_that_waits_says_for_whom(tmp_path: Path, trace: Any) -> None:
    home = tmp_path / "home"
    async with site(home) as house, house.consumer() as ann:
        async with _pump(house) as agent:
            await agent.connected()
        asked = await ann.thing(PUMP).invoke("setSpeed", 3, wait_s=0)

        found = json.loads((await trace(asked.status.request_id, "--json", "--home", str(home)))[1])

    assert found["verdict"].startswith("agent pumps is not there, handed over 0 times; expires ")


async def test_callers_follow_their_own_requests_and_nobody_elses(tmp_path: Path, trace: Any) -> None:
    home = tmp_path / "home"
    async with site(home) as house, _pump(house) as agent, house.consumer() as ann:
        await agent.connected()
        asked = await ann.thing(PUMP).invoke("setSpeed", 3, wait_s=10, reference="tea")
        add = house.running.stores.authenticator.administration.issue_token
        far = ("--url", str(house.running.https), "--ca", str(house.ca))
        tokens = {name: (await add(name, by="test"))[1] for name in ("ann", "bob")}

        own, said = await trace(asked.status.request_id, "--json", *far, "--token", tokens["ann"])
        others = [
            (await trace(*words, *far, "--token", tokens["bob"]))[0]
            for words in ((asked.status.request_id,), ("tea",), ("tea", "--caller", "ann"))
        ]

    parts = {step["part"]: step["what"] for step in json.loads(said)["steps"]}
    assert own == 0
    assert parts["audit"].startswith("not to be read: ")
    assert parts["checks"].startswith("who asks here would now be allowed")
    assert others == [4, 4, 4]
