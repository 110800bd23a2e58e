"""A long life of MQTT: messages without end while clients come, go, break off and come back; memory stays flat.

    204,800 messages, 1,640 clients: 71.2 MiB, then +0.3, +0.1 and +0.0 MiB

Counted from the second of four quarters on: the first fills caches, pools and the database's pages.
"""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psutil
import pytest

from tests.bindings.mqtt.engines.native.peer import Client, connect, publish, subscribe
from tests.support import Account
from tests.trials.process import RuntimeProcess, furnished, runtime_process

pytestmark = pytest.mark.anyio

MESSAGES = int(os.environ.get("SKEP_TRIAL_SOAK", "200000"))
WINDOW = 100
BURSTS_PER_TURN = 8
GROWTH_BYTES = 4 * 1024 * 1024
QUARTERS = 4
LONGEST_S = 1_200

SETTINGS = "version = 1\n[limits]\nmessages_per_second = 1000000.0\nmessage_burst = 1000000.0\n"
TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Clock",
    "properties": {f"p{number}": {"type": "integer"} for number in range(10)},
    "events": {f"e{number}": {"data": {"type": "integer"}} for number in range(10)},
}
WILL = ("agents/works/event/clock/e0", b"0", 1)


class Soak:
    """The agent that never stops, and what goes on around it."""

    def __init__(self, process: RuntimeProcess, works: Account, ann: Account) -> None:
        self.process = process
        self.works = works
        self.ann = ann
        self.clients = 0
        self.received = 0

    @asynccontextmanager
    async def client(self, account: Account, client_id: str, **options: object) -> AsyncIterator[Client]:
        """A connected raw client that is cut off in the end, without a word."""
        self.clients += 1
        reader, writer = await asyncio.open_connection(*self.process.mqtt_address)
        client = Client(reader, writer)
        client.no_delay()
        try:
            await client.connect(client_id, user=account.name, password=account.token.encode(), **options)
            yield client
        finally:
            writer.transport.abort()

    async def quarter(self, messages: int) -> int:
        """Send `messages` with all that goes on beside them; resident bytes afterwards."""
        async with self.client(self.works, "works") as agent, self.client(self.ann, "reader") as reader:
            reader.send(subscribe("things/works/clock/#", qos=1))
            await reader.expect(0x90)
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(reader))
                for number in range(messages // (WINDOW * BURSTS_PER_TURN)):
                    for burst in range(BURSTS_PER_TURN):
                        await self._burst(agent, number * BURSTS_PER_TURN + burst)
                    await self._come_and_go(number)
                reading.cancel()
        return int(psutil.Process(self.process.pid).memory_info().rss)

    async def _burst(self, agent: Client, number: int) -> None:
        kinds = itertools.cycle(["event/clock/e", "property/clock/p"])
        for packet_id, kind in zip(range(1, WINDOW + 1), kinds, strict=False):
            value = b"%d" % (number * WINDOW + packet_id)
            agent.send(publish(f"agents/works/{kind}{packet_id % 10}", value, 1 + packet_id % 2, packet_id))
        for packet_id in range(1, WINDOW + 1):
            first, body = await agent.read()
            assert (first, int.from_bytes(body, "big")) == (0x50 if packet_id % 2 else 0x40, packet_id)
        for packet_id in range(1, WINDOW + 1, 2):
            agent.send(b"\x62\2" + packet_id.to_bytes(2, "big"))
        for packet_id in range(1, WINDOW + 1, 2):
            await agent.expect(0x70, packet_id.to_bytes(2, "big"))

    async def _read(self, reader: Client) -> None:
        while True:
            message = await reader.publish_of()
            self.received += 1
            if message[2]:
                reader.send(b"\x40\2" + message[2].to_bytes(2, "big"))

    async def _come_and_go(self, number: int) -> None:
        """A new id with a will, breaking off; a kept session taken over, and left with something on its way."""
        async with self.client(self.works, f"new-{number}-{self.clients}", will=WILL):
            pass
        async with self.client(self.ann, "kept", clean=False) as kept:
            kept.send(subscribe("things/works/clock/event/#", qos=1))
            await kept.read()
            async with self.client(self.ann, "kept", clean=False) as other:
                other.send(b"\xc0\0")
                await other.read()
        reader, writer = await asyncio.open_connection(*self.process.mqtt_address)
        writer.write(connect("stranger", user="ann", password=b"wrong")[: 5 + number % 20])
        writer.write_eof()
        await reader.read()
        writer.close()


async def soaked(home: Path, messages: int) -> list[int]:
    """Resident bytes after each quarter of the messages."""
    accounts = await furnished(home, {"works": "agent", "ann": "viewer"}, {"dtw:works:clock": TD}, SETTINGS)
    async with runtime_process(home) as process:
        soak = Soak(process, accounts["works"], accounts["ann"])
        with anyio.fail_after(LONGEST_S):
            resident = [await soak.quarter(messages // QUARTERS) for _ in range(QUARTERS)]
        assert soak.received > messages // 2
    grown = ", ".join(f"{(after - before) / 2**20:+.1f}" for before, after in itertools.pairwise(resident))
    print(f"{messages:,} messages, {soak.clients:,} clients: {resident[0] / 2**20:.1f} MiB, then {grown} MiB")
    return resident


async def test_a_short_life_of_mqtt_leaves_nothing_behind(tmp_path: Path) -> None:
    resident = await soaked(tmp_path / "home", 16_000)

    assert resident[-1] - resident[0] < 2 * GROWTH_BYTES


@pytest.mark.trial
async def test_a_long_life_of_mqtt_leaves_memory_flat(tmp_path: Path) -> None:
    resident = await soaked(tmp_path / "home", MESSAGES)

    assert resident[-1] - resident[1] < GROWTH_BYTES
