"""What a directory of 10,000 Things costs: writing, reading over HTTP beside a bare server, listing, filtering.

    python -m bench.bench_directory [THINGS]

Prints one line a figure. Writes come grouped, as many agents at once make them. `first` is a request that finds nothing
remembered; processor time is that of the whole process, client and server.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import httpx2
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.bench_http import rate_of as answered_per_s
from bench.bench_http import written
from gateway.app import Running, started
from gateway.config import Config
from things.addresses import Kind
from things.identity import AccountType, Role
from things.records import Value
from things.td import ThingDescription

AGENTS = 100
GROUP = 200
"""Writes under way at the same time."""
WRITERS = 32
"""Connections that write at the same time."""
PUTS = 2_000
GETS = 2_000
CONNECTIONS = 4


def td_of(number: int) -> ThingDescription:
    return ThingDescription.of(
        {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"saref": "https://saref.etsi.org/core/"}],
            "@type": ["saref:Sensor", f"saref:Kind{number % 500}"],
            "title": f"Sensor {number}",
            "description": "Temperature and humidity of one room.",
            "properties": {
                "temperature": {"type": "number", "unit": "Cel", "readOnly": True},
                "humidity": {"type": "number", "unit": "%", "minimum": 0, "maximum": 100, "readOnly": True},
                "target": {"type": "number", "minimum": 5, "maximum": 30},
            },
            "events": {"alarm": {"data": {"type": "string"}}},
            "actions": {"calibrate": {"input": {"type": "number"}}},
        },
        agent=True,
    )


def thing_id(number: int) -> str:
    return f"dtw:agent{number % AGENTS}:sensor-{number:05}"


def resident_kib() -> int:
    """Memory of this process, from the kernel."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024)


def say(what: str, figure: str) -> None:
    print(f"{what:44} {figure}", flush=True)


async def write_all(running: Running, count: int) -> None:
    directory = running.stores.twin.directory
    tds = [td_of(number) for number in range(count)]
    text_kib = sum(len(td.text) for td in tds) / 1024
    before, began = resident_kib(), perf_counter()
    for first in range(0, count, GROUP):
        await asyncio.gather(
            *(
                directory.put(thing_id(number), tds[number], agent=f"agent{number % AGENTS}")
                for number in range(first, min(first + GROUP, count))
            )
        )
    rate = count / (perf_counter() - began)
    say(f"PUT, {GROUP} at a time (target 1,000/s)", f"{rate:,.0f}/s")
    grown = (resident_kib() - before) / count  # the texts were there before
    say(f"memory a TD beyond its text of {text_kib / count:.1f} KiB (target 6)", f"{grown:.1f} KiB")


async def list_all(http: httpx2.AsyncClient, count: int) -> None:
    """Page through everything, so that all is remembered that will be."""
    before, found = resident_kib(), 0
    began, path = perf_counter(), "/things?limit=100"
    while path:
        page = await http.get(path)
        assert page.status_code == 200, page.text
        found += len(page.json())
        path = page.links.get("next", {}).get("url", "")
    assert found >= count
    say("all, by pages of 100", f"{perf_counter() - began:.1f} s for {found}")
    say("memory a TD beyond that, once all were listed", f"{(resident_kib() - before) / count:.1f} KiB")


def publish_values(running: Running, count: int) -> None:
    """A temperature of every Thing, as its agent's publishing leaves it."""
    for number in range(count):
        value = Value(value=number / 100, payload=b"", created=1, received=1, row_id=number + 1)
        running.stores.twin.values.put(thing_id(number), Kind.PROPERTY, "temperature", value)


async def best_ms(work: Callable[[], Awaitable[object]], rounds: int = 7) -> tuple[float, float]:
    """By the clock, and of processor time."""
    best = processor = float("inf")
    for _ in range(rounds):
        began, spent = perf_counter(), process_time()
        await work()
        best, processor = min(best, perf_counter() - began), min(processor, process_time() - spent)
    return best * 1e3, processor * 1e3


async def put_rate(base: str, token: str, path: Callable[[int], str], document: Callable[[int], dict[str, Any]]) -> str:
    """PUTs a second over many connections, each a new entry, and their processor time."""
    requests = [
        [
            written("PUT", path(number), json.dumps(document(number)).encode(), token)
            for number in range(first, PUTS, WRITERS)
        ]
        for first in range(WRITERS)
    ]
    spent = process_time()
    rate = await answered_per_s(int(base.rpartition(":")[2]), [iter(each) for each in requests])
    processor = (process_time() - spent) / PUTS
    return f"{rate:,.0f}/s ({processor * 1e6:,.0f} µs of processor time each, client included)"


