"""The lake by plain Spark with Delta's own package, which comes from Maven: SKEP_DELTA_PACKAGE names it, such as
`io.delta:delta-spark_2.13:4.4.0`, and SKEP_DELTA_PYTHON a Python with the Spark that it was built for (4.2 there)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.twin.lake.test_delta import Published
from twin.lake.compaction import Compactor
from twin.lake.retention import Retention, RetentionRule

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.skipif("SKEP_DELTA_PACKAGE" not in os.environ, reason="SKEP_DELTA_PACKAGE names no package of Delta"),
]
DAY_US = 86_400_000_000

PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.jars.packages", os.environ["SKEP_DELTA_PACKAGE"])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
table = session.read.format("delta").load(sys.argv[1])
found = {"rows": sorted(row.row_id for row in table.select("row_id").collect())}
found["columns"] = table.columns
one = table.where("thing_id = 'dtw:agent1:lamp' AND row_id BETWEEN 7 AND 9 AND created >= '2025-12-01'")
found["values"] = [[row.row_id, row.value_double] for row in one.orderBy("row_id").collect()]
found["days"] = sorted(str(row.day) for row in table.select("day").distinct().collect())
old = session.read.format("delta").option("versionAsOf", 0).load(sys.argv[1])
found["first"] = sorted(row.row_id for row in old.select("row_id").collect())
print("FOUND", json.dumps(found))
"""


def read(root: Path) -> dict[str, list[object]]:
    python = os.environ.get("SKEP_DELTA_PYTHON", sys.executable)
    plain = {**os.environ, "PYTHONPATH": "", "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [python, "-c", PROGRAM, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=plain, cwd=root)
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-3_000:]
    found: dict[str, list[object]] = json.loads(line.removeprefix("FOUND "))
    return found


def test_plain_spark_reads_the_table_exactly_before_and_after_it_is_kept(tmp_path: Path) -> None:
    lake = Published(tmp_path)
    lake.hours(4)
    before = read(lake.readings)
    Compactor(lake.manifest).compact()
    lake.publish()
    lake.now += 2 * DAY_US
    Retention(lake.manifest, [RetentionRule(days=2)]).apply()
    lake.publish()
    after = read(lake.readings)

    assert before["rows"] == list(range(1, 25))
    assert before["first"] == list(range(1, 7))
    assert before["columns"] == [*lake.table().column_names, "gateway", "day"]
    assert before["values"] == [[7, 1.0], [8, 8 / 7], [9, 9 / 7]]
    assert before["days"] == ["2025-12-31", "2026-01-01"]
    assert after["days"] == ["2026-01-01"]
    assert after["rows"] == lake.table()["row_id"].sort().to_pylist()
