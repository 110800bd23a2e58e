"""Jobs as a Thing: asked for by an action, published as virtual Things, over a real runtime with a real Spark."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiomqtt
import anyio
import httpx
import psutil
import pytest

from skep import jobs
from skep.agent import Agent
from skep.consumer import Change, Consumer
from skep.jobs import Jobs, Workplace
from skep.requested import Status
from skep.testing import Gateway
from spark.jobs.locks import only_job
from tests.skep.gateways import served
from tests.support import PUMP, Account, Skep, skep
from tests.twin.lake.samples import Lake, Rows, hot_row
from things.errors import Conflict
from things.times import from_datetime, rfc3339

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(480)]

PATIENCE_S = 400
TABLE = "dtw:jobs:rollup-5m"
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).replace(hour=12, minute=0, second=0, microsecond=0)


def yesterday(seconds: float) -> str:
    return rfc3339(round((YESTERDAY.timestamp() + seconds) * 1_000_000))


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[None]:
    """`skep spark serve` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skep", "spark", "serve", "--home", str(home), "--master", "local[2]"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert b"runs jobs when asked" in await process.stdout.readline()
        yield
    finally:
        process.terminate()
        await process.wait()


async def measured(running: Skep, agent: Account, flows: dict[float, float]) -> None:
    """The agent publishes yesterday's readings, and they are sealed."""
    headers = {"Authorization": f"Bearer {agent.token}"}
    async with httpx.AsyncClient(base_url=running.http, headers=headers) as client:
        described = await client.put("/agent/things/pump", json=PUMP, headers={"Content-Type": "application/td+json"})
        described.raise_for_status()
        for second, flow in flows.items():
            said = await client.post(
                "/agent/things/pump/properties", json={"flow": flow}, params={"created": yesterday(second)}
            )
            said.raise_for_status()


async def published(consumer: Consumer) -> list[tuple[Any, Any, Any]]:
    found: list[tuple[Any, Any, Any]] = []
    for row in await consumer.thing(TABLE).history():
        assert isinstance(row.value, dict)
        found.append((rfc3339(from_datetime(row.created)), row.value["thing_id"], row.value["count"]))
    return found


@pytest.mark.spark
async def test_a_day_is_recomputed_by_an_action_and_its_table_seen_by_all(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with skep(home) as running, serving(home), Consumer(socket=home / "control.sock") as admin:
        agent = await running.add("agent1", "agent")
        ann = await running.add("ann", "consumer", "operator")
        await measured(running, agent, {0: 1.0, 60: 2.0, 300: 3.0})
        await admin.call("dtw:history:lake", "seal")
        host, port = running.mqtt_address
        async with (
            Consumer(running.http, token=ann.token) as consumer,
            aiomqtt.Client(host, port, username="ann", password=ann.token) as mqtt,
            anyio.create_task_group() as tasks,
        ):
            await mqtt.subscribe("things/jobs/rollup-5m/event/#", qos=1)
            seen: list[Change] = []
            all_seen = asyncio.Event()

            async def watch() -> None:
                async with aclosing(consumer.watch(TABLE, kind="event")) as changes:
                    async for change in changes:
                        seen.append(change)
                        if len(seen) == 2:
                            all_seen.set()
                            return

            tasks.start_soon(watch)
            with anyio.fail_after(PATIENCE_S):
                thing = consumer.thing("dtw:jobs:jobs")

                first = await thing.invoke("rollup", {"day": yesterday(0)[:10]})
                second = await (await thing.invoke("recompute", {})).final()
                statuses: list[Status] = [status async for status in first.statuses()]
                heard = [await anext(aiter(mqtt.messages)) for _ in range(2)]
                rows = await published(consumer)
                table = await consumer.thing(TABLE).describe()
                last_run: Any = await thing.read("lastRun")
                await all_seen.wait()

                # A reading that came late, and the same day once more.
                await measured(running, agent, {310: 5.0})
                await admin.call("dtw:history:lake", "seal")
                again: Any = await (await thing.invoke("recompute", {"day": yesterday(0)[:10]})).result(PATIENCE_S)
                repaired = await published(consumer)
                wrong = await (await thing.invoke("rollup", {"window": "soon"})).final()

    day = yesterday(0)[:10]
    assert statuses[-1].is_success, statuses[-1]
    assert sorted({status.progress for status in statuses if status.progress}) == [5, 20, 70, 100]
    assert second.error is not None
    assert "is being computed for request" in second.error
    assert rows == [(yesterday(0), "dtw:agent1:pump", 2), (yesterday(300), "dtw:agent1:pump", 1)]
    assert [change.name for change in seen] == ["row", "row"]
    assert {str(message.topic) for message in heard} == {"things/jobs/rollup-5m/event/row"}
    assert table["skep:derivedFrom"] == ["dtw:agent1:pump"]
    assert (last_run["table"], last_run["rows"], last_run["from"], last_run["to"]) == (TABLE, 2, day, day)
    assert again["rows"] == 2
    assert repaired[-1] == (yesterday(300), "dtw:agent1:pump", 2)
    assert wrong.error is not None
    assert "is not a window" in wrong.error


@pytest.mark.spark
async def test_a_cancelled_run_leaves_no_process_and_the_table_is_free_again(tmp_path: Path) -> None:
    gateway = Gateway()
    lake = Lake(tmp_path / "lake")
    lake.sealer.seal(Rows([hot_row(1, 1.0)]))
    async with served("native", gateway) as port:
        agent = Agent(f"mqtt://127.0.0.1:{port}", "jobs", "secret")
        place = Workplace(lake=["--lake", str(lake.root)], url="http://127.0.0.1:9", token="unused", master="local[1]")
        Jobs(agent, place)
        with anyio.fail_after(PATIENCE_S):
            async with agent:
                await gateway.takes_requests()
                gateway.send("inbox/jobs/action/jobs/rollup/r1", {"day": "2026-01-01"})
                await gateway.until(lambda: any(s.get("progress") == 5 for s in gateway.statuses("r1")))
                started = runs()

                gateway.send("inbox/jobs/cancel/r1", empty=True)
                ended = await gateway.final("r1")
                left = runs()
                await agent.flush()

    said = [item["data"] for item in gateway.readings() if item["name"] == "running"]
    assert len(started) == 1
    assert ended["state"] == "cancelled"
    assert not left
    assert said == [["rollup-5m"], []]


def test_yesterday_is_the_day_before_today() -> None:
    before = datetime.now(UTC).date()
    found = jobs._day("yesterday")
    assert found in (before - timedelta(days=1), datetime.now(UTC).date() - timedelta(days=1))


def runs() -> list[psutil.Process]:
    """The job processes that this one started; what those are about to start looks like them for a moment."""
    return [process for process in psutil.Process().children() if _is_run(process)]


def _is_run(process: psutil.Process) -> bool:
    try:
        return "spark.jobs.rollup" in process.cmdline()
    except psutil.NoSuchProcess:  # one of Spark's own that ended just now
        return False


def test_two_jobs_do_not_write_one_table(tmp_path: Path) -> None:
    with only_job(str(tmp_path), "_jobs", "rollup-5m"):
        with pytest.raises(Conflict, match="another job"), only_job(str(tmp_path), "_jobs", "rollup-5m"):
            pass
        with only_job(str(tmp_path), "_jobs", "rollup-1h"), only_job("s3://bucket/lake", "_jobs", "rollup-5m"):
            pass
    with only_job(str(tmp_path), "_jobs", "rollup-5m"):
        pass
