"""The lake process as the runtime sees it: started by need, gone when idle, back after a kill."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from runtime.clocks import wall_clock
from tests.twin.lake.samples import LAMP, NOON, history_of, hot_row
from things.errors import Conflict, Invalid, SkepError, StorageDamaged
from things.records import HistoryQuery
from twin.lake.client import LakeClient
from twin.lake.delta import rows_of
from twin.lake.delta_log import DeltaLog
from twin.lake.manifest import Manifest
from twin.lake.places import place_of

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(
    tmp_path: Path,
    idle_s: float = 30.0,
    grace_s: float = 86_400,
    clock: Callable[[], int] = wall_clock,
    is_delta: bool = True,
) -> AsyncIterator[LakeClient]:
    history = tmp_path / "history"
    if not history.exists():
        history_of(history, [hot_row(row_id, row_id / 4) for row_id in range(1, 101)])
    client = LakeClient(
        history=history,
        lake=tmp_path / "lake",
        gateway="gw",
        clock=clock,
        idle_s=idle_s,
        grace_s=grace_s,
        is_delta=is_delta,
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(client.serve)
            yield client
            tasks.cancel_scope.cancel()


async def test_hot_history_is_sealed_and_read_back_through_the_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        sealed = await client.seal(up_to=60)
        rows = await client.read(HistoryQuery(things=[LAMP], limit=3, descending=True), sealed_only=False)
        lake_rows = await client.read(HistoryQuery(limit=3, descending=True))
        status = await client.status()

    assert (sealed["rows"], sealed["last"]) == (60, 60)
    assert [(row.row_id, row.value) for row in rows] == [(100, b"25.0"), (99, b"24.75"), (98, b"24.5")]
    assert lake_rows[0].row_id == 60
    assert (status["sealed"], status["rows"]) == (60, 60)


async def test_what_is_sealed_and_merged_is_in_the_delta_log(tmp_path: Path) -> None:
    log = DeltaLog(place_of(tmp_path / "lake"), "readings")
    async with opened(tmp_path) as client:
        await client.seal(up_to=50)
        log.load()
        assert [rows_of(add) for add in log.live.values()] == [50]
        await client.seal()
        log.load()
        assert [rows_of(add) for add in log.live.values()] == [50, 50]
        shutil.rmtree(tmp_path / "lake" / "readings" / "_delta_log")
    async with opened(tmp_path) as client:
        await client.keep(budget_s=60)

    again = DeltaLog(place_of(tmp_path / "lake"), "readings")
    again.load()
    assert [rows_of(add) for add in again.live.values()] == [100]


async def test_a_lake_has_no_delta_logs_where_none_are_wanted(tmp_path: Path) -> None:
    async with opened(tmp_path, is_delta=False) as client:
        await client.seal()
        await client.keep(budget_s=60)

    assert not list((tmp_path / "lake").rglob("_delta_log"))


async def test_a_delta_log_that_cannot_be_written_holds_no_sealing_up_and_is_told_by_the_upkeep(tmp_path: Path) -> None:
    (tmp_path / "lake" / "readings").mkdir(parents=True)
    (tmp_path / "lake" / "readings" / "_delta_log").write_bytes(b"a file")
    async with opened(tmp_path) as client:
        assert (await client.seal())["rows"] == 100
        with pytest.raises(SkepError, match="_delta_log"):
            await client.keep(budget_s=60)
        assert (await client.status())["sealed"] == 100


async def test_rollups_cover_hot_and_sealed_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        await client.seal(up_to=50)
        lines = await client.rollup(HistoryQuery(things=[LAMP]), 300_000_000)

    assert [(line["window_start"], line["count"], line["last"]) for line in lines] == [(NOON, 100, 25.0)]


async def test_the_process_ends_when_idle_and_the_next_request_starts_another(tmp_path: Path) -> None:
    async with opened(tmp_path, idle_s=0.2) as client:
        assert client.pid is None
        await client.seal()
        while client.pid is not None:
            await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.01)
        status = await client.status()

    assert status["sealed"] == 100


async def test_the_lake_is_kept_by_the_time_of_the_runtime_also_after_it_was_set(tmp_path: Path) -> None:
    hour_us, now = 3_600_000_000, wall_clock() + 1_000 * 86_400_000_000
    times = iter([now, now - hour_us])
    async with opened(tmp_path, clock=lambda: next(times)) as client:
        await client.seal(up_to=60)
        await client.seal()

    manifest = Manifest(place_of(tmp_path / "lake"), "gw", wall_clock)
    assert 0 <= manifest.commit_at(1).at - now < hour_us / 2
    assert 0 <= manifest.commit_at(2).at - (now - hour_us) < hour_us / 2


async def test_a_request_outlives_a_killed_process(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        await client.status()
        assert client.pid is not None
        first = client.pid
        os.kill(first, signal.SIGKILL)

        sealed = await client.seal()

        assert client.pid != first
    assert sealed["last"] == 100


async def test_refusals_keep_their_class(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        await client.seal()
        with pytest.raises(Conflict, match="never rolled up"):
            await client.retain([{"days": 1}], windows=[])
        with pytest.raises(Invalid, match="no format"):
            await client.export(HistoryQuery(), tmp_path / "out", "xlsx")
        path = next((tmp_path / "lake" / "readings").rglob("*.parquet"))
        path.unlink()
        with pytest.raises(StorageDamaged, match=path.name):
            await client.read(HistoryQuery())
        found = await client.verify()

    assert [problem["code"] for problem in found["problems"]] == ["missing"]


async def test_plan_compaction_and_export_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as client:
        await client.seal(up_to=40)
        await client.seal()
        plan = await client.plan([{"days": 30}])
        compacted = await client.compact()
        exported = await client.export(HistoryQuery(), tmp_path / "out.csv", "csv")

    assert plan["rows"] == 100
    assert compacted["merged"] == 2
    assert exported["rows"] == 100


async def test_what_is_dropped_is_gone_from_the_disk_after_the_grace_period(tmp_path: Path) -> None:
    async with opened(tmp_path, grace_s=0) as client:
        await client.seal()
        files = list((tmp_path / "lake/readings").rglob("*.parquet"))
        await client.retain([{"days": 1}])
        kept = await client.keep(budget_s=5)

    assert len(files) == 1
    assert (kept["removed"], kept["waiting_bytes"], kept["problems"]) == (1, 0, [])
    assert list((tmp_path / "lake/readings").rglob("*.parquet")) == []
    assert len(list((tmp_path / "lake/rollups").rglob("*.parquet"))) == 1
