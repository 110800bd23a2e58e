"""Roll-ups of all numeric series by window: `python -m spark.jobs.rollup --home DIR --window 5m --json`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.jobs.options import lake_of, parser, selection_of, show
from spark.jobs.running import run_job
from spark.session import opened
from spark.transforms.rollups import rollup
from things.durations import window_seconds


def run(session: SparkSession, lake: str | Path, *, window: str = "5m", **selection: Any) -> DataFrame:
    """Roll-ups in order of gateway, Thing, name and window. `selection` as in `spark.lake.readings`."""
    readings = lakes.readings(session, lake, **selection)
    intervals = lakes.intervals(session, lake, gateways=selection.get("gateways") or ())
    return rollup(readings, window_seconds(window), intervals).orderBy("gateway", "thing_id", "name", "window_start")


def main(arguments: Sequence[str] | None = None) -> int:
    options_parser = parser("rollup", "Roll numeric readings up by window.")
    options_parser.add_argument("--window", default="5m", help="width of a window: 30s, 5m, 1h, 1d")
    options = options_parser.parse_args(arguments)

    def work() -> None:
        window_seconds(options.window)
        lake = lake_of(options)
        session = opened("skep rollup", master=options.master, remote=options.remote)
        frame = run(session, lake, window=options.window, **selection_of(options))
        show(frame, as_json=options.json, title=f"Roll-ups by {options.window}")

    return run_job(work)


if __name__ == "__main__":
    sys.exit(main())
