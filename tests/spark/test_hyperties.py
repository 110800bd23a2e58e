"""What a hyperty reports lands in the lake like any Thing's readings."""

from pathlib import Path

import anyio
import pytest
from pyspark.sql import SparkSession

from skep.hyperty import Runtime
from spark import lake as lakes
from tests.support import skep

pytestmark = [pytest.mark.spark, pytest.mark.anyio]


async def test_changes_of_a_hyperty_s_object_are_readings_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        station = await house.add("station", "agent")
        async with Runtime(house.http, token=station.token) as runtime:
            reporter = await runtime.report("weather", {"temperature": 20.5}, scheme="ctxt")
            await reporter.set("temperature", 21.5)
            await runtime.find(reporter.url)  # answered after the change was taken
        await house.running.stores.twin.history.append([])
        await house.running.sealing.seal()

    rows = await anyio.to_thread.run_sync(
        lambda: lakes.readings(spark, tmp_path / "lake").where("name = 'temperature'").orderBy("row_id").collect()
    )

    assert [(row.agent_id, row.value_double) for row in rows] == [("station", 20.5), ("station", 21.5)]
