"""How much of the time agents were online: `python -m spark.jobs.availability --home DIR --window 1d`."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark import lake as lakes
from spark.jobs.options import parser
from spark.jobs.running import run_job
from spark.transforms.presence import availability
from things.durations import window_seconds
from things.lake import PRESENCE
from things.times import parse_time


def run(
    session: SparkSession,
    lake: str | Path,
    *,
    window: str = "1d",
    until: str | None = None,
    gateways: Sequence[str] = (),
) -> DataFrame:
    """Time online by agent and window, up to `until` (RFC 3339; now, if none is given)."""
    until_us = time.time_ns() // 1000 if until is None else parse_time(until)
    presence = lakes.table(session, lake, PRESENCE, gateways=gateways)
    return availability(presence, window_seconds(window), until_us).orderBy("gateway", "agent_id", "window_start")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("availability", "Tell how much of the time agents were online.")
    options.add_argument("--window", default="1d", help="width of a window: 1h, 1d, 7d")
    options.add_argument("--until", metavar="TIME", help="count up to this time; now if left out")
    return run_job(options, arguments, _build, title="Availability by {window}", time_column="window_start")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    return run(session, lake, window=options.window, until=options.until, gateways=options.gateways)


if __name__ == "__main__":
    sys.exit(main())
