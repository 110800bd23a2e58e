"""What was acknowledged is stored, whatever kills the runtime, in the order in which its publisher sent it.

    acknowledged ⊆ stored ⊆ sent

The long form also kills at chosen instants: at the k-th sync, by a tracer, and lets syncs fail.
"""

import json
import os
import random
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from runtime.clocks import wall_clock
from tests.bindings.mqtt.wire import CONNACK, PUBACK, connect, publish, raw
from tests.support import PUMP, Account
from tests.trials.process import DOWN, RuntimeProcess, furnished, runtime_process
from things.records import HistoryQuery
from twin.store import open_twin

pytestmark = pytest.mark.anyio

KILLS = int(os.environ.get("SKEP_TRIAL_KILLS", "50"))
ENGINES = ["native", "amqtt"]
WINDOW = 16
"""Events under way at once from one MQTT publisher."""


@dataclass(slots=True)
class Publisher:
    """Sends numbered events and keeps books. What it hears nothing of it does not send again."""

    account: Account
    over_mqtt: bool
    sent: int = 0
    acknowledged: list[int] = field(default_factory=list)

    @property
    def thing_id(self) -> str:
        return f"dtw:{self.account.name}:pump-1"

    async def publish(self, process: RuntimeProcess, over: anyio.Event) -> None:
        while not over.is_set():
            with suppress(*DOWN, EOFError):
                await (self._by_mqtt if self.over_mqtt else self._by_http)(process, over)
            await anyio.sleep(0.02)

    async def _by_mqtt(self, process: RuntimeProcess, over: anyio.Event) -> None:
        topic = f"agents/{self.account.name}/event/pump-1/alarm"
        async with raw(process.mqtt_address) as client:
            client.send(connect(self.account.name, self.account.name, self.account.token))
            await client.expect(CONNACK)
            while not over.is_set():
                numbers = [self._next() for _ in range(WINDOW)]
                client.send(
                    *(
                        publish(topic, json.dumps(str(number)).encode(), qos=1, packet_id=place)
                        for place, number in enumerate(numbers, 1)
                    )
                )
                for _ in numbers:
                    self.acknowledged.append(numbers[(await client.expect(PUBACK)).packet_id - 1])

    async def _by_http(self, process: RuntimeProcess, over: anyio.Event) -> None:
        async with process.client(self.account) as client:
            while not over.is_set():
                number = self._next()
                reply = await client.post("/agent/things/pump-1/events/alarm", content=json.dumps(str(number)))
                if reply.is_success:
                    self.acknowledged.append(number)

    def _next(self) -> int:
        self.sent += 1
        return self.sent - 1


async def judged(home: Path, publishers: list[Publisher], kills: int) -> str:
    """Compare the books with what is stored; one line, or an error where a promise was broken."""
    count = 0
    async with open_twin(home, clock=wall_clock) as twin:
        for publisher in publishers:
            stored: list[int] = []
            after = 0
            while rows := await twin.history.read(
                HistoryQuery(things=(publisher.thing_id,), names=("alarm",), after_row=after, limit=1_000)
            ):
                stored += [int(json.loads(row.value)) for row in rows]
                after = rows[-1].row_id
            lost = set(publisher.acknowledged) - set(stored)
            assert not lost, f"{len(lost)} lost of {len(publisher.acknowledged)} of {publisher.account.name}"
            assert set(stored) <= set(range(publisher.sent))
            assert stored == sorted(set(stored)), f"{publisher.account.name} out of order"
            count += len(publisher.acknowledged)
            assert count, "nothing was acknowledged at all"
    return f"0 lost of {count} over {kills} kills"


async def furnished_publishers(home: Path, engine: str) -> list[Publisher]:
    names = [f"pub-{number}" for number in range(5)]
    accounts = await furnished(
        home,
        dict.fromkeys(names, "agent"),
        {f"dtw:{name}:pump-1": PUMP for name in names},
        f'[mqtt]\nengine = "{engine}"\n',
    )
    return [Publisher(accounts[name], over_mqtt=place < 3) for place, name in enumerate(names)]


