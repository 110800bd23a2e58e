"""Far times and odd values through both of Spark's ways into a lake."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark import lake as lakes
from spark.sources.source import register
from tests.twin.lake.samples import NOON, Lake, Rows, hot_row
from things.lake import TIME_MAX, TIME_MIN, VALUE_COLUMNS
from twin.lake.pages import json_text

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

GIVEN: list[tuple[Any, int]] = [
    (1767225600000000001, TIME_MIN),
    (2**63 - 1, TIME_MAX),
    (-(2**63), -1),
    (2**70, NOON),
    (21.5, -12_219_292_800_000_001),  # the day before the Gregorian calendar begins
    ({"a": [None, True, 1e308]}, -9_999_999_999_999_999),
    ("ä\x00€", 0),
]


@pytest.mark.parametrize("way", ["bulk", "source"])
def test_every_value_at_every_time_is_the_same_in_spark(spark: SparkSession, tmp_path: Path, way: str) -> None:
    lake = Lake(tmp_path)
    rows = [
        hot_row(number, json.dumps(value, ensure_ascii=False).encode(), created=at, received=NOON)
        for number, (value, at) in enumerate(GIVEN, 1)
    ]
    lake.sealer.seal(Rows(rows))
    register(spark)

    frame = (
        lakes.readings(spark, tmp_path)
        if way == "bulk"
        else spark.read.format("skep").option("lake", str(tmp_path)).load()
    )

    found = frame.orderBy("row_id").select(F.unix_micros("created").alias("at"), *VALUE_COLUMNS, "quality").collect()
    assert [(json.loads(json_text(*row[1:])), row["at"]) for row in found] == GIVEN
