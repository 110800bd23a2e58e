"""Roll-ups of all numeric series by window: `python -m spark.jobs.rollup --home DIR --window 5m --json`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.jobs.options import parser, selection_of
from spark.jobs.running import run_job
from spark.transforms.rollups import rollup
from things.durations import window_seconds


def run(session: SparkSession, lake: str | Path, *, window: str = "5m", **selection: Any) -> DataFrame:
    """Roll-ups in order of gateway, Thing, name and window. `selection` as in `spark.lake.readings`."""
    window_s = window_seconds(window)
    readings = lakes.readings(session, lake, **selection)
    intervals = lakes.intervals(session, lake, gateways=selection.get("gateways") or ())
    return rollup(readings, window_s, intervals).orderBy("gateway", "thing_id", "name", "window_start")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("rollup", "Roll numeric readings up by window.")
    options.add_argument("--window", default="5m", help="width of a window: 30s, 5m, 1h, 1d")
    return run_job(options, arguments, _build, title="Roll-ups by {window}", time_column="window_start")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    return run(session, lake, window=options.window, **selection_of(options))


if __name__ == "__main__":
    sys.exit(main())
