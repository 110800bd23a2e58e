"""A compact copy of readings for heavy use: `python -m spark.jobs.compact --lake URL --out URL --days FIRST LAST`.

The lake itself is compacted by its own gateway, the only writer of its manifest. This copies what many gateways landed
into few large sorted files by gateway and day, exactly the rows their manifests name; days are replaced when copied
again. The copy needs no manifest to be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark import lake as lakes
from spark.jobs.options import parser, selection_of
from spark.jobs.running import run_job
from things.errors import Invalid
from things.lake import SORT_ORDER


def run(session: SparkSession, lake: str | Path, out: str, **selection: Any) -> DataFrame:
    """Copy, and return what was copied: `gateway, day, rows, first, last`."""
    chosen = lakes.readings(session, lake, **selection)
    (
        chosen.repartition("gateway", "day")
        .sortWithinPartitions("gateway", "day", *SORT_ORDER)
        .write.partitionBy("gateway", "day")
        .option("partitionOverwriteMode", "dynamic")
        .mode("overwrite")
        .parquet(out)
    )
    return (
        chosen.groupBy("gateway", "day")
        .agg(F.count("*").alias("rows"), F.min("row_id").alias("first"), F.max("row_id").alias("last"))
        .orderBy("gateway", "day")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("compact", "Copy readings into few large sorted files.")
    return run_job(options, arguments, _build, title="Copied", time_column="day")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    out, options.out = options.out, None
    if options.publish:
        raise Invalid("a copy of readings is not published")
    if not out:
        raise Invalid("say where to copy to: --out URL")
    return run(session, lake, out, **selection_of(options))


if __name__ == "__main__":
    sys.exit(main())
