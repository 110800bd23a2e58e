"""Spark answers nothing from a damaged part, by any of its ways into a lake."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.sources import register
from tests.twin.lake.samples import Lake, Rows, hot_row
from things.errors import StorageDamaged

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def through_source(spark: SparkSession, root: Path) -> DataFrame:
    register(spark)
    return spark.read.format("skep").option("lake", str(root)).load()


WAYS: dict[str, Callable[[SparkSession, Path], DataFrame]] = {
    "bulk": lakes.readings,
    "bulk by URL": lambda spark, root: lakes.readings(spark, f"file:{root}"),
    "source": through_source,
}


@pytest.mark.parametrize("way", WAYS)
def test_spark_refuses_a_damaged_part_and_a_lost_commit(spark: SparkSession, tmp_path: Path, way: str) -> None:
    lake, hot = Lake(tmp_path), Rows([])
    for number in range(1, 4):
        hot.rows.append(hot_row(number, number / 7))
        lake.sealer.seal(hot)
    assert WAYS[way](spark, tmp_path).count() == 3

    # Another lake, since what a session has compared at one URL it does not compare again.
    other = Lake(tmp_path / "other")
    other.sealer.seal(Rows([hot_row(1, 1.5)]))
    part = other.root / other.snapshot().parts[0].path
    data = bytearray(part.read_bytes())
    data[60] ^= 1
    part.write_bytes(data)
    with pytest.raises((StorageDamaged, PySparkException), match=r"rows 1 to 1, cannot be read"):
        WAYS[way](spark, other.root).collect()

    (tmp_path / "_manifest/gateway=gw/000000000003.json").unlink()
    with pytest.raises((StorageDamaged, PySparkException), match="lacks commit 3"):
        WAYS[way](spark, tmp_path).collect()
