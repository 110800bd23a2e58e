"""The messaging node under load: requests per second, allocation, fan-out to many, memory of idle connections.

    python -m bench.bench_node [--connections 10] [--subscribers 1000] [--idle 500]

Raw WebSocket clients in a process of their own against one node; figures are wall-clock, and ratios to the targets.
"""

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from gateway.app import started
from gateway.config import Config

NODE = "domain://msg-node.localhost"
WINDOW = 50
"""Requests one connection has under way."""


async def _serve(pipe: Connection, home: Path) -> None:
    config = Config.of(
        {
            "http": {"http": "127.0.0.1:0", "https": None},
            "mqtt": {"mqtt": None, "mqtts": None},
            "messaging_node": {"open": True},
            "limits": {"messages_per_second": 1_000_000, "message_burst": 1_000_000},
        }
    )
    async with started(home, config) as running:
        pipe.send(running.http)
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)


def _server(pipe: Connection, home: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(pipe, Path(home)))


async def _opened(url: str, name: str) -> ClientConnection:
    socket = await connect(url, compression=None, max_queue=None)
    await _ask(socket, "open", f"rt://{name}", "mn:/session")
    return socket


async def _ask(socket: ClientConnection, type_: str, sender: str, to: str, body: Any = None, id_: int = 1) -> Any:
    await socket.send(json.dumps({"id": id_, "type": type_, "from": sender, "to": to, "body": body or {}}))
    answer = json.loads(await socket.recv())
    assert answer["body"]["code"] == 200, answer
    return answer


async def _requests(url: str, connections: int, each: int) -> float:
    """Requests answered by the node, per second."""
    sockets = [await _opened(url, f"req{number}") for number in range(connections)]
    text = json.dumps({"id": 1, "type": "read", "from": "me", "to": "domain://idm.localhost", "body": {}})

    async def run(socket: ClientConnection) -> None:
        sent = got = 0
        while got < each:
            while sent < each and sent - got < WINDOW:
                await socket.send(text)
                sent += 1
            await socket.recv()
            got += 1

    began = time.perf_counter()
    await asyncio.gather(*(run(socket) for socket in sockets))
    took = time.perf_counter() - began
    await asyncio.gather(*(socket.close() for socket in sockets))
    return connections * each / took


async def _relayed(url: str, pairs: int, each: int) -> float:
    """Requests that another runtime answers through the node, per second; each is four WebSocket frames."""

    async def run(number: int) -> None:
        asking, answering = await _opened(url, f"ask{number}"), await _opened(url, f"ans{number}")
        allocated = await _ask(answering, "create", f"rt://ans{number}", f"{NODE}/address-allocation")
        address = allocated["body"]["value"]["allocated"][0]

        async def answer() -> None:
            for _ in range(each):
                asked = json.loads(await answering.recv())
                body = {
                    "id": asked["id"],
                    "type": "response",
                    "from": address,
                    "to": asked["from"],
                    "body": {"code": 200},
                }
                await answering.send(json.dumps(body))

        task = asyncio.create_task(answer())
        sent = got = 0
        while got < each:
            while sent < each and sent - got < WINDOW:
                sent += 1
                await asking.send(json.dumps({"id": sent, "type": "read", "from": "me", "to": address, "body": {}}))
            await asking.recv()
            got += 1
        await task
        await asking.close()
        await answering.close()

    began = time.perf_counter()
    await asyncio.gather(*(run(number) for number in range(pairs)))
    return pairs * each / (time.perf_counter() - began)


async def _allocation(url: str, number: int) -> float:
    """Seconds to allocate that many addresses, one a message."""
    socket = await _opened(url, "alloc")
    text = json.dumps({"id": 1, "type": "create", "from": "me", "to": f"{NODE}/address-allocation", "body": {}})
    began = time.perf_counter()
    for _ in range(number):
        await socket.send(text)
    for _ in range(number):
        await socket.recv()
    took = time.perf_counter() - began
    await socket.close()
    return took


async def _fan_out(url: str, subscribers: int, rounds: int) -> tuple[float, int]:
    """Seconds from one change to its last subscriber (the worst of the rounds), and how many were lost."""
    sockets: list[ClientConnection] = []
    for start in range(0, subscribers, 50):
        sockets += await asyncio.gather(*(_opened(url, f"sub{start + n}") for n in range(min(50, subscribers - start))))
    for number, socket in enumerate(sockets):
        await _ask(
            socket, "subscribe", f"rt://sub{number}", f"{NODE}/sm", {"resources": ["comm://localhost/o/changes"]}
        )
    reporter = await _opened(url, "reporter")
    message = {"id": 1, "type": "update", "from": "comm://localhost/o", "to": "comm://localhost/o/changes"}
    worst, got = 0.0, 0
    for number in range(rounds):
        began = time.perf_counter()
        await reporter.send(json.dumps(message | {"body": {"attribute": "n", "value": number}}))
        try:
            async with asyncio.timeout(10):
                found = await asyncio.gather(*(socket.recv() for socket in sockets))
                got += sum(json.loads(one)["body"]["value"] == number for one in found)
        except TimeoutError:
            break
        worst = max(worst, time.perf_counter() - began)
    await asyncio.gather(*(socket.close() for socket in (*sockets, reporter)))
    return worst, subscribers * rounds - got


async def _idle(url: str, connections: int, process: psutil.Process) -> float:
    """KiB the server holds for one idle connection."""
    before = process.memory_info().rss
    sockets = [await _opened(url, f"idle{number}") for number in range(connections)]
    await asyncio.sleep(1.0)
    after = process.memory_info().rss
    await asyncio.gather(*(socket.close() for socket in sockets))
    return (after - before) / connections / 1024


async def _run(url: str, process: psutil.Process, options: argparse.Namespace) -> None:
    url = f"{url.replace('http', 'ws', 1)}/ws"
    idle = await _idle(url, options.idle, process)
    print(f"idle connection      {idle:8.1f} KiB      target <= 64      ratio {64 / max(idle, 0.1):.1f}", flush=True)
    rate = await _requests(url, options.connections, options.requests)
    print(f"requests to the node {rate:8.0f} /s       target >= 5000    ratio {rate / 5_000:.2f}", flush=True)
    relayed = await _relayed(url, options.connections // 2, options.requests)
    print(f"relayed and answered {relayed:8.0f} /s       ({2 * relayed:.0f} messages/s routed)", flush=True)
    took = await _allocation(url, 10_000)
    print(f"10,000 allocations   {took:8.2f} s        target < 3        ratio {3 / took:.1f}", flush=True)
    worst, lost = await _fan_out(url, options.subscribers, 5)
    print(
        f"fan-out to {options.subscribers:<5}     {worst:8.2f} s        target < 1        ratio {1 / worst:.1f}",
        lost,
        "lost",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10)
    parser.add_argument("--requests", type=int, default=2_000, help="of each connection")
    parser.add_argument("--subscribers", type=int, default=1_000)
    parser.add_argument("--idle", type=int, default=500)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as home:
        server = context.Process(target=_server, args=(theirs, home))
        server.start()
        try:
            url = ours.recv()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_run(url, psutil.Process(server.pid), options))
        finally:
            ours.send("stop")
            server.join(15)
            if server.is_alive():
                server.kill()


if __name__ == "__main__":
    main()
