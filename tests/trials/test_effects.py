"""Actions have their effect at most once while the agent's program and the runtime are killed again and again.

The program remembers its requests in a file (`memory=`). Double: an effect was had twice. Untrue: a request ended as
expired, though it had its effect, or completed without one.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support import Account
from tests.trials.agent_program import TD
from tests.trials.process import DOWN, RuntimeProcess, furnished, runtime_process
from things.delivery import FINAL, Reason, State

pytestmark = pytest.mark.anyio

SHORT, AT_ONCE = 8, 12
LONG = int(os.environ.get("SKEP_TRIAL_EFFECTS", "100"))
END_S = 90.0
BRIEF = {"x-expires-in": "1"}


@dataclass(slots=True)
class Site:
    """The runtime, the agent's program and its files."""

    runtime: RuntimeProcess
    accounts: dict[str, Account]
    folder: Path
    accepted: dict[str, str] = field(default_factory=dict)
    """Request ids by reference."""

    @contextmanager
    def agent(self) -> Iterator[None]:
        """The program, until it is killed at the end of the block."""
        host, port = self.runtime.mqtt_address
        files = [str(self.folder / "requests.db"), str(self.folder / "effects")]
        command = [sys.executable, "-m", "tests.trials.agent_program", f"mqtt://{host}:{port}"]
        process = subprocess.Popen([*command, self.accounts["works"].token, *files])
        try:
            yield
        finally:
            process.kill()
            process.wait(10)

    def effects(self) -> Counter[str]:
        file = self.folder / "effects"
        return Counter(file.read_text().split() if file.exists() else [])

    async def ask(self, reference: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with suppress(*DOWN):
            async with self.runtime.client(self.accounts["ann"]) as ann:
                headers = {"idempotency-key": reference, **(BRIEF if random.random() < 0.5 else {})}
                reply = await ann.post("/things/dtw:works:valve/actions/turn", headers=headers)
                if reply.status_code == 201:
                    self.accepted[reference] = reply.headers["location"].rpartition("/")[2]

    async def rows(self) -> list[dict[str, Any]]:
        async with self.runtime.client(self.accounts["ann"], timeout_s=30.0) as ann:
            found, query = [], "/requests?limit=200"
            while True:
                page = (await ann.get(query)).json()
                found += page["items"]
                if not page.get("cursor"):
                    return found
                query = f"/requests?limit=200&cursor={page['cursor']}"


async def effects_of(home: Path, kills: int) -> str:
    """So many kills; what came of it, in one line."""
    accounts = await furnished(home, {"works": "agent", "ann": "manager"}, {"dtw:works:valve": TD})
    async with runtime_process(home) as runtime:
        site = Site(runtime, accounts, home.parent)
        for number in range(kills):
            with site.agent():
                before = site.effects().total()
                async with anyio.create_task_group() as tasks:
                    for one in range(AT_ONCE):
                        tasks.start_soon(site.ask, f"r-{number}-{one}", random.random())
                    with suppress(TimeoutError):
                        async with asyncio.timeout(10.0):
                            while site.effects().total() == before:  # noqa: ASYNC110 - another process
                                await asyncio.sleep(0.002)
                    await asyncio.sleep(random.random() * 0.3)
                    if number % 2:
                        await runtime.kill()
                if number % 2:
                    await runtime.start()
        with site.agent(), anyio.fail_after(END_S):
            while any(row["state"] not in FINAL for row in await site.rows()):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.2)
        rows, effects = {row["requestID"]: row for row in await site.rows()}, site.effects()
    lost = [one for one in site.accepted.values() if one not in rows]
    double = [one for one, count in effects.items() if count > 1]
    untrue = [
        row
        for one, row in rows.items()
        if (row["state"] == State.COMPLETED and not effects[one])
        or (row.get("reason") == Reason.EXPIRED and effects[one])
    ]
    ends = Counter(str(row.get("reason") or row["state"]) for row in rows.values())
    line = (
        f"{len(double)} double effects, {len(untrue)} untrue ends, {len(lost)} lost of {len(rows)} actions over "
        f"{kills} kills of agent and runtime; {dict(ends)}"
    )
    assert (double, untrue, lost) == ([], [], []), line
    return line


@pytest.mark.timeout(300)
async def test_an_effect_is_had_once_over_kills_of_agent_and_runtime(tmp_path: Path) -> None:
    print(await effects_of(tmp_path / "home", SHORT))


@pytest.mark.trial
async def test_an_effect_is_had_once_over_many_kills_of_agent_and_runtime(tmp_path: Path) -> None:
    print(await effects_of(tmp_path / "home", LONG))
