"""What was acknowledged to its publisher reaches every kept session, whatever kills the runtime or cuts the client off.

acknowledged ⊆ received, first receptions in the order in which they were sent
"""

import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from tests.bindings.mqtt.wire import CONNACK, PUBACK, PUBLISH, SUBACK, connect, puback, publish, raw, subscribe
from tests.support import PUMP, Account
from tests.trials.process import DOWN, RuntimeProcess, furnished, runtime_process

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("SKEP_TRIAL_KILLS", "30"))
EVENTS = "things/pub/pump-1/event/alarm"
SHARED = f"$share/workers/{EVENTS}"
WINDOW = 8
UNREACHABLE = (*DOWN, EOFError)


@dataclass(slots=True)
class Publisher:
    """Sends numbered events; what it hears nothing of it does not send again."""

    account: Account
    sent: int = 0
    acknowledged: list[int] = field(default_factory=list)

    async def publish(self, process: RuntimeProcess, over: anyio.Event) -> None:
        while not over.is_set():
            with suppress(*UNREACHABLE):
                await self._connected(process, over)
            await anyio.sleep(0.02)

    async def _connected(self, process: RuntimeProcess, over: anyio.Event) -> None:
        async with raw(process.mqtt_address) as client:
            client.send(connect("publisher", self.account.name, self.account.token))
            await client.expect(CONNACK)
            while not over.is_set():
                numbers = list(range(self.sent, self.sent + WINDOW))
                self.sent += WINDOW
                client.send(
                    *(
                        publish(
                            "agents/pub/event/pump-1/alarm", json.dumps(str(number)).encode(), qos=1, packet_id=place
                        )
                        for place, number in enumerate(numbers, 1)
                    )
                )
                for _ in numbers:
                    self.acknowledged.append(numbers[(await client.expect(PUBACK)).packet_id - 1])
                await anyio.sleep(0.01)


@dataclass(slots=True)
class Watcher:
    """A kept session that comes and goes; it acknowledges most of what it is given, and keeps books of all."""

    account: Account
    name: str
    rng: random.Random
    topic_filter: str = EVENTS
    received: dict[int, None] = field(default_factory=dict)
    repeated: int = 0

    async def subscribe(self, process: RuntimeProcess) -> None:
        async with raw(process.mqtt_address) as client:
            client.send(connect(self.name, self.account.name, self.account.token, clean=False))
            await client.expect(CONNACK)
            client.send(subscribe(1, (self.topic_filter, 1)))
            await client.expect(SUBACK)

    async def watch(self, process: RuntimeProcess, over: anyio.Event) -> None:
        while not over.is_set():
            with suppress(*UNREACHABLE), anyio.move_on_after(self.rng.uniform(0.0, 1.0)):
                await self.connected(process, lambda: False)
            await anyio.sleep(self.rng.uniform(0.0, 0.7))

    async def connected(self, process: RuntimeProcess, is_done: Callable[[], bool]) -> None:
        async with raw(process.mqtt_address) as client:
            client.send(connect(self.name, self.account.name, self.account.token, clean=False))
            assert (await client.expect(CONNACK)).body[0] == 1, "the session was lost"
            while not is_done():
                packet = await client.receive()
                assert packet.kind == PUBLISH
                number = int(json.loads(packet.payload))
                self.repeated += number in self.received
                self.received.setdefault(number)
                client.send(puback(packet.delivery_id))

    async def catch_up(self, process: RuntimeProcess, publisher: Publisher) -> None:
        """Stay until all that was acknowledged has come."""
        owed = set(publisher.acknowledged)
        with anyio.fail_after(60):
            while not owed <= self.received.keys():
                with suppress(*UNREACHABLE):
                    await self.connected(process, lambda: owed <= self.received.keys())


async def watched_over_kills(home: Path, kills: int) -> str:
    accounts = await furnished(home, {"pub": "agent", "view": "viewer"}, {"dtw:pub:pump-1": PUMP})
    publisher, rng, over = Publisher(accounts["pub"]), random.Random(kills), anyio.Event()
    watchers = [Watcher(accounts["view"], f"watcher-{number}", random.Random(number)) for number in range(4)]
    workers = [
        Watcher(accounts["view"], f"worker-{number}", random.Random(number + 100), SHARED) for number in range(2)
    ]
    workers[1].received = workers[0].received
    async with runtime_process(home) as process:
        for watcher in (*watchers, *workers):
            await watcher.subscribe(process)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publisher.publish, process, over)
            for watcher in (*watchers[1:], *workers):
                tasks.start_soon(watcher.watch, process, over)
            for _ in range(kills):
                await anyio.sleep(rng.uniform(0.2, 1.5))
                await process.restart()
            count = len(publisher.acknowledged)
            with anyio.fail_after(30):
                while len(publisher.acknowledged) <= count:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            over.set()
        # The first watcher was away all the time.
        for watcher in (*watchers, *workers[:1]):
            await watcher.catch_up(process, publisher)
        for watcher in watchers:
            assert list(watcher.received) == sorted(watcher.received), f"{watcher.name} out of order"
    assert publisher.acknowledged
    repeated = sum(watcher.repeated for watcher in watchers)
    return f"0 lost of {len(watchers)} × {len(publisher.acknowledged)} over {process.kills} kills, {repeated} repeated"


async def test_no_kept_session_misses_what_was_acknowledged_over_a_kill(tmp_path: Path) -> None:
    print(await watched_over_kills(tmp_path / "home", 1))


@pytest.mark.trial
async def test_no_kept_session_misses_what_was_acknowledged_over_many_kills(tmp_path: Path) -> None:
    print(await watched_over_kills(tmp_path / "home", KILLS))
