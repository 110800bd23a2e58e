"""Event ingest and value reads by HTTP against a bare Starlette application on the same server, in one run.

    python -m bench.bench_http [--seconds 3] [--connections 16]

The runtime, the baseline and the load are processes of their own. The load keeps one request under way on each of its
connections and answers nothing but the next one. Both servers run uvicorn with uvloop and httptools.
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from skep import Consumer

ROUNDS = 3

BASELINE = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

async def take(request):
    await request.body()
    return Response(status_code=204)

async def give(request):
    return JSONResponse({"value": 1})

app = Starlette(routes=[Route("/x", take, methods=["POST"]), Route("/x", give, methods=["GET"])])
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
"""

TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Bench",
    "properties": {"value": {"type": "number"}},
    "events": {"tick": {"data": {"type": "number"}}},
}


class _Connection(asyncio.Protocol):
    """One keep-alive connection: sends the next request whenever an answer is whole, and closes after the last."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.answers = 0
        self.refused = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        transport.write(next(self.requests))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        self.answers += 1
        self.refused += head[9:10] != b"2"
        following = next(self.requests, None)
        if following is not None:
            self.transport.write(following)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def rate(port: int, request: bytes, *, connections: int, seconds: float) -> float:
    """Answers per second to one request sent over and over; raises if any was not a success."""
    until = time.perf_counter() + seconds

    def again() -> Iterator[bytes]:
        yield request
        while time.perf_counter() < until:
            yield request

    return await rate_of(port, [again() for _ in range(connections)])


async def rate_of(port: int, requests: Sequence[Iterator[bytes]]) -> float:
    """Answers per second to several series of requests, each over a connection of its own; raises if any was not a
    success."""
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [(await loop.create_connection(partial(_Connection, each), "127.0.0.1", port))[1] for each in requests]
    await asyncio.gather(*(connection.done for connection in made))
    refused = sum(connection.refused for connection in made)
    if refused:
        raise RuntimeError(f"{refused} requests were refused")
    return sum(connection.answers for connection in made) / (time.perf_counter() - began)


def written(method: str, path: str, body: bytes = b"", token: str = "") -> bytes:
    """One HTTP/1.1 request."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
    if body:
        lines.append("content-type: application/json")
    if token:
        lines.append(f"authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def compared(port: int, bare: int, token: str, *, connections: int, seconds: float) -> None:
    agent_event = written("POST", "/agent/things/thing/events/tick", b"1.5", token)
    fast_event = written("POST", "/agent/things/thing/events/tick?guarantee=none", b"1.5", token)
    read_value = written("GET", "/things/dtw:bench:thing/properties/value", b"", token)
    read_td = written("GET", "/things/dtw:bench:thing", b"", token)
    bare_post, bare_get = written("POST", "/x", b"1.5"), written("GET", "/x")
    rows = (
        ("event, acknowledged after the commit", agent_event, bare_post, 0.5),
        ("event, guarantee=none", fast_event, bare_post, 0.5),
        ("latest value", read_value, bare_get, 0.5),
        ("Thing Description", read_td, bare_get, 0.5),
    )
    print(f"{'':<40} {'skep/s':>9} {'bare/s':>9} {'ratio':>7}  wanted")
    for name, ours, theirs, wanted in rows:
        pairs = [
            (
                await rate(port, ours, connections=connections, seconds=seconds),
                await rate(bare, theirs, connections=connections, seconds=seconds),
            )
            for _ in range(ROUNDS)
        ]
        mine = statistics.median(first for first, _ in pairs)
        plain = statistics.median(second for _, second in pairs)
        ratio = statistics.median(first / second for first, second in pairs)
        print(f"{name:<40} {mine:9,.0f} {plain:9,.0f} {ratio:7.2f}  ≥ {wanted}")


@contextmanager
def _process(*command: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(15)


async def _listening(port: int) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def main(seconds: float, connections: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, bare = Path(folder) / "home", 0
        home.mkdir()
        (home / "skep.toml").write_text("[limits]\nmessages_per_second = 1e9\nmessage_burst = 1e9\n")
        ready = Path(folder) / "ready.json"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            bare = probe.getsockname()[1]
        listeners = ("--http", "127.0.0.1:0", "--https", "off", "--mqtt", "off", "--mqtts", "off")
        with (
            _process("-c", BASELINE, str(bare)),
            _process("-m", "skep", "run", "--home", str(home), "--ready-file", str(ready), *listeners),
        ):
            async with asyncio.timeout(30):
                while not ready.exists():  # noqa: ASYNC110 - a file tells nobody that it is there
                    await asyncio.sleep(0.1)
            port = int(json.loads(ready.read_text())["http"].rpartition(":")[2])
            await _listening(bare)
            async with Consumer(socket=home / "control.sock") as admin:
                made = await admin.call("dtw:authn:admin", "addClient", {"clientID": "bench", "type": "agent"})
            assert isinstance(made, dict)
            token = str(made["token"])
            for request in (
                written("PUT", "/agent/things/thing", json.dumps(TD).encode(), token),
                written("POST", "/agent/things/thing/properties", b'{"value": 1.5}', token),
            ):
                await rate(port, request, connections=1, seconds=0)
            await compared(port, bare, token, connections=connections, seconds=seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--connections", type=int, default=16)
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.connections))
