"""The agent's own program is killed in the middle of an action: the request comes back, and its effect does not."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from skep import Consumer, Requested
from tests.support import Account
from tests.trials.agent_program import TD
from tests.trials.process import RuntimeProcess, furnished, runtime_process
from things.delivery import State
from things.errors import AgentFailed

pytestmark = pytest.mark.anyio

VALVE = "dtw:works:valve"


class Site:
    """A runtime, a caller, and the agent's program."""

    def __init__(self, runtime: RuntimeProcess, accounts: dict[str, Account], folder: Path) -> None:
        self.runtime, self._accounts, self._folder = runtime, accounts, folder

    def consumer(self) -> Consumer:
        return Consumer(self.runtime.http, token=self._accounts["ann"].token)

    @contextmanager
    def agent(self, *more: str) -> Iterator[None]:
        """The program, until it is killed at the end of the block."""
        host, port = self.runtime.mqtt_address
        files = [str(self._folder / "requests.db"), str(self._folder / "effects")]
        command = [sys.executable, "-m", "tests.trials.agent_program", f"mqtt://{host}:{port}"]
        process = subprocess.Popen([*command, self._accounts["works"].token, *files, *more])
        try:
            yield
        finally:
            process.kill()
            process.wait(10)

    def effects(self) -> list[str]:
        file = self._folder / "effects"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    accounts = await furnished(tmp_path / "home", {"works": "agent", "ann": "operator"}, {VALVE: TD})
    async with runtime_process(tmp_path / "home") as process:
        yield Site(process, accounts, tmp_path)


async def stands(request: Requested, *states: State) -> None:
    """Until the runtime says so."""
    with anyio.fail_after(30):
        while (await request.refresh()).state not in states:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.05)


async def test_a_request_interrupted_by_a_kill_of_its_agent_has_its_effect_once(site: Site) -> None:
    async with site.consumer() as ann:
        with site.agent("wait"):
            turn, close = await ann.invoke(VALVE, "turn"), await ann.invoke(VALVE, "close")
            for request in (turn, close):
                await stands(request, State.RUNNING)
        for request in (turn, close):
            await stands(request, State.PENDING)
        with site.agent():
            assert await close.result(30) == "done"
            with pytest.raises(AgentFailed, match="may have acted"):
                await turn.result(30)

    assert site.effects().count(turn.id) == 1
    assert site.effects().count(close.id) == 2


async def test_an_answer_that_no_runtime_took_is_given_by_the_next_run_of_the_agent(site: Site) -> None:
    with site.agent():
        async with site.consumer() as ann:
            first = await ann.invoke(VALVE, "turn", wait_s=30)
            assert first.output == "done"
            waiting = await ann.invoke(VALVE, "turn")
            await site.runtime.kill()
        with anyio.fail_after(30):
            # Handed over or not, it is carried out here or by the next run.
            await site.runtime.start()
    with site.agent():
        async with site.consumer() as ann:
            assert await (await ann.request(waiting.id)).result(30) == "done"

    assert site.effects() == [first.id, waiting.id]
