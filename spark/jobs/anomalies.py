"""Readings that do not fit their series: `python -m spark.jobs.anomalies --home DIR --score z --threshold 4`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark import lake as lakes
from spark.jobs.options import parser, selection_of
from spark.jobs.running import run_job
from spark.transforms.anomalies import flat_lines, mad_scores, stuck_clocks, z_scores
from spark.transforms.grids import gaps
from things.durations import window_seconds
from things.errors import Invalid

SCORES = ("z", "mad", "flat", "stuck", "gap")


def run(
    session: SparkSession,
    lake: str | Path,
    *,
    score: str = "z",
    rows: int = 288,
    window: str = "1d",
    threshold: float = 4.0,
    **selection: Any,
) -> DataFrame:
    """Anomalies by one score: `gateway, thing_id, kind, name, at, score, detail`.

    z: against the `rows` readings before; mad: against the median of the `window`; flat, stuck: runs of at least `rows`
    equal values or times, the score being their length; gap: more than `threshold` expected intervals without one.
    """
    if rows < 2 or threshold <= 0:
        raise Invalid("rows is at least 2 and threshold more than 0")
    readings = lakes.readings(session, lake, **selection)
    match score:
        case "z" | "mad":
            scored = z_scores(readings, rows) if score == "z" else mad_scores(readings, window_seconds(window))
            found = scored.where(F.abs("score") >= threshold).withColumn("detail", F.col("value").cast("string"))
        case "flat":
            found = flat_lines(readings, rows).select(
                "*", F.col("start").alias("at"), F.col("count").cast("double").alias("score"), _until("end")
            )
        case "stuck":
            found = stuck_clocks(readings, rows).select(
                "*", F.col("count").cast("double").alias("score"), F.col("first_row").cast("string").alias("detail")
            )
        case "gap":
            intervals = lakes.intervals(session, lake, gateways=selection.get("gateways") or ())
            found = gaps(readings, intervals, factor=max(threshold, 1.01)).select(
                "*", F.col("gap_start").alias("at"), F.col("missing").cast("double").alias("score"), _until("gap_end")
            )
        case _:
            raise Invalid(f"{score[:20]!r} is no score; there are {', '.join(SCORES)}")
    columns = ("gateway", "thing_id", "kind", "name", "at", "score", "detail")
    return found.select(*columns).orderBy("gateway", "thing_id", "name", "at")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser("anomalies", "Find readings that do not fit their series.")
    options.add_argument("--score", default="z", choices=SCORES, help="what to look for")
    options.add_argument("--rows", type=int, default=288, help="readings to compare with, or length of a run")
    options.add_argument("--window", default="1d", help="window of the median")
    options.add_argument("--threshold", type=float, default=4.0, help="show scores from here")
    return run_job(options, arguments, _build, title="Anomalies by {score}", time_column="at")


def _build(session: SparkSession, lake: str, options: argparse.Namespace) -> DataFrame:
    asked = {name: getattr(options, name) for name in ("score", "rows", "window", "threshold")}
    return run(session, lake, **asked, **selection_of(options))


def _until(column: str) -> Column:
    return F.concat(F.lit("until "), F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss'Z'")).alias("detail")


if __name__ == "__main__":
    sys.exit(main())
