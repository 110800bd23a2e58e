"""The fleet as it was: `python -m spark.jobs.snapshot --home DIR --at 2026-01-31T12:00:00Z [--against TIME]`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.jobs.options import parser, selection_of
from spark.jobs.running import run_job
from spark.transforms.states import as_of, difference
from things.times import parse_time


def run(
    session: SparkSession,
    lake: str | Path,
    *,
    at: str | None = None,
    against: str | None = None,
    **selection: Any,
) -> DataFrame:
    """Every series' value as of `at` (now, if none is given); with `against`, what changed from then to `at`."""
    readings = lakes.readings(session, lake, **selection)
    state = as_of(readings, time.time_ns() // 1000 if at is None else parse_time(at))
    if against is not None:
        state = difference(as_of(readings, parse_time(against)), state)
    return state.orderBy("gateway", "thing_id", "kind", "name")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("snapshot", "Show the fleet as it was at an instant.")
    options.add_argument("--at", metavar="TIME", help="RFC 3339; now if left out")
    options.add_argument("--against", metavar="TIME", help="show what changed since this time instead")
    return run_job(options, arguments, _build, title="State of the fleet", time_column="created")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    return run(session, lake, at=options.at, against=options.against, **selection_of(options))


if __name__ == "__main__":
    sys.exit(main())
