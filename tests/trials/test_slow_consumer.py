"""Consumers that stop reading: others do not notice, memory stays bounded, and in the end they are gone."""

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

import anyio
import httpx2
import psutil
import pytest

from tests.support import Account
from tests.trials.process import RuntimeProcess, furnished, runtime_process

pytestmark = pytest.mark.anyio

EVENTS = int(os.environ.get("SKEP_TRIAL_EVENTS", "10000"))
COSTS_S = 0.05
MEMORY_BYTES = 8 * 1024 * 1024
TEXT = "x" * 2_000
TD = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Talker",
    "events": {"said": {"data": {"type": "object"}}},
}


def idle_stream(process: RuntimeProcess, account: Account) -> socket.socket:
    """An event stream whose client never reads; a small window, so that it is full soon."""
    address = urlsplit(process.http)
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    found.connect((address.hostname, address.port))
    request = f"GET /stream?agent=works HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {account.token}\r\n"
    found.sendall(f"{request}accept: text/event-stream\r\n\r\n".encode())
    return found


def idle_mqtt(process: RuntimeProcess, account: Account) -> socket.socket:
    """The same by MQTT: CONNECT, SUBSCRIBE to everything, and then nothing."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    found.connect(process.mqtt_address)

    def text(value: str) -> bytes:
        return len(value).to_bytes(2, "big") + value.encode()

    def packet(first: int, body: bytes) -> bytes:
        length, left = b"", len(body)
        while True:
            left, digit = divmod(left, 128)
            length += bytes([digit | (128 if left else 0)])
            if not left:
                return bytes([first]) + length + body

    connect = text("MQTT") + bytes([4, 0xC2]) + (600).to_bytes(2, "big")
    found.sendall(packet(0x10, connect + text("idle") + text(account.name) + text(account.token)))
    found.sendall(packet(0x82, b"\x00\x01" + text("things/works/#") + b"\x00"))
    return found


async def flood(process: RuntimeProcess, works: Account, ann: Account, events: int) -> float:
    """Publish; every event must reach a consumer that reads. The 99th percentile of its way there, in seconds."""
    ways: list[float] = []
    ready = anyio.Event()

    async def reads() -> None:
        async with process.mqtt(ann) as client:
            await client.subscribe("things/works/talker/event/said", qos=1)
            ready.set()
            async for message in client.messages:
                assert isinstance(message.payload, bytes)
                ways.append(time.time() - json.loads(message.payload)["at"])
                if len(ways) == events:
                    return

    async with asyncio.timeout(300), anyio.create_task_group() as tasks:
        tasks.start_soon(reads)
        await ready.wait()
        async with process.mqtt(works) as client:
            for _ in range(events):
                said = json.dumps({"at": time.time(), "text": TEXT})
                await client.publish("agents/works/event/talker/said", said, qos=1)
    return quantiles(ways, n=100)[-1]


async def with_slow_consumers(home: Path, events: int) -> tuple[float, float, int]:
    """99th percentiles without and with them, and what they cost in bytes."""
    accounts = await furnished(
        home,
        {"works": "agent", "ann": "operator", "slow-1": "operator", "slow-2": "operator", "root": "admin"},
        {"dtw:works:talker": TD},
    )
    async with runtime_process(home) as process:
        memory = psutil.Process(process.pid)
        await flood(process, accounts["works"], accounts["ann"], events // 4)
        start = memory.memory_info().rss
        without = await flood(process, accounts["works"], accounts["ann"], events)
        grown = memory.memory_info().rss - start
        sockets = [idle_stream(process, accounts["slow-1"]), idle_mqtt(process, accounts["slow-2"])]
        try:
            start = memory.memory_info().rss
            having = await flood(process, accounts["works"], accounts["ann"], events)
            cost = memory.memory_info().rss - start - grown
            # The stream holds back too much: it is closed. MQTT drops the oldest events of QoS 0 and counts them.
            async with process.client(accounts["root"]) as client:
                with anyio.fail_after(30):
                    while await _streams(client):  # noqa: ASYNC110 - another process
                        await anyio.sleep(0.1)
        finally:
            for one in sockets:
                one.close()
    return without, having, cost


async def _streams(client: httpx2.AsyncClient) -> int:
    reply = await client.post("/rpc/dtw:authn:admin/listSessions", content='{"clientID": "slow-1"}')
    reply.raise_for_status()
    return len(reply.json()["connections"])


async def test_a_consumer_that_stops_reading_is_dropped_and_others_get_everything(tmp_path: Path) -> None:
    without, having, cost = await with_slow_consumers(tmp_path / "home", 3_000)

    print(f"p99 {without * 1e3:.1f} ms without, {having * 1e3:.1f} ms with slow consumers; {cost / 2**20:.1f} MiB")
    assert cost < MEMORY_BYTES + 8 * 1024 * 1024  # two of them, and what the allocator keeps


@pytest.mark.trial
async def test_a_consumer_that_stops_reading_costs_others_nothing(tmp_path: Path) -> None:
    without, having, cost = await with_slow_consumers(tmp_path / "home", EVENTS)

    print(f"p99 {without * 1e3:.1f} ms without, {having * 1e3:.1f} ms with slow consumers; {cost / 2**20:.1f} MiB")
    assert having - without < COSTS_S
    assert cost < 2 * MEMORY_BYTES
