"""A storm of actions while the runtime is killed every few seconds and a fifth of the agents are there at a time.

    0 lost of N over M kills

Accepted means that the caller was told so; what it was not told, it repeats under the same reference. Lost: accepted
and not in the ledger. Stuck: without a final state once all agents are back. Late: expired more than a second after
its time, where the runtime was there.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiomqtt
import anyio
import pytest

from runtime.clocks import wall_clock
from tests.support import Account
from tests.trials.process import DOWN, RuntimeProcess, furnished, runtime_process
from things.delivery import FINAL, Reason, State
from things.records import LedgerQuery, LedgerRow
from twin.store import open_twin

pytestmark = pytest.mark.anyio

EXPIRES_S = 3.0
LATE_S = 1.0
END_S = 120.0
THINGS_PER_AGENT = 10
TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Valve",
    "actions": {
        "turn": {"input": {"type": "integer"}, "skep:deadline": 6},
        "brief": {"input": {"type": "integer"}, "skep:expires": EXPIRES_S, "skep:deadline": 6},
    },
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it."""

    things: int
    actions: int
    kills: int
    every_s: float

    @property
    def agents(self) -> list[str]:
        return [f"works-{number}" for number in range(self.things // THINGS_PER_AGENT)]


SHORT = Size(things=100, actions=500, kills=3, every_s=1.5)
LONG = Size(
    things=int(os.environ.get("SKEP_STORM_THINGS", "1000")),
    actions=int(os.environ.get("SKEP_STORM_ACTIONS", "10000")),
    kills=int(os.environ.get("SKEP_STORM_KILLS", "40")),
    every_s=3.0,
)


@dataclass(slots=True)
class Ledger:
    """What the clients know: the trial's own books."""

    accepted: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Reference to Thing and number, once the caller was told that it is accepted."""
    received: list[tuple[str, str]] = field(default_factory=list)
    """Agent and request id, as agents got them for the first time."""
    answered: dict[str, int] = field(default_factory=dict)
    """Request ids, and when the runtime acknowledged that they are completed (which may be a refusal)."""


@dataclass(slots=True)
class Storm:
    process: RuntimeProcess
    accounts: dict[str, Account]
    size: Size
    books: Ledger = field(default_factory=Ledger)
    rng: random.Random = field(default_factory=lambda: random.Random(4))
    everybody: anyio.Event = field(default_factory=anyio.Event)
    """From now on all agents stay."""
    over: anyio.Event = field(default_factory=anyio.Event)

    # ------------------------------------------------------------ agents

    async def agent(self, name: str, turn: "asyncio.Semaphore") -> None:
        """Come, stay a while, go, and come again; at the end stay."""
        while not self.over.is_set():
            if self.everybody.is_set():
                await self._present(name, END_S)
                continue
            async with turn:
                await self._present(name, self.rng.uniform(0.3, 1.5))

    async def _present(self, name: str, stay_s: float) -> None:
        with suppress(*DOWN):
            async with self.process.mqtt(self.accounts[name]) as client:
                await client.subscribe(f"inbox/{name}/#", qos=1)
                async with asyncio.timeout(stay_s):
                    async for message in client.messages:
                        await self._carry_out(name, client, str(message.topic))
            return
        await anyio.sleep(0.05)

    async def _carry_out(self, name: str, client: aiomqtt.Client, topic: str) -> None:
        levels = topic.split("/")
        if levels[2] != "action":
            return
        request_id = levels[-1]
        if (name, request_id) not in self._known:
            self._known.add((name, request_id))
            self.books.received.append((name, request_id))
        chance = self.rng.random()
        if chance < 0.02:
            return  # forgets it, and is asked again or runs into the deadline
        if chance < 0.2:
            await self._say(client, f"agents/{name}/status/{request_id}", {"state": "running"})
        await self._say(client, f"agents/{name}/status/{request_id}", {"state": "completed"})
        self.books.answered.setdefault(request_id, wall_clock())
        if chance > 0.9:
            await self._say(client, f"agents/{name}/status/{request_id}", {"state": "failed"})

    _known: set[tuple[str, str]] = field(default_factory=set)

    # ------------------------------------------------------------ callers

    async def caller(self, name: str, over_mqtt: bool, share: Sequence[int]) -> None:
        """Send a share of the actions, each until it is accepted."""
        waiting = list(share)
        while waiting:
            with suppress(*DOWN):
                await (self._invoke_mqtt if over_mqtt else self._invoke_http)(name, waiting)
            await anyio.sleep(0.05)

    async def _invoke_mqtt(self, name: str, waiting: list[int]) -> None:
        async with self.process.mqtt(self.accounts[name]) as client:
            while waiting:
                number = waiting[-1]
                thing, action = self._target(number)
                levels = thing.removeprefix("dtw:").replace(":", "/", 1)
                await self._say(client, f"req/{name}/action/{levels}/{action}/{name}-{number}", number)
                self._accepted(name, waiting)

    async def _invoke_http(self, name: str, waiting: list[int]) -> None:
        async with self.process.client(self.accounts[name]) as client:
            while waiting:
                number = waiting[-1]
                thing, action = self._target(number)
                reply = await client.post(
                    f"/things/{thing}/actions/{action}",
                    content=json.dumps(number),
                    headers={"idempotency-key": f"{name}-{number}"},
                )
                if reply.status_code == 503:
                    return  # it is going down, or comes up
                assert reply.status_code == 201, reply.text
                self._accepted(name, waiting)

    def _target(self, number: int) -> tuple[str, str]:
        thing = number % self.size.things
        return f"dtw:works-{thing // THINGS_PER_AGENT}:{thing}", "brief" if number % 3 == 0 else "turn"

    def _accepted(self, name: str, waiting: list[int]) -> None:
        number = waiting.pop()
        self.books.accepted[f"{name}-{number}"] = (self._target(number)[0], number)

    # ------------------------------------------------------------ both

    @staticmethod
    async def _say(client: aiomqtt.Client, topic: str, payload: Any) -> None:
        await client.publish(topic, json.dumps(payload), qos=1)


async def brewed(storm: Storm) -> None:
    """Let it rage, then let everybody come back until nothing is left to do."""
    size = storm.size
    callers = {f"ann-{n}": n % 2 == 0 for n in range(4)}
    turn = asyncio.Semaphore(max(len(size.agents) // 5, 1))
    async with anyio.create_task_group() as tasks:
        for name in size.agents:
            tasks.start_soon(storm.agent, name, turn)
        async with anyio.create_task_group() as calling:
            for place, (name, over_mqtt) in enumerate(callers.items()):
                calling.start_soon(storm.caller, name, over_mqtt, range(place, size.actions, len(callers)))
            for _ in range(size.kills):
                await anyio.sleep(size.every_s)
                await storm.process.restart()
        storm.everybody.set()
        with anyio.move_on_after(END_S):
            while await _unfinished(storm):  # noqa: ASYNC110 - another process
                await anyio.sleep(0.3)
        storm.over.set()
        tasks.cancel_scope.cancel()


async def _unfinished(storm: Storm) -> bool:
    states = "&".join(f"state={state}" for state in State if state not in FINAL)
    async with storm.process.client(storm.accounts["boss"], timeout_s=30) as client:
        reply = await client.get(f"/requests?{states}&limit=1")
        reply.raise_for_status()
        return bool(reply.json()["items"])


async def _rows(home: Path) -> dict[str, LedgerRow]:
    rows: dict[str, LedgerRow] = {}
    async with open_twin(home, clock=wall_clock) as twin:
        before = None
        while page := await twin.ledger.query(LedgerQuery(limit=1_000, before=before)):
            rows |= {row.caller_ref: row for row in page}
            before = page[-1].request_id
    return rows


def _lateness_s(process: RuntimeProcess, row: LedgerRow) -> float:
    """How much later than it should a request expired; while there is no runtime nothing can."""
    assert row.expires is not None
    due = row.expires
    for since, until in process.away:
        if since <= due < until:
            due = until
    # A runtime that dies within the second it has for it is excused until it is back.
    backs = [until for since, until in process.away if due < since < due + LATE_S * 1e6]
    return (row.transitions[-1].at - max([due, *backs])) / 1e6


async def judged(storm: Storm) -> str:
    """What came of it, in one line; raises where a promise was broken."""
    rows, books = await _rows(storm.process.home), storm.books
    lost = [reference for reference in books.accepted if reference not in rows]
    stuck = [row for row in rows.values() if row.state not in FINAL]
    twice = [row for row in rows.values() if len([t for t in row.transitions if t.state in FINAL]) > 1]
    by_id = {row.request_id: row for row in rows.values()}
    received = {request_id for _, request_id in books.received}
    # What is acknowledged as completed has a final state by then: this one, or another that was faster.
    wrong = [
        by_id[one]
        for one, at in books.answered.items()
        if by_id[one].state is not State.COMPLETED and by_id[one].transitions[-1].at > at
    ]
    expired = [row for row in rows.values() if row.reason is Reason.EXPIRED]
    taken = [row for row in expired if row.attempts or row.request_id in received]
    late = [row for row in expired if _lateness_s(storm.process, row) > LATE_S]
    unseen = [row for row in rows.values() if row.state is State.COMPLETED and row.request_id not in received]
    disordered = _disordered(books, by_id)
    line = (
        f"{len(lost)} lost of {len(books.accepted)} over {storm.process.kills} kills; {len(stuck)} stuck, "
        f"{len(expired)} expired, {len(late)} of them late, {len(rows) - len(expired)} otherwise final"
    )
    assert (lost, stuck, twice, wrong, taken, late, unseen, disordered) == ([], [], [], [], [], [], [], []), line
    assert len(rows) == len(books.accepted) == storm.size.actions
    return line


def _disordered(books: Ledger, by_id: dict[str, LedgerRow]) -> list[str]:
    """Things whose agent first saw a request after a later one."""
    last: dict[str, int] = {}
    found = []
    for _, request_id in books.received:
        row = by_id[request_id]
        opened = row.transitions[0].seq
        if opened < last.get(row.thing_id, 0):
            found.append(f"{row.thing_id}: {request_id}")
        last[row.thing_id] = opened
    return found


async def storm_of(size: Size, home: Path) -> str:
    callers = {f"ann-{number}": "operator" for number in range(4)}
    accounts = await furnished(
        home,
        {**dict.fromkeys(size.agents, "agent"), **callers, "boss": "manager"},
        {f"dtw:works-{number // THINGS_PER_AGENT}:{number}": TD for number in range(size.things)},
    )
    began = time.monotonic()
    async with runtime_process(home) as process:
        storm = Storm(process, accounts, size)
        await brewed(storm)
        await process.terminate()
        line = await judged(storm)
    return f"{line}; {time.monotonic() - began:.0f} s"


async def test_no_action_is_lost_or_stuck_in_a_storm_of_kills(tmp_path: Path) -> None:
    print(await storm_of(SHORT, tmp_path / "home"))


@pytest.mark.trial
async def test_no_action_is_lost_or_stuck_in_a_long_storm_of_kills(tmp_path: Path) -> None:
    print(await storm_of(LONG, tmp_path / "home"))
