"""Requests an agent remembers across the end of its program, and those that wait for their turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import JsonValue

from bindings.mqtt.engines.seam import Outcome
from skep import Agent, AgentRequest, Problem
from skep.handlers import Report
from skep.memory import FileMemory
from skep.running_requests import MAX_RUNNING_REQUESTS
from skep.testing import Gateway
from tests.skep.gateways import served
from things.delivery import State
from things.errors import StorageFailed

pytestmark = pytest.mark.anyio

TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Valve",
    "actions": {"turn": {}, "close": {"idempotent": True}},
    "properties": {"limit": {"type": "number"}},
}


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
async def url(gateway: Gateway) -> AsyncIterator[str]:
    async with served("native", gateway) as port:
        yield f"mqtt://127.0.0.1:{port}"


class Program:
    """An agent's program: each run is a new one, and only the file is the same."""

    def __init__(self, url: str, memory: Path | None) -> None:
        self.effects: list[str] = []
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self._url, self._memory = url, memory

    def run(self, on_problem: Callable[[Problem], None] | None = None) -> Agent:
        agent = Agent(self._url, "works", "secret", memory=self._memory, on_problem=on_problem)
        agent.expose("valve", TD)
        for name in ("turn", "close"):
            agent.action("valve", name)(self._act)
        agent.write("valve", "limit")(self._act)
        return agent

    async def _act(self, data: JsonValue, request: AgentRequest) -> JsonValue:
        self.effects.append(request.id)
        self.begun.set()
        await self.go_on.wait()
        return len(self.effects)


async def test_answer_is_repeated_by_the_next_run_and_the_effect_is_not(
    url: str, gateway: Gateway, tmp_path: Path
) -> None:
    program = Program(url, tmp_path / "requests.db")
    program.go_on.set()
    async with program.run():
        await gateway.takes_requests()
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        first = await gateway.final("r1")
    gateway.published.clear()

    async with program.run():
        await gateway.takes_requests()
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        again = await gateway.final("r1")

    assert program.effects == ["r1"]
    assert first == again == {"state": "completed", "output": 1}


async def test_interrupted_action_is_not_begun_again_and_says_so(url: str, gateway: Gateway, tmp_path: Path) -> None:
    program = Program(url, tmp_path / "requests.db")
    async with program.run():
        await gateway.takes_requests()
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        await program.begun.wait()

    async with program.run():
        await gateway.takes_requests()
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        final = await gateway.final("r1")

    assert program.effects == ["r1"]
    assert (final["state"], final["reason"]) == ("failed", "agent-error")
    assert "may have acted" in str(final["error"])


@pytest.mark.parametrize("topic", ["action/valve/close", "property/valve/limit"])
async def test_interrupted_request_that_may_be_repeated_is_begun_again(
    url: str, gateway: Gateway, tmp_path: Path, topic: str
) -> None:
    program = Program(url, tmp_path / "requests.db")
    async with program.run():
        await gateway.takes_requests()
        gateway.send(f"inbox/works/{topic}/r1", 5)
        await program.begun.wait()
    program.go_on.set()

    async with program.run():
        await gateway.takes_requests()
        gateway.send(f"inbox/works/{topic}/r1", 5)
        final = await gateway.final("r1")

    assert program.effects == ["r1", "r1"]
    assert final == {"state": "completed", "output": 2}


async def test_cancel_comes_through_while_all_handlers_are_busy(url: str, gateway: Gateway) -> None:
    program = Program(url, None)
    async with program.run():
        await gateway.takes_requests()
        for number in range(MAX_RUNNING_REQUESTS + 1):
            gateway.send(f"inbox/works/action/valve/turn/r{number}", 5)
        await gateway.until(lambda: len(program.effects) == MAX_RUNNING_REQUESTS)
        gateway.send("inbox/works/cancel/r0", empty=True)
        cancelled = await gateway.final("r0")
        await gateway.until(lambda: len(gateway.acknowledged) == MAX_RUNNING_REQUESTS + 2)
        program.go_on.set()
        last = await gateway.final(f"r{MAX_RUNNING_REQUESTS}")

    assert cancelled == {"state": "cancelled"}
    assert last["state"] == "completed"


async def test_request_cancelled_before_its_turn_is_never_begun(url: str, gateway: Gateway) -> None:
    program = Program(url, None)
    async with program.run():
        await gateway.takes_requests()
        for number in range(MAX_RUNNING_REQUESTS + 1):
            gateway.send(f"inbox/works/action/valve/turn/r{number}", 5)
        gateway.send(f"inbox/works/cancel/r{MAX_RUNNING_REQUESTS}", empty=True)
        await gateway.until(lambda: len(gateway.acknowledged) == MAX_RUNNING_REQUESTS + 1)
        program.go_on.set()
        last = await gateway.final(f"r{MAX_RUNNING_REQUESTS}")

    assert last == {"state": "cancelled"}
    assert f"r{MAX_RUNNING_REQUESTS}" not in program.effects


async def test_file_that_cannot_be_used_is_said_before_anything_is_asked(url: str, tmp_path: Path) -> None:
    damaged, shared = tmp_path / "damaged.db", tmp_path / "shared.db"
    damaged.write_bytes(b"not a database" * 1_000)
    program = Program(url, shared)

    with pytest.raises(StorageFailed, match="damaged"):
        await Program(url, damaged).run().__aenter__()
    async with program.run():
        with pytest.raises(StorageFailed, match="locked"):
            await program.run().__aenter__()


async def test_file_remembers_as_many_requests_as_it_may(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        memory = FileMemory(tmp_path / "requests.db", limit=3)
        await memory.open()
        for number in range(5):
            memory.begin(f"r{number}")
            await memory.written_begun(f"r{number}")
        await memory.written_ended(Report(request_id="r4", state=State.COMPLETED, output={"a": None}))
        await memory.close()
        again = FileMemory(tmp_path / "requests.db", limit=3)
        await again.open()
        known = [not again.begin(f"r{number}") for number in (2, 3, 4)]
        outcome = again.outcome("r4")
        is_new = again.begin("r0")
        modes = {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}  # noqa: ASYNC240 - in a test
        await again.close()

    assert (known, is_new) == ([True, True, True], True)
    assert modes == {0o600}
    assert outcome == Report(request_id="r4", state=State.COMPLETED, output={"a": None})


async def test_outcome_on_its_way_is_not_said_a_second_time(url: str, gateway: Gateway) -> None:
    program = Program(url, None)
    program.go_on.set()
    async with program.run():
        await gateway.takes_requests()
        gateway.hold = asyncio.Event()
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        await gateway.final("r1")
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        await gateway.until(lambda: len(gateway.acknowledged) == 2)
        gateway.hold.set()

    assert gateway.statuses("r1") == [{"state": "completed", "output": 1}]
    assert program.effects == ["r1"]


async def test_late_status_is_told_as_the_conflict_it_is(url: str, gateway: Gateway) -> None:
    problems: list[Problem] = []
    late = Outcome(reason_code=0x83, reason="request 'r1' is already failed")
    gateway.outcome = lambda message: late if "/status/" in message.topic else Outcome()
    program = Program(url, None)
    program.go_on.set()
    async with program.run(problems.append) as agent:
        await gateway.takes_requests()
        gateway.send("inbox/works/action/valve/turn/r1", 5)
        await gateway.final("r1")
        await agent.flush(10)

    (problem,) = problems
    assert (problem.subject, problem.code) == ("status/r1", "conflict")
    assert "is already failed" in problem.detail
