"""From a cold start to an answered action: start to ready, idle memory, action round trip, an agent's throughput.

    python -m bench.bench_journey [--rounds 300] [--readings 20000]

The runtime is a process of its own, the agent comes by MQTT and the consumer by HTTPS, both over TLS. The round trip is
compared with a request that only reads a value over the same connection.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from pydantic import JsonValue

from skep import Agent, AgentRequest, Consumer

TD: dict[str, JsonValue] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Bench",
    "properties": {"value": {"type": "number"}},
    "actions": {"echo": {"input": {"type": "number"}}},
}
WARM_UP = 20


async def measured(rounds: int, once: Callable[[int], Awaitable[object]]) -> list[float]:
    """Milliseconds of each call, sorted; the first ones do not count."""
    spent: list[float] = []
    for number in range(rounds + WARM_UP):
        began = time.perf_counter()
        await once(number)
        spent.append((time.perf_counter() - began) * 1_000)
    return sorted(spent[WARM_UP:])


def told(what: str, spent: list[float]) -> float:
    """Print the middle and the tail; returns the middle."""
    middle = statistics.median(spent)
    print(f"{what:<42} p50 {middle:6.2f} ms   p99 {spent[int(len(spent) * 0.99) - 1]:6.2f} ms")
    return middle


async def journey(home: Path, ready: dict[str, Any], rounds: int, readings: int) -> None:
    async with Consumer(socket=home / "control.sock") as admin:
        tokens: list[str] = []
        for name, kind, role in (("bench", "agent", "agent"), ("ann", "consumer", "operator")):
            made = await admin.call("dtw:authn:admin", "addClient", {"clientID": name, "type": kind, "role": role})
            assert isinstance(made, dict)
            tokens.append(str(made["token"]))
    agent = Agent(ready["mqtts"], "bench", tokens[0], ca=ready["ca"])
    agent.expose("thing", TD)

    @agent.action("thing", "echo")
    async def echo(data: JsonValue, request: AgentRequest) -> JsonValue:
        return data

    async with agent, Consumer(ready["https"], token=tokens[1], ca=ready["ca"]) as consumer:
        await agent.publish("thing", "value", 0)
        await agent.flush()
        thing = consumer.thing("dtw:bench:thing")

        async def invoked(number: int) -> None:
            requested = await thing.invoke("echo", number, wait_s=10)
            assert requested.output == number

        read = told("read a value (HTTPS)", await measured(rounds, lambda _: thing.read("value")))
        called = told("RPC (HTTPS to MQTT agent and back)", await measured(rounds, lambda n: thing.call("echo", n)))
        asked = told("action (the same, kept in the ledger)", await measured(rounds, invoked))
        print(f"{'action / read':<42} {asked / read:6.2f} x;  action / RPC {asked / called:.2f} x")

        began = time.perf_counter()
        for number in range(readings):
            await agent.publish("thing", "value", number)
        await agent.flush(120)
        rate = readings / (time.perf_counter() - began)
        print(
            f"{'readings of one agent, stored and synced':<42} {rate:8.0f} /s (bounded by limits.messages_per_second)"
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=300)
    options.add_argument("--readings", type=int, default=20_000)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="skep-bench-") as folder:
        home, ready = Path(folder) / "home", Path(folder) / "ready.json"
        listeners = [f"--{name}=127.0.0.1:0" for name in ("http", "https", "mqtt", "mqtts")]
        command = [sys.executable, "-m", "skep", "run", "--home", str(home), "--ready-file", str(ready), *listeners]
        with (Path(folder) / "log").open("w") as log:
            for start in ("first", "second"):
                began = time.perf_counter()
                process = subprocess.Popen(command, stdout=log, stderr=log)
                while not ready.exists() and process.poll() is None:
                    time.sleep(0.01)
                if not ready.exists():
                    sys.exit(f"the runtime ended: {(Path(folder) / 'log').read_text('utf-8')[-500:]}")
                print(f"{f'{start} start to ready':<42} {time.perf_counter() - began:6.2f} s")
                if start == "first":
                    process.terminate()
                    process.wait()
            try:
                time.sleep(2)
                print(f"{'idle memory (RSS)':<42} {psutil.Process(process.pid).memory_info().rss / 1e6:6.1f} MB")
                asyncio.run(journey(home, json.loads(ready.read_text("utf-8")), given.rounds, given.readings))
            finally:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
