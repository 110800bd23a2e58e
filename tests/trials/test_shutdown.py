"""SIGTERM under load: what was acknowledged is stored, sessions are told, the process is gone within ten seconds; and
whoever comes back is back soon."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.support import PUMP, Account
from tests.trials.process import DOWN, RuntimeProcess, furnished, runtime_process
from tests.trials.test_acknowledged import Publisher, all_acknowledged_more, judged

pytestmark = pytest.mark.anyio

WITHIN_S = 10.0
AGENTS = int(os.environ.get("SKEP_TRIAL_AGENTS", "1000"))
BACK_S = 30.0


async def test_sigterm_under_load_keeps_what_was_acknowledged_and_ends_in_time(tmp_path: Path) -> None:
    home = tmp_path / "home"
    names = [f"pub-{number}" for number in range(4)]
    things = {f"dtw:{name}:pump-1": PUMP for name in names}
    accounts = await furnished(home, {**dict.fromkeys(names, "agent"), "ann": "manager"}, things)
    publishers = [Publisher(accounts[name], over_mqtt=place < 2) for place, name in enumerate(names)]
    ended: list[str] = []

    async def listens(process: RuntimeProcess, path: str) -> None:
        with suppress(httpx2.HTTPError):
            async with process.client(accounts["ann"], timeout_s=60) as client, client.stream("GET", path) as reply:
                async for _ in reply.aiter_bytes():
                    pass
        ended.append(path)

    async def subscribed(process: RuntimeProcess) -> None:
        with suppress(*DOWN):
            async with process.mqtt(accounts["ann"]) as client:
                await client.subscribe("things/#", qos=1)
                async for _ in client.messages:
                    pass
        ended.append("mqtt")

    async with runtime_process(home) as process:
        over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for publisher in publishers:
                tasks.start_soon(publisher.publish, process, over)
            paths = ["/stream", "/inbox", "/stream?kind=td&wait=60"]
            for path in paths:
                tasks.start_soon(listens, process, path)
            tasks.start_soon(subscribed, process)
            await all_acknowledged_more(publishers)
            code, took_s = await process.terminate()
            over.set()
            with anyio.fail_after(5):
                while len(ended) < len(paths) + 1:  # noqa: ASYNC110 - several tasks
                    await anyio.sleep(0.01)
        line = await judged(home, publishers, process.kills)

    assert code == 0, process.said()
    assert took_s < WITHIN_S
    print(f"{line}; ended {took_s:.1f} s after SIGTERM")


@pytest.mark.trial
async def test_a_thousand_agents_are_back_in_half_a_minute(tmp_path: Path) -> None:
    home = tmp_path / "home"
    names = [f"agent-{number}" for number in range(AGENTS)]
    accounts = await furnished(home, dict.fromkeys(names, "agent"))
    back: set[str] = set()

    async def agent(process: RuntimeProcess, account: Account) -> None:
        while True:
            with suppress(*DOWN):
                async with process.mqtt(account) as client:
                    await client.subscribe(f"inbox/{account.name}/#", qos=1)
                    back.add(account.name)
                    async for _ in client.messages:
                        pass
            back.discard(account.name)
            await asyncio.sleep(0.05)

    async def all_back() -> float:
        began = time.monotonic()
        with anyio.fail_after(120):
            while len(back) < len(names):  # noqa: ASYNC110 - many tasks
                await anyio.sleep(0.02)
        return time.monotonic() - began

    async with runtime_process(home) as process, anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(agent, process, accounts[name])
        first_s = await all_back()
        await process.kill()
        with anyio.fail_after(30):
            while back:  # noqa: ASYNC110 - many tasks
                await anyio.sleep(0.01)
        await process.start()
        again_s = await all_back()
        tasks.cancel_scope.cancel()

    print(f"{AGENTS} agents connected in {first_s:.1f} s, and were back {again_s:.1f} s after the restart")
    assert again_s < BACK_S
