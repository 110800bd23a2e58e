"""Readings on a regular grid: `python -m spark.jobs.resample --home DIR --step 1m --how mean`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.jobs.options import parser, selection_of
from spark.jobs.running import run_job
from spark.transforms.grids import How, resample
from things.durations import window_seconds


def run(
    session: SparkSession,
    lake: str | Path,
    *,
    step: str = "1m",
    how: str = "last",
    limit: str | None = None,
    **selection: Any,
) -> DataFrame:
    """One row a step and series, holes filled by the value before as long as it is no older than `limit`."""
    limit_s = None if limit is None else window_seconds(limit)
    readings = lakes.readings(session, lake, **selection)
    grid = resample(readings, window_seconds(step), how=cast(How, how), limit_s=limit_s)
    return grid.orderBy("gateway", "thing_id", "name", "at")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("resample", "Put numeric readings on a regular grid.")
    options.add_argument("--step", default="1m", help="width of a step: 10s, 1m, 1h")
    options.add_argument("--how", default="last", choices=get_args(How), help="what stands for a step's readings")
    options.add_argument("--limit", help="fill holes only with values no older than this")
    return run_job(options, arguments, _build, title="Readings every {step}", time_column="at")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    asked = {"step": options.step, "how": options.how, "limit": options.limit}
    return run(session, lake, **asked, **selection_of(options))


if __name__ == "__main__":
    sys.exit(main())
