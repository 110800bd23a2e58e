"""What it costs to ask a directory of 10,000 descriptions in SPARQL, and what it costs everybody else.

    python -m bench.bench_sparql [THINGS]

Prints one line a figure. Descriptions have 2.5 KB in the mean and come from 100 agents. The first query makes the
index; the joins are asked by who sees everything, by a viewer, who sees no actions, and by an agent, who sees its own.
Then one client reads single Things, alone and while another searches in a loop.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
import psutil
import uvloop

from bench.bench_directory import AGENTS, GROUP, say
from gateway.app import Running, started
from gateway.config import Config
from things.identity import AccountType, Role
from things.td import ThingDescription

ROUNDS = 9
READS = 1_500
VOCABULARY = "PREFIX td: <https://www.w3.org/2019/wot/td#> PREFIX js: <https://www.w3.org/2019/wot/json-schema#> "
JOINS = {
    "join, 100 of all found": """SELECT ?thing ?title ?name WHERE {
        ?thing a <urn:example:Kind7> ; td:title ?title ; td:hasPropertyAffordance ?one .
        ?one a js:NumberSchema ; td:name ?name ; <http://schema.org/unitCode> <urn:skep:v1#celsius> }""",
    "join over all, counted": """SELECT ?kind (COUNT(?one) AS ?count) WHERE {
        ?thing a ?kind ; td:hasPropertyAffordance ?one . ?one td:name "target" ; js:maximum 30 } GROUP BY ?kind""",
    "join over all, two affordances": """SELECT (COUNT(?thing) AS ?count) WHERE {
        ?thing td:hasPropertyAffordance/td:name "temperature" ; td:hasEventAffordance/td:name "alarm" }""",
}


def td_of(number: int) -> ThingDescription:
    """Of 2.5 KB: a device of a family, with what such devices say of themselves."""

    def quantity(name: str, unit: str, **more: Any) -> dict[str, Any]:
        about = f"The {name} that device {number} of the family measures, as its data sheet says."
        return {"title": name.capitalize(), "description": about, "type": "number", "unit": unit, **more}

    return ThingDescription.of(
        {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#", "ex": "urn:example:"}],
            "@type": ["skep:Sensor", f"ex:Kind{number % 100}"],
            "title": f"Sensor {number}",
            "description": "Climate of one room, with a fan and two shutters that keep it comfortable.",
            "properties": {
                "temperature": quantity("temperature", "skep:celsius", readOnly=True),
                "target": quantity("target", "skep:celsius", minimum=5, maximum=30),
                **{
                    name: quantity(name, "skep:percent", minimum=0, maximum=100, readOnly=True)
                    for name in ("humidity", "brightness", "battery", "carbonDioxide", "fan", "left", "right")
                },
                "state": {
                    "type": "object",
                    "properties": {"mode": {"type": "string", "enum": ["off", "auto", "manual"]}, "since": {}},
                },
            },
            "events": {"alarm": {"title": "Alarm", "data": {"type": "string"}}, "moved": {"title": "Moved"}},
            "actions": {
                name: {"title": name.capitalize(), "input": {"type": "integer", "minimum": 0, "maximum": 100}}
                for name in ("ventilate", "openShutters", "closeShutters")
            },
        },
        agent=True,
    )


async def write_all(running: Running, count: int) -> None:
    directory = running.stores.twin.directory
    for first in range(0, count, GROUP):
        await asyncio.gather(
            *(
                directory.put(
                    f"dtw:agent{number % AGENTS}:sensor-{number:05}", td_of(number), agent=f"agent{number % AGENTS}"
                )
                for number in range(first, min(first + GROUP, count))
            )
        )
    say("mean description", f"{sum(len(td_of(number).text) for number in range(100)) / 102_400:.1f} KiB")


async def ask(http: httpx2.AsyncClient, query: str) -> float:
    """Seconds until it is answered."""
    began = perf_counter()
    reply = await http.get("/search/sparql", params={"query": VOCABULARY + query})
    while reply.status_code == 503:
        reply = await http.get("/search/sparql", params={"query": VOCABULARY + query})
    assert reply.status_code == 200, reply.text
    return perf_counter() - began


async def read_beside(http: httpx2.AsyncClient, count: int, beside: Any) -> tuple[float, float]:
    """Median and p99 of reading single Things, in ms, while `beside` is repeated."""

    async def searching() -> None:
        while True:
            await beside()

    searcher = asyncio.create_task(searching()) if beside is not None else None
    taken = []
    for number in range(READS):
        at = number * 7 % count
        began = perf_counter()
        reply = await http.get(f"/things/dtw:agent{at % AGENTS}:sensor-{at:05}")
        assert reply.status_code == 200
        taken.append(perf_counter() - began)
        await asyncio.sleep(0.002)
    if searcher is not None:
        searcher.cancel()
    taken.sort()
    return taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3


async def main(count: int) -> None:
    free = {"http": "127.0.0.1:0", "https": None}
    with tempfile.TemporaryDirectory() as home:
        async with started(Path(home), Config.of({"http": free, "mqtt": {"mqtt": None, "mqtts": None}})) as running:
            assert running.http is not None
            administration = running.stores.authenticator.administration
            clients = {}
            for name, type_, role in (
                ("manager", AccountType.CONSUMER, Role.ADMIN),
                ("viewer", AccountType.CONSUMER, Role.VIEWER),
                ("agent7", AccountType.AGENT, Role.AGENT),
            ):
                _, token = await administration.add(name, type_, role, by="bench")
                headers = {"Authorization": f"Bearer {token}"}
                clients[name] = httpx2.AsyncClient(base_url=running.http, headers=headers, timeout=90)
            await write_all(running, count)
            say("first query, which makes the index (target 20 s)", f"{await ask(clients['manager'], 'ASK {}'):.1f} s")
            (process,) = psutil.Process().children()
            memory_kib = process.memory_info().rss / 1024
            say(
                "memory of the index process",
                f"{memory_kib / 1024:.0f} MiB, {memory_kib / count:.1f} KiB a description",
            )
            for name, http in clients.items():
                first = await ask(http, "ASK {}")
                say(f"{name}: first query of a caller", f"{first * 1e3:.0f} ms")
                for what, query in JOINS.items():
                    best = min([await ask(http, query) for _ in range(ROUNDS)])
                    say(f"{name}: {what} (target 300 ms)", f"{best * 1e3:.0f} ms")
            began = perf_counter()
            for number in range(100):
                await running.stores.twin.directory.put(
                    f"dtw:agent0:sensor-{number * 100:05}", td_of(number * 100 + 1), agent="agent0"
                )
                await ask(clients["manager"], "ASK {}")
            say("change and ask", f"{(perf_counter() - began) * 10:.1f} ms each")
            viewer, other = clients["viewer"], clients["manager"]
            for what, beside in (
                ("alone", None),
                ("beside SPARQL in a loop", lambda: ask(other, JOINS["join over all, counted"])),
                ("beside JSONPath in a loop", lambda: other.get("/search/jsonpath?query=$[*].properties.target.unit")),
            ):
                median, most = await read_beside(viewer, count, beside)
                say(f"GET of a Thing {what}", f"p50 {median:.1f} ms, p99 {most:.1f} ms")
            for http in clients.values():
                await http.aclose()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
