"""Honest clients of a gateway, as cheap as they can be: meters that publish at a steady rate, and a canary that asks by
MQTT, HTTP and an event stream how long answers take."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.bindings.mqtt import wire
from tests.trials.canary.neighbours import Site

METERS = 5
TICK_S = 0.02
MOST_UNACKNOWLEDGED = 2_000
PAUSE_S = 0.01
"""Between two askings of the canary."""
LOST_S = 10.0
"""An answer that takes longer counts as none."""


@dataclass(slots=True)
class Load:
    """What the meters have sent, and what was acknowledged."""

    sent: int = 0
    acknowledged: int = 0
    cut_off: int = 0


@asynccontextmanager
async def load(site: Site, per_second: int) -> AsyncIterator[Load]:
    """Publish so many values a second with guarantee, by one connection each meter, while the block runs."""
    found = Load()
    tasks = [asyncio.create_task(_meter(site, f"meter-{n}", per_second / METERS, found)) for n in range(METERS)]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _meter(site: Site, account: str, per_second: float, found: Load) -> None:
    reader, writer = await asyncio.open_connection(*site.doors["mqtt"])
    try:
        writer.write(wire.connect(account, account, site.tokens[account]))
        assert (await reader.readexactly(4))[3] == 0
        waiting, begun, due = 0, time.monotonic(), 0.0

        async def taken() -> None:
            nonlocal waiting
            while part := await reader.read(65_536):
                waiting -= len(part) // 4
                found.acknowledged += len(part) // 4
            found.cut_off += 1

        reading = asyncio.create_task(taken())
        number = 0
        while not reading.done():
            due = per_second * (time.monotonic() - begun)
            lacking = min(int(due) - number, MOST_UNACKNOWLEDGED - waiting)
            packets = []
            for _ in range(max(0, lacking)):
                number += 1
                packets.append(wire.publish(f"agents/{account}/property/meter/flow", b"%d" % (number % 97), qos=1,
                                            packet_id=number % 60_000 + 1))  # fmt: skip
            writer.write(b"".join(packets))
            waiting += len(packets)
            found.sent += len(packets)
            await asyncio.sleep(TICK_S)
    finally:
        writer.transport.abort()


@dataclass(slots=True)
class Waits:
    """How long the canary waited, in seconds, and what became of it."""

    by_way: dict[str, list[float]] = field(default_factory=lambda: {"mqtt": [], "http": [], "sse": []})
    lost: list[str] = field(default_factory=list)

    def percentile(self, of: float) -> float:
        """Of all ways together."""
        found = sorted(wait for waits in self.by_way.values() for wait in waits)
        return found[min(len(found) - 1, int(len(found) * of))] if found else LOST_S

    def worst(self) -> float:
        return LOST_S if self.lost else self.percentile(1.0)


class Canary:
    """Connected by all three ways; made by `canary`."""

    def __init__(self, streams: Mapping[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]], token: str) -> None:
        self._streams = streams
        self._token = token
        self._number = 0

    async def ask(self, seconds: float) -> Waits:
        """Ask one way after the other for so long."""
        waits = Waits()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for way, ask in (("mqtt", self._ping), ("http", self._get), ("sse", self._hear)):
                begun = time.perf_counter()
                try:
                    async with asyncio.timeout(LOST_S):
                        await ask()
                except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                    waits.lost.append(f"{way}: {error!r}")
                    return waits
                waits.by_way[way].append(time.perf_counter() - begun)
                await asyncio.sleep(PAUSE_S)
        return waits

    async def _ping(self) -> None:
        reader, writer = self._streams["mqtt"]
        writer.write(wire.PINGREQ_BYTES)
        while (await reader.readexactly(2))[0] >> 4 != wire.PINGRESP:
            await reader.readexactly(2)  # the packet id of an acknowledgement

    async def _get(self) -> None:
        reader, writer = self._streams["http"]
        writer.write(_get("/things/dtw:canary:bird/properties", self._token))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))

    async def _hear(self) -> None:
        self._number += 1
        text = b'"chirp %d"' % self._number
        self._streams["mqtt"][1].write(wire.publish("agents/canary/event/bird/chirp", text, qos=1))
        while text not in await self._streams["sse"][0].readuntil(b"\n"):
            pass


@asynccontextmanager
async def canary(site: Site) -> AsyncIterator[Canary]:
    """A canary that is connected while the block runs."""
    streams = {way: await asyncio.open_connection(*site.doors[door]) for way, door in
               (("mqtt", "mqtt"), ("http", "http"), ("sse", "http"))}  # fmt: skip
    try:
        reader, writer = streams["mqtt"]
        writer.write(wire.connect("canary", "canary", site.tokens["canary"], keep_alive=0))
        assert (await reader.readexactly(4))[3] == 0
        streams["sse"][1].write(_get("/stream?thing=dtw:canary:bird&kind=event", site.tokens["watch"]))
        assert (await streams["sse"][0].readline()).startswith(b"HTTP/1.1 200")
        yield Canary(streams, site.tokens["watch"])
    finally:
        for _, writer in streams.values():
            writer.transport.abort()


def _get(path: str, token: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n".encode()


def td(**parts: object) -> dict[str, object]:
    """A Thing Description of a few members."""
    context = "https://www.w3.org/2022/wot/td/v1.1"
    return json.loads(json.dumps({"@context": context, "title": "Neighbourhood", **parts}))  # type: ignore[no-any-return]