async def all_acknowledged_more(publishers: list[Publisher]) -> None:
    """Until the runtime has acknowledged something to everybody again."""
    counts = [len(publisher.acknowledged) for publisher in publishers]
    with anyio.fail_after(30):
        while any(len(one.acknowledged) <= count for one, count in zip(publishers, counts, strict=True)):  # noqa: ASYNC110
            await anyio.sleep(0.02)


async def published_over_kills(home: Path, engine: str, kills: int) -> str:
    publishers = await furnished_publishers(home, engine)
    rng, over = random.Random(kills), anyio.Event()
    async with runtime_process(home) as process:
        async with anyio.create_task_group() as tasks:
            for publisher in publishers:
                tasks.start_soon(publisher.publish, process, over)
            for _ in range(kills):
                await all_acknowledged_more(publishers)
                await anyio.sleep(rng.uniform(0.0, 0.5))
                await process.restart()
            await all_acknowledged_more(publishers)
            over.set()
        await process.kill()
        return await judged(home, publishers, process.kills)


@pytest.mark.parametrize("engine", ENGINES)
async def test_no_acknowledged_event_is_lost_by_a_kill(tmp_path: Path, engine: str) -> None:
    print(await published_over_kills(tmp_path / "home", engine, kills=1))


@pytest.mark.trial
@pytest.mark.parametrize("engine", ENGINES)
async def test_no_acknowledged_event_is_lost_by_many_kills(tmp_path: Path, engine: str) -> None:
    print(await published_over_kills(tmp_path / "home", engine, KILLS))


# ---------------------------------------------------------------- at chosen instants


def _can_trace() -> bool:
    tracer = shutil.which("strace")
    return (
        tracer is not None and subprocess.run([tracer, "-qq", "true"], capture_output=True, timeout=10).returncode == 0
    )


def _traced(injected: str) -> list[str]:
    calls = "fsync,fdatasync"
    return ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}", "-e", f"inject={calls}:{injected}"]


needs_tracer = pytest.mark.skipif(not _can_trace(), reason="strace cannot trace here")


@pytest.mark.trial
@needs_tracer
async def test_no_acknowledged_event_is_lost_by_a_kill_at_any_sync(tmp_path: Path) -> None:
    home = tmp_path / "home"
    publishers = await furnished_publishers(home, "native")
    rng = random.Random(2)
    async with runtime_process(home) as process:
        await process.terminate()
        process.kills = 0
        while process.kills < max(KILLS // 2, 1):
            # Each thread counts its own syncs: opening takes a few, then come the groups.
            process.wrapped = _traced(f"signal=SIGKILL:when={rng.choice([*range(1, 12), *range(12, 200, 9)])}")
            over = anyio.Event()
            with suppress(AssertionError):  # a start that was killed is a kill like any other
                await process.start()
            async with anyio.create_task_group() as tasks:
                for publisher in publishers:
                    tasks.start_soon(publisher.publish, process, over)
                await process.crashed()
                over.set()
        process.wrapped = ()
        await process.start()
        await process.terminate()
        print(await judged(home, publishers, process.kills))


@pytest.mark.trial
@needs_tracer
async def test_nothing_is_acknowledged_after_a_failed_sync_and_readiness_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    publishers = await furnished_publishers(home, "native")
    async with runtime_process(home, wrapped=_traced("error=EIO:when=40+")) as process:
        over = anyio.Event()
        async with anyio.create_task_group() as tasks, process.client(publishers[0].account) as client:
            for publisher in publishers:
                tasks.start_soon(publisher.publish, process, over)
            with anyio.fail_after(60):
                while (reply := await client.get("/readyz")).status_code != 503:  # noqa: ASYNC110 - another process
                    await anyio.sleep(0.05)
            told = reply.text
            counts = [len(publisher.acknowledged) for publisher in publishers if not publisher.over_mqtt]
            await anyio.sleep(1.0)
            after = [len(publisher.acknowledged) for publisher in publishers if not publisher.over_mqtt]
            over.set()
        await process.kill()

    assert "storage" in told
    assert after == counts
    print(await judged(home, publishers, process.kills))