async def rate_of(base: str, paths: list[str], headers: dict[str, str]) -> float:
    """GETs a second over a few connections, the best of several rounds."""
    limits = httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    best = 0.0
    async with httpx2.AsyncClient(base_url=base, headers=headers, limits=limits) as http:

        async def some(part: list[str]) -> None:
            for path in part:
                reply = await http.get(path)
                assert reply.status_code == 200

        for _ in range(3):
            began = perf_counter()
            await asyncio.gather(*(some(paths[start::CONNECTIONS]) for start in range(CONNECTIONS)))
            best = max(best, len(paths) / (perf_counter() - began))
    return best


@asynccontextmanager
async def bare_server(body: bytes) -> AsyncIterator[str]:
    """A Starlette route that answers with the same number of bytes."""

    async def answer(request: Request) -> Response:
        return Response(body, media_type="application/td+json")

    app = Starlette(routes=[Route("/things/{id}", answer)])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", access_log=False))
    listener = socket.create_server(("127.0.0.1", 0))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]))
        # Connections wait in the listener's queue until the server takes them.
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True


async def main(count: int) -> None:
    free = {"http": "127.0.0.1:0", "https": None}
    config = Config.of({"http": free, "mqtt": {"mqtt": None, "mqtts": None}})
    with tempfile.TemporaryDirectory() as home:
        async with started(Path(home), config) as running:
            assert running.http is not None
            administration = running.stores.authenticator.administration
            _, token = await administration.add("bench", AccountType.CONSUMER, Role.VIEWER, by="bench")
            headers = {"Authorization": f"Bearer {token}"}
            for number in range(AGENTS):
                await administration.add(f"agent{number}", AccountType.AGENT, Role.AGENT, by="bench")
            _, manager = await administration.add("writer", AccountType.CONSUMER, Role.MANAGER, by="bench")
            _, agent = await administration.add("agent", AccountType.AGENT, Role.AGENT, by="bench")
            await write_all(running, count)
            publish_values(running, count)
            async with httpx2.AsyncClient(base_url=running.http, headers=headers, timeout=60) as http:

                async def get(path: str) -> None:
                    reply = await http.get(path)
                    assert reply.status_code == 200, reply.text

                middle = count // 2
                few, half = count / 100 - 0.05, count / 200
                for what, path in (
                    ("first page of 100 (target 20 ms)", "/things?limit=100"),
                    (f"page of 100 after {middle} (target 20 ms)", f"/things?limit=100&cursor={thing_id(middle)}"),
                    (f"page of 100 from offset {middle}", f"/things?limit=100&offset={middle}"),
                    ("filter by @type (target 20 ms)", "/things?filter=%40type%20%3D%20saref%3AKind7"),
                    ("filter by title (target 20 ms)", f"/things?filter=title%20%3D%20%22Sensor%20{middle}%22"),
                    ("filter by agent, page of 100 (target 20 ms)", "/things?filter=agent%20%3D%20agent7&limit=100"),
                    ("filter by part of a title (target 20 ms)", f"/things?filter=title%20~%20%22r%20{middle}%22"),
                    ("filter by a value, few pass (target 20 ms)", f"/things?filter=temperature%20%3E%20{few}"),
                    (
                        "filter by a value, page of half (target 20 ms)",
                        f"/things?filter=temperature%20%3E%20{half}&limit=100",
                    ),
                    ("filter by no value, all looked at", "/things?filter=temperature%20%3D%20null"),
                ):
                    began = perf_counter()
                    await get(path)
                    first_ms = (perf_counter() - began) * 1e3

                    async def again(path: str = path) -> None:
                        await get(path)

                    clock_ms, processor_ms = await best_ms(again)
                    say(what, f"{clock_ms:.1f} ms, {processor_ms:.1f} ms of processor time (first {first_ms:.1f} ms)")
                await list_all(http, count)
                one = await http.get(f"/things/{thing_id(middle)}")
            paths = [f"/things/{thing_id(number % count)}" for number in range(GETS)]
            ours = await rate_of(running.http, paths, headers)
            # The client takes its share of this process in both.
            async with bare_server(one.content) as base:
                bare = await rate_of(base, paths, headers)
            say("GET by id", f"{ours:,.0f}/s")
            say("GET of a bare Starlette route", f"{bare:,.0f}/s")
            say("ratio (target 0.5)", f"{ours / bare:.2f}")
            td = json.loads(td_of(0).text)
            strict = td | {"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n"}
            for kind in ("properties", "actions", "events"):
                strict[kind] = {
                    name: one | {"forms": [{"href": f"https://device.example/{name}"}]}
                    for name, one in td[kind].items()
                }
            for what, token, path, document in (
                ("PUT by an agent over HTTP (target 1,000/s)", agent, "/agent/things/sensor-", td),
                ("PUT of an entry over HTTP (target 1,000/s)", manager, "/things/urn:example:sensor-", strict),
            ):

                def numbered(number: int, document: dict[str, Any] = document) -> dict[str, Any]:
                    return {**document, "title": f"Sensor {number}"}

                def address(number: int, path: str = path) -> str:
                    return f"{path}{number}"

                say(what, await put_rate(running.http, str(token), address, numbered))


if __name__ == "__main__":
    # The loop of a real runtime.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
