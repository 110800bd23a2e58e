"""After a revocation nothing happens in an account's name, and it hears nothing: random credentials, random acts that
were put off over every door, and random revocations. Then time passes, an agent comes back to which each act would have
said something, and everybody tries what they had kept for later.

`SKEP_TRIAL_DEFERRED` says how many cases the long form tries.
"""

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import httpx
import pytest
from anyio import CapacityLimiter

from tests.bindings.mqtt.support import Client, Received
from tests.support import PUMP, Account, Skep, skep
from tests.trials.left_behind.acts import Acts
from tests.trials.left_behind.cases import ACTS, AFTER, Act, Case, drawn
from tests.trials.left_behind.rights import Rights
from things.delivery import State
from things.records import HistoryQuery, LedgerQuery

pytestmark = pytest.mark.anyio

CASES = int(os.environ.get("SKEP_TRIAL_DEFERRED", "500"))
SHORT, SEED = 2 * len(ACTS), 20261122
AT_ONCE, BATCH = 8, 50
QUIET_S, DEADLINE_S = 60, 150.0
KEPT = {"resume_s": 600}


async def tried(home: Path, seed: int, count: int, quiet_s: int = 2) -> str:
    """`quiet_s` is for how long nothing happens, once all rights have ended."""
    cases = drawn(random.Random(seed), count)
    found: list[str] = []
    async with skep(home, tls=True, messaging_node=KEPT) as runtime:
        works, mate = await runtime.add("works", "agent"), await runtime.add("mate")
        async with Client(runtime.mqtt_address, works.name, works.token, "first") as agent:
            await agent.publish("agents/works/td/pump-1", PUMP)
        for start in range(0, count, BATCH):
            is_last = start + BATCH >= count
            some = cases[start : start + BATCH]
            found += await effects(runtime, home, some, works, mate, quiet_s if is_last else 2)
    assert not found, f"seed {seed}: {len(found)} effects of {count} acts:\n" + "\n".join(found)
    return f"0 of {count} acts had an effect after the revocation (seed {seed})"


async def effects(
    runtime: Skep, home: Path, cases: Sequence[Case], works: Account, mate: Account, quiet_s: int
) -> list[str]:
    """What came of these acts after their accounts' rights had ended."""
    rights = Rights(runtime, home)
    before = runtime.running.stores.twin.history.last_row
    plain = httpx.AsyncClient(
        base_url=runtime.http, trust_env=False, timeout=60, limits=httpx.Limits(max_connections=None)
    )
    async with plain, AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        acts = Acts(runtime, rights, stack, tasks, plain, mate)
        await acts.mate_leaves()
        await each(rights.give, cases)
        await each(acts.put_off, cases)
        await told(runtime, works, "before all")
        await each(rights.take, cases)
        await told(runtime, works, f"{AFTER} all")
        for case in cases:
            for attempt in case.finish:
                await attempt()
        acts.delay_s = quiet_s
        good = await only_the_good_one_asks(acts, works, f"good-{before}")
        tasks.cancel_scope.cancel()
    found = [f"{case}: {case.heard}" for case in cases if case.heard]
    return found + good + await recorded(runtime, cases, before)


async def each(work: Callable[[Case], Awaitable[None]], cases: Sequence[Case]) -> None:
    limiter = CapacityLimiter(AT_ONCE)

    async def limited(case: Case) -> None:
        async with limiter:
            await work(case)

    async with anyio.create_task_group() as tasks:
        for case in cases:
            tasks.start_soon(limited, case)


async def told(runtime: Skep, works: Account, event: str) -> None:
    async with Client(runtime.mqtt_address, works.name, works.token, "teller") as agent:
        await agent.publish("agents/works/event/pump-1/alarm", event)


async def only_the_good_one_asks(acts: Acts, works: Account, name: str) -> list[str]:
    """An account in good standing leaves a delayed will last: once it came, the time of all others is over."""
    good = Case(name, "token", Act("delayed will"), "")
    await acts.rights.give(good)
    await acts.put_off(good)
    ledger, callers = acts.runtime.running.stores.twin.ledger, list[str]()
    async with Client(acts.runtime.mqtt_address, works.name, works.token, "agent") as agent:
        await agent.subscribe("inbox/works/#")
        with anyio.fail_after(DEADLINE_S):
            while name not in callers:
                request_id = (await waited_for(agent)).topic.rpartition("/")[2]
                row = await ledger.get(request_id)
                assert row is not None
                callers.append(row.caller)
                await agent.publish(f"agents/works/status/{request_id}", {"state": "completed"})
        assert await agent.settle() == []
    return [f"{caller} asked for something" for caller in callers if caller != name]


async def waited_for(agent: Client) -> Received:
    """The next message, however long it takes."""
    while True:
        with suppress(TimeoutError):
            return await agent.receive()


async def recorded(runtime: Skep, cases: Sequence[Case], before: int) -> list[str]:
    """What stands in the ledger and in history that must not."""
    twin, found = runtime.running.stores.twin, []
    for case in cases:
        for row in await twin.ledger.query(LedgerQuery(caller=case.name, limit=10)):
            if (row.state, row.reason) != (State.FAILED, "forbidden"):
                found.append(f"{case}: a request is {row.state}, {row.reason}")
        if case.act.is_agents:
            rows = await twin.history.read(HistoryQuery(things=[f"dtw:{case.name}:t"], after_row=before, limit=10))
            found += [
                f"{case}: {row.kind} {row.name}"
                for row in rows
                if row.kind == "event" and row.received > case.revoked_at
            ]
    return found


async def test_nothing_happens_in_the_name_of_somebody_whose_right_has_ended(tmp_path: Path) -> None:
    print(await tried(tmp_path, SEED, SHORT))


@pytest.mark.trial
async def test_nothing_happens_after_many_random_revocations(tmp_path: Path) -> None:
    print(await tried(tmp_path, random.randrange(1 << 32), CASES, quiet_s=QUIET_S))
