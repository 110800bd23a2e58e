"""Actions from caller to agent and back, against the least that the same costs: `python -m bench.bench_deliveries`.

    accept      queued actions by the whole runtime core / the same rows inserted in groups, with the same full sync
    round trip  action or RPC through a connected agent, MQTT to MQTT / request and response through the engine alone
    pending     memory and round trip with 100,000 rows waiting / without
    mixed       action from an HTTP consumer to an MQTT agent and back, p50

Every runtime is a process of its own, or set up like one (accept); clients are the same on both sides of a ratio, and
part of it.
"""

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import psutil
import uvloop

from bench.bench_ledger import plain, requests
from bench.mqtt.servers import running as engine_running
from gateway.app import keep_what_start_made, started
from gateway.config import Config
from runtime.clocks import wall_clock
from tests.support import PUMP, Account
from tests.trials.process import AT_ONCE, RuntimeProcess, furnished, runtime_process
from things.identity import AccountType, Principal, Role
from things.messages import Message, Operation
from twin.store import open_twin

_QUIET = logging.getLogger("bench.deliveries.mqtt")
_QUIET.setLevel(logging.CRITICAL)
CALLERS = 200
WARM_UP = 20
TRIP_S = 30.0


# ---------------------------------------------------------------- accept


async def accepted_per_s(home: Path, count: int) -> float:
    """Queued actions through router, checks, ledger and deliveries; their agent is away."""
    await furnished(home, {"works": "agent"}, {"dtw:works:pump-1": PUMP})
    config = Config.of({"limits": {"messages_per_second": 1e9, "message_burst": 1e9}})
    config = config.with_listeners(http="off", https="off", mqtt="off", mqtts="off")
    async with started(home, config) as running:
        keep_what_start_made()  # as in a process of its own
        sink = running.runtime

        async def caller(name: str, share: int) -> None:
            who = Principal(account=name, type=AccountType.CONSUMER, role=Role.OPERATOR)
            for number in range(share):
                await sink.handle(
                    Message(
                        operation=Operation.INVOKE_ACTION,
                        principal=who,
                        thing_id="dtw:works:pump-1",
                        name="setSpeed",
                        data=number % 10,
                        received=sink.clock(),
                        correlation=f"{name}-{number}",
                    )
                )

        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(CALLERS):
                tasks.create_task(caller(f"caller-{number}", count // CALLERS))
        return count / (time.perf_counter() - began)


async def accept(rounds: int, count: int) -> None:
    rows = requests(count)
    ours, theirs, simple = [], [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            theirs.append(await asyncio.to_thread(plain, Path(folder), rows, own_tables=True))
            simple.append(await asyncio.to_thread(plain, Path(folder), rows, own_tables=False))
            ours.append(await accepted_per_s(Path(folder) / "home", count))
    mine, own, one = statistics.median(ours), statistics.median(theirs), statistics.median(simple)
    print(f"accept: {mine:,.0f} /s, plain inserts {own:,.0f} /s (one index: {one:,.0f} /s)")
    print(f"accept / plain inserts of the same rows: {mine / own:.2f} (one index: {mine / one:.2f}; aim 0.3)")


# ---------------------------------------------------------------- round trips

Trip = Callable[[int], Awaitable[None]]


async def timed(trip: Trip, count: int, at_once: int = 1) -> tuple[float, float]:
    """The middle in ms, and how many a second."""
    spent: list[float] = []
    numbers = iter(range(WARM_UP + count))

    async def worker() -> None:
        for number in numbers:
            began = time.perf_counter()
            async with asyncio.timeout(TRIP_S):
                await trip(number)
            spent.append((time.perf_counter() - began) * 1e3)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(worker())
    rate = (WARM_UP + count) / (time.perf_counter() - began)
    return statistics.median(spent[WARM_UP:]), rate


@asynccontextmanager
async def clients(*which: aiomqtt.Client) -> AsyncIterator[None]:
    for client in which:
        await client.__aenter__()
    try:
        yield
    finally:
        for client in which:
            await client.__aexit__(None, None, None)


async def stopped(*tasks: "asyncio.Task[None]") -> None:
    """End the readers; one that is just taking a message does not hear the first call."""
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        done, waiting = await asyncio.wait(waiting, timeout=0.2)
        for task in done:
            if not task.cancelled():
                task.exception()


def _client(address: tuple[str, int], name: str, secret: str = "") -> aiomqtt.Client:
    return aiomqtt.Client(
        *address,
        username=name,
        password=secret,
        protocol=aiomqtt.ProtocolVersion.V311,
        logger=_QUIET,
        socket_options=AT_ONCE,
    )


class Answers:
    """Callers waiting for what comes under a reference."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def expected(self, reference: str) -> "asyncio.Future[None]":
        self._waiting[reference] = asyncio.get_running_loop().create_future()
        return self._waiting[reference]

    def came(self, reference: str) -> None:
        future = self._waiting.pop(reference, None)
        if future is not None:
            future.set_result(None)


@asynccontextmanager
async def direct(address: tuple[str, int]) -> AsyncIterator[Trip]:
    """Request and response through the engine and nothing else, QoS 1 both ways."""
    asker, answerer, answers = _client(address, "asker"), _client(address, "answerer"), Answers()

    async def answering() -> None:
        async for message in answerer.messages:
            await answerer.publish("answer", message.payload, qos=1)

    async def hearing() -> None:
        async for message in asker.messages:
            answers.came(json.loads(message.payload)["reference"])

    async def trip(number: int) -> None:
        reference = str(number)
        answer = answers.expected(reference)
        await asker.publish("ask", json.dumps({"reference": reference}), qos=1)
        await answer

    async with clients(asker, answerer):
        await answerer.subscribe("ask", qos=1)
        await asker.subscribe("answer", qos=1)
        tasks = [asyncio.create_task(answering()), asyncio.create_task(hearing())]
        yield trip
        await stopped(*tasks)


@asynccontextmanager
async def through(process: RuntimeProcess, works: Account, ann: Account, kind: str, tag: str) -> AsyncIterator[Trip]:
    """The same as an action or an RPC, answered by a connected agent."""
    agent = _client(process.mqtt_address, works.name, works.token)
    caller, answers = _client(process.mqtt_address, ann.name, ann.token), Answers()

    async def answering() -> None:
        async for message in agent.messages:
            request_id = str(message.topic).rpartition("/")[2]
            await agent.publish(f"agents/works/status/{request_id}", '{"state":"completed"}', qos=1)

    async def hearing() -> None:
        async for message in caller.messages:
            status = json.loads(message.payload)
            assert status["state"] in ("pending", "delivered", "completed"), status
            if status["state"] == "completed":
                answers.came(status["callerRef"])

    async def trip(number: int) -> None:
        reference = f"{tag}-{number}"
        answer = answers.expected(reference)
        await caller.publish(f"req/ann/{kind}/works/pump-1/setSpeed/{reference}", "3", qos=1)
        await answer

    async with clients(agent, caller):
        await agent.subscribe("inbox/works/#", qos=1)
        await caller.subscribe("inbox/ann/#", qos=1)
        tasks = [asyncio.create_task(answering()), asyncio.create_task(hearing())]
        yield trip
        await stopped(*tasks)


@asynccontextmanager
async def mixed(process: RuntimeProcess, works: Account, ann: Account) -> AsyncIterator[Trip]:
    """An HTTP consumer that waits for the answer of an MQTT agent."""
    agent = _client(process.mqtt_address, works.name, works.token)

    async def answering() -> None:
        async for message in agent.messages:
            request_id = str(message.topic).rpartition("/")[2]
            await agent.publish(f"agents/works/status/{request_id}", '{"state":"completed","output":{}}', qos=1)

    async with clients(agent), process.client(ann) as client:
        await agent.subscribe("inbox/works/#", qos=1)
        task = asyncio.create_task(answering())

        async def trip(number: int) -> None:
            reply = await client.post(
                "/things/dtw:works:pump-1/actions/setSpeed", content="3", headers={"prefer": "wait=10"}
            )
            assert reply.status_code == 200, reply.text

        yield trip
        await stopped(task)


async def round_trips(home: Path, rounds: int, count: int, pending: int) -> None:
    accounts = await furnished(
        home,
        {"works": "agent", "away": "agent", "ann": "operator"},
        {"dtw:works:pump-1": PUMP, "dtw:away:pump-1": PUMP},
        "[limits]\nmessages_per_second = 1000000\nmessage_burst = 1000000\n",
    )
    works, ann = accounts["works"], accounts["ann"]
    figures: dict[str, list[tuple[float, float]]] = {}

    async def take(name: str, trip: Trip, at_once: int) -> None:
        figures.setdefault(f"{name}, {at_once} at once", []).append(await timed(trip, count, at_once))

    async with runtime_process(home) as process:
        with engine_running("native") as engine:
            for number in range(rounds):
                for at_once in (1, 20):
                    async with direct(("127.0.0.1", engine.port)) as trip:
                        await take("direct", trip, at_once)
                    for kind in ("rpc", "action"):
                        async with through(process, works, ann, kind, f"{kind}-{number}-{at_once}") as trip:
                            await take(kind, trip, at_once)
        async with mixed(process, works, ann) as trip:
            await take("MQTT agent, HTTP consumer", trip, 1)
        await process.terminate()
        medians = {
            name: (statistics.median(ms for ms, _ in each), statistics.median(rate for _, rate in each))
            for name, each in figures.items()
        }
        for name, (ms, rate) in medians.items():
            base = medians[f"direct, {name.rpartition(', ')[2]}"]
            print(f"{name:40} p50 {ms:7.2f} ms  {rate:7.0f} /s   {rate / base[1]:.2f} × direct (aim 0.5)")
        await with_pending(process, home, works, ann, count, pending)


async def with_pending(
    process: RuntimeProcess, home: Path, works: Account, ann: Account, count: int, pending: int
) -> None:
    """Start with an empty queue and with a full one, and compare."""

    async def once(tag: str) -> tuple[int, float]:
        await process.start()
        async with through(process, works, ann, "action", tag) as trip:
            ms, _ = await timed(trip, count)
        resident = psutil.Process(process.pid).memory_info().rss
        await process.terminate()
        return resident, ms

    empty, before_ms = await once("before")
    async with open_twin(home, clock=wall_clock) as twin:
        for first in range(0, pending, 5_000):
            rows = requests(min(5_000, pending - first), first)
            now = wall_clock()
            waiting: dict[str, Any] = {"thing_id": "dtw:away:pump-1", "agent": "away", "expires": now + 3_600_000_000}
            waits = (replace(row, created=now, updated=now, **waiting) for row in rows)
            await asyncio.gather(*map(twin.ledger.open, waits))
    full, after_ms = await once("after")
    print(f"{pending:,} pending rows: {(full - empty) / 1e6:.1f} MB more (aim < 50)")
    print(f"action round trip {before_ms:.2f} ms without, {after_ms:.2f} ms with them: {after_ms / before_ms:.2f} ×")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--count", type=int, default=10_000)
    options.add_argument("--trips", type=int, default=400)
    options.add_argument("--pending", type=int, default=100_000)
    given = options.parse_args()
    uvloop.run(accept(given.rounds, given.count))
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as folder:
        asyncio.run(round_trips(Path(folder) / "home", given.rounds, given.trips, given.pending))


if __name__ == "__main__":
    main()
