"""The runtime is killed while it hands requests over, on every binding at once: no end is untrue.

Untrue: a request that an agent was given ends as `expired`, or without a hand-over counted. Lost: its caller was told
that it is accepted, and it is not in the ledger. Stuck: without a final state once its clock has run out, or its agent
has answered it.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiomqtt
import anyio
import httpx2
import pytest
from websockets.asyncio.client import connect as websocket
from websockets.exceptions import WebSocketException

from runtime.clocks import wall_clock
from tests.bindings.websocket.clients import PROTOCOL, WebThingClient
from tests.support import Account
from tests.trials.manual_agent import ManualAgent
from tests.trials.process import AT_ONCE, DOWN, RuntimeProcess, furnished, runtime_process
from things.delivery import FINAL, Reason, State
from things.records import LedgerQuery, LedgerRow
from twin.store import open_twin

pytestmark = pytest.mark.anyio

SHORT = 12
LONG = int(os.environ.get("SKEP_TRIAL_HAND_OVERS", "300"))
BRIEF_S = 1.0
LATEST_KILL_S = 0.06
END_S = 60.0
TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Door",
    "actions": {"open": {"skep:expires": BRIEF_S, "skep:deadline": 3}, "turn": {"skep:expires": 600}},
}
BINDINGS = ("mqtt", "mqtt5", "poll", "stream", "websocket")
GONE = (*DOWN, WebSocketException, asyncio.IncompleteReadError, KeyError)


@dataclass(slots=True)
class Books:
    """What agents were given and callers were told, over all kills."""

    given: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    """References."""
    asked: int = 0


@dataclass(slots=True)
class Site:
    """The runtime and who speaks to it."""

    process: RuntimeProcess
    accounts: dict[str, Account]
    books: Books = field(default_factory=Books)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when an agent was given something since the last kill."""

    def take(self, request_id: str) -> None:
        self.books.given.add(request_id)
        self.first.set()

    @asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[httpx2.AsyncClient]:
        headers = {"authorization": f"Bearer {self.accounts[name].token}"}
        async with httpx2.AsyncClient(base_url=self.process.http, headers=headers, trust_env=False, timeout=60) as made:
            yield made

    # ------------------------------------------------------------ one agent for each binding

    async def mqtt(self, ready: Callable[[], None]) -> None:
        """3.1.1, and no PUBACK at all."""
        agent = await ManualAgent.arrived(self.process.mqtt_address, self.accounts["mqtt"])
        ready()
        try:
            while agent._listening is not None and not agent._listening.done():
                for request_id in [one for one in agent.handed if one not in self.books.given]:
                    self.take(request_id)
                await asyncio.sleep(0.001)
            for request_id in agent.handed:
                self.take(request_id)
        finally:
            await agent.hang_up()

    async def mqtt5(self, ready: Callable[[], None]) -> None:
        """5, acknowledged by the library."""
        account = self.accounts["mqtt5"]
        host, port = self.process.mqtt_address
        async with aiomqtt.Client(
            host,
            port,
            username=account.name,
            password=account.token,
            protocol=aiomqtt.ProtocolVersion.V5,
            socket_options=AT_ONCE,
        ) as client:
            await client.subscribe("inbox/mqtt5/#", qos=1)
            ready()
            async for message in client.messages:
                self.take(str(message.topic).rpartition("/")[2])

    async def poll(self, ready: Callable[[], None]) -> None:
        async with self.client("poll") as client:
            await client.get("/agent/requests?wait=0")
            ready()
            while True:
                reply = await client.get("/agent/requests?wait=30")
                for one in reply.json()["items"]:
                    self.take(one["requestID"])

    async def stream(self, ready: Callable[[], None]) -> None:
        async with (
            self.client("stream") as client,
            client.stream("GET", "/agent/requests", headers={"accept": "text/event-stream"}) as reply,
        ):
            ready()
            async for line in reply.aiter_lines():
                if line.startswith("data:"):
                    self.take(json.loads(line.removeprefix("data:"))["requestID"])

    async def websocket(self, ready: Callable[[], None]) -> None:
        headers = {"authorization": f"Bearer {self.accounts['websocket'].token}"}
        url = f"ws{self.process.http.removeprefix('http')}/wot/ws"
        async with websocket(url, subprotocols=[PROTOCOL], additional_headers=headers, proxy=None) as socket:
            client = WebThingClient(socket)
            await client.send("request", "exposething", "door")
            async for text in socket:
                message = json.loads(text)
                if message["messageType"] == "request":
                    self.take(message["correlationID"])
                else:
                    ready()

    async def present(self, binding: str, is_there: asyncio.Event) -> None:
        """The agent of this binding, until its connection ends and all that came by it is read."""
        agent: Callable[[Callable[[], None]], Any] = getattr(self, binding)
        with suppress(*GONE):
            await agent(is_there.set)
        is_there.set()

    # ------------------------------------------------------------ its caller

    async def ask(self, client: httpx2.AsyncClient, binding: str, action: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        reference = f"r-{self.books.asked}"
        self.books.asked += 1
        with suppress(*GONE):
            headers = {"idempotency-key": reference}
            reply = await client.post(f"/things/dtw:{binding}:door/actions/{action}", headers=headers)
            if reply.status_code == 201:
                self.books.accepted.add(reference)


async def killed_once(site: Site, chance: random.Random) -> None:
    """Agents come, requests are made, and the runtime is killed at the first hand-over or soon after."""
    site.first.clear()
    present = {binding: asyncio.Event() for binding in BINDINGS}
    async with site.client("ann") as ann, anyio.create_task_group() as tasks:
        for binding, is_there in present.items():
            tasks.start_soon(site.present, binding, is_there)
        with anyio.fail_after(END_S):
            for is_there in present.values():
                await is_there.wait()
        site.first.clear()
        for binding in BINDINGS:
            for action in ("open", "turn", "open"):
                tasks.start_soon(site.ask, ann, binding, action, chance.random() * LATEST_KILL_S)
        if chance.random() < 0.7:
            with suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await site.first.wait()
        await asyncio.sleep(chance.random() * LATEST_KILL_S)
        await site.process.kill()


async def _rows(home: Path) -> list[LedgerRow]:
    rows: list[LedgerRow] = []
    async with open_twin(home, clock=wall_clock) as twin:
        before = None
        while page := await twin.ledger.query(LedgerQuery(limit=1_000, before=before)):
            rows += page
            before = page[-1].request_id
    return rows


async def answer_all(site: Site) -> None:
    """Each agent ends what it can still be asked; the brief ones end by their clock."""
    states = "&".join(f"state={state}" for state in State if state not in FINAL)
    async with AsyncExitStack() as stack:
        clients = {name: await stack.enter_async_context(site.client(name)) for name in site.accounts}
        with anyio.fail_after(END_S):
            while left := (await clients["ann"].get(f"/requests?{states}&limit=200")).json()["items"]:
                for row in left:
                    if row["name"] == "turn":
                        agent = clients[row["thingID"].split(":")[1]]
                        await agent.post(f"/agent/status/{row['requestID']}", json={"state": "completed"})
                await asyncio.sleep(0.05)


async def hand_overs(home: Path, kills: int, seed: int) -> str:
    """So many kills; what came of it, in one line."""
    chance = random.Random(seed)
    people = {**dict.fromkeys(BINDINGS, "agent"), "ann": "manager"}
    accounts = await furnished(home, people, {f"dtw:{binding}:door": TD for binding in BINDINGS})
    async with runtime_process(home) as process:
        site = Site(process, accounts)
        for _ in range(kills):
            await killed_once(site, chance)
            await process.start()
        await answer_all(site)
        await process.terminate()
    rows, books = await _rows(home), site.books
    lost = books.accepted - {row.caller_ref for row in rows}
    stuck = [row for row in rows if row.state not in FINAL]
    untrue = [
        row for row in rows if row.request_id in books.given and (row.reason is Reason.EXPIRED or not row.attempts)
    ]
    wrong = [row for row in rows if not row.attempts and row.reason is Reason.TIMEOUT]
    careful = [row for row in rows if row.reason is Reason.TIMEOUT and row.request_id not in books.given]
    line = (
        f"{len(untrue)} untrue ends, {len(lost)} lost, {len(stuck)} stuck of {len(rows)} requests over {process.kills} "
        f"kills; {len(books.given)} were given to an agent, {len(careful)} called timeout that no agent got"
    )
    assert (untrue, lost, stuck, wrong) == ([], set(), [], []), line
    return line


@pytest.mark.timeout(600)  # it starts the runtime thirty times
async def test_no_end_is_untrue_after_kills_at_the_hand_over(tmp_path: Path) -> None:
    print(await hand_overs(tmp_path / "home", SHORT, seed=1))


@pytest.mark.trial
async def test_no_end_is_untrue_after_many_kills_at_the_hand_over(tmp_path: Path) -> None:
    print(await hand_overs(tmp_path / "home", LONG, seed=random.randrange(1_000_000)))
