"""Roll-ups of all numeric series by window: `python -m spark.jobs.rollup --home DIR --window 5m --json`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.jobs import follow
from spark.jobs.locks import only_job
from spark.jobs.options import parser, selection_of
from spark.jobs.running import run_job
from spark.transforms.rollups import rollup
from things.durations import window_seconds
from things.errors import Invalid


def run(session: SparkSession, lake: str | Path, *, window: str = "5m", **selection: Any) -> DataFrame:
    """Roll-ups in order of gateway, Thing, name and window. `selection` as in `spark.lake.readings`."""
    window_s = window_seconds(window)
    readings = lakes.readings(session, lake, **selection)
    intervals = lakes.intervals(session, lake, gateways=selection.get("gateways") or ())
    return rollup(readings, window_s, intervals).orderBy("gateway", "thing_id", "name", "kind", "window_start")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("rollup", "Roll numeric readings up by window.")
    options.add_argument("--window", default="5m", help="width of a window: 30s, 5m, 1h, 1d")
    options.add_argument("--follow", action="store_true", help="go on from where the last --follow ended, as a stream")
    options.add_argument("--once", action="store_true", help="with --follow: take what is there, then end")
    options.add_argument("--every", default="10s", help="with --follow: how often to look for new rows")
    options.add_argument("--state", metavar="URL", help="with --follow: where table and offsets are kept")
    options.add_argument("--max-rows", type=int, default=follow.MAX_ROWS, help="with --follow: rows of one batch")
    return run_job(options, arguments, _build, title="Roll-ups by {window}", time_column="window_start")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    if not options.follow:
        return run(session, lake, window=options.window, **selection_of(options))
    if any(selection_of(options).values()):
        raise Invalid("--follow takes all readings; select from its table instead")
    if options.max_rows < 1:
        raise Invalid("--max-rows is at least 1")
    every = None if options.once else options.every
    where = {"window": options.window, "state": options.state}
    with only_job(options.state or follow.state_of(lake, options.window), name="_follow"):
        follow.watch(follow.start(session, lake, max_rows=options.max_rows, every=every, **where))
    return follow.table(session, lake, **where)


if __name__ == "__main__":
    sys.exit(main())
