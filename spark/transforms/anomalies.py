"""Anomaly scores: rolling z-score, median and MAD by window, flat lines, stuck clocks.

Every score says how unusual a reading is among its own series; nothing is decided across series.
"""

import sys
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, GroupedData, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.rollups import SERIES, numeric

MAD_TO_SIGMA = 0.6745
"""A normal distribution's median absolute deviation, in standard deviations."""
MEAN_TO_SIGMA = 1.253314
"""A normal distribution's standard deviation, in mean absolute deviations."""


def z_scores(readings: DataFrame, rows: int, *, fast: bool = True) -> DataFrame:
    """`gateway, thing_id, kind, name, at, row_id, value, score`: distance from the mean of the `rows` readings before,
    in their standard deviations; null before there are two. Where they are all equal it is 0 for another that is, and
    the largest number there is, with its sign, for one that is not.

    Spark computes a bounded frame anew for every row. The fast form cuts a series in blocks of `rows`: the readings
    before one are the end of the block before and the beginning of its own, each of which grows row by row. Nothing is
    subtracted, so no value outside the frame costs a digit.
    """
    values = numeric(readings)
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    if not fast:
        return _scored(values.select(*SERIES, "at", "row_id", "v", *_summed(in_order.rowsBetween(-rows, -1), "")))
    numbered = values.withColumn("index", F.row_number().over(in_order) - 1)
    blocks = numbered.withColumn("block", F.floor(F.col("index") / rows))
    block = Window.partitionBy(*SERIES, "block")
    forward = block.orderBy("at", "row_id").rowsBetween(Window.unboundedPreceding, -1)
    backward = block.orderBy(F.col("at").desc(), F.col("row_id").desc()).rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    parts = blocks.select(
        *SERIES, "at", "row_id", "v", *_summed(forward, "begun_"), *_summed(backward, "rest_")
    ).select(
        *SERIES,
        "at",
        "row_id",
        "v",
        *(F.col(f"begun_{name}") for name in _SUMS),
        *(F.lag(f"rest_{name}", rows).over(in_order).alias(f"rest_{name}") for name in _SUMS),
    )
    return _scored(parts.select(*SERIES, "at", "row_id", "v", *_together("begun_", "rest_")))


_SUMS = ("n", "mean", "variance", "low", "high")


def _summed(frame: WindowSpec, prefix: str) -> Sequence[Column]:
    """What is asked of the readings of a frame."""
    sums = (F.count("v"), F.avg("v"), F.var_samp("v"), F.min("v"), F.max("v"))
    return [one.over(frame).alias(f"{prefix}{name}") for one, name in zip(sums, _SUMS, strict=True)]


def _together(one: str, other: str) -> Sequence[Column]:
    """The same of the readings of two frames (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979)."""
    n, m = (F.coalesce(f"{prefix}n", F.lit(0)) for prefix in (one, other))
    mean, other_mean = (F.coalesce(f"{prefix}mean", F.lit(0.0)) for prefix in (one, other))
    squares = sum(
        (F.coalesce(F.col(f"{prefix}variance") * (F.col(f"{prefix}n") - 1), F.lit(0.0)) for prefix in (one, other)),
        start=F.lit(0.0),
    )
    apart = F.when((n > 0) & (m > 0), (other_mean - mean) * (other_mean - mean) * n * m / (n + m)).otherwise(F.lit(0.0))
    total = n + m
    return [
        total.alias("n"),
        (mean * (n / F.nullif(total, F.lit(0))) + other_mean * (m / F.nullif(total, F.lit(0)))).alias("mean"),
        F.when(total > 1, (squares + apart) / F.nullif(total - 1, F.lit(0))).alias("variance"),
        F.least(f"{one}low", f"{other}low").alias("low"),
        F.greatest(f"{one}high", f"{other}high").alias("high"),
    ]


def mad_scores(readings: DataFrame, window_s: float) -> DataFrame:
    """`gateway, thing_id, kind, name, at, row_id, value, score`: distance from the median of the tumbling window in
    which the reading lies, in median absolute deviations scaled to standard ones. Where half the values are equal the
    mean absolute deviation stands in (Iglewicz and Hoaglin, "How to detect and handle outliers", 1993); where all are,
    the score is 0.
    """
    width = F.lit(round(window_s * 1_000_000))
    key = [*SERIES, "w"]
    values = numeric(readings).withColumn("w", F.col("at") - F.pmod("at", width))
    medians = values.groupBy(*key).agg(F.percentile("v", 0.5).alias("median"))
    distances = values.join(medians, on=key, how="inner").withColumn("distance", F.abs(F.col("v") - F.col("median")))
    spreads = distances.groupBy(*key).agg(
        F.percentile("distance", 0.5).alias("mad"), F.avg("distance").alias("mean_distance")
    )
    deviation = F.when(F.col("mad") > 0, F.col("mad") / MAD_TO_SIGMA).otherwise(F.col("mean_distance") * MEAN_TO_SIGMA)
    return distances.join(spreads, on=key, how="inner").select(
        *SERIES,
        F.timestamp_micros("at").alias("at"),
        "row_id",
        F.col("v").alias("value"),
        F.coalesce(F.col("distance") / F.nullif(deviation, F.lit(0.0)), F.lit(0.0)).alias("score"),
    )


def flat_lines(readings: DataFrame, min_rows: int, min_s: float = 0.0) -> DataFrame:
    """`gateway, thing_id, kind, name, start, end, count, value`: runs of at least `min_rows` equal readings that last
    at least `min_s`."""
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    runs = _runs(numeric(readings), in_order, "v")
    long_enough = (F.col("count") >= min_rows) & (F.col("end") - F.col("start") >= round(min_s * 1_000_000))
    return (
        runs.agg(
            F.min("at").alias("start"),
            F.max("at").alias("end"),
            F.count("*").alias("count"),
            F.first("v").alias("value"),
        )
        .where(long_enough)
        .select(
            *SERIES,
            F.timestamp_micros("start").alias("start"),
            F.timestamp_micros("end").alias("end"),
            "count",
            "value",
        )
    )


def stuck_clocks(readings: DataFrame, min_rows: int) -> DataFrame:
    """`gateway, thing_id, kind, name, at, first_row, last_row, count`: runs of readings, in the order they arrived,
    that all claim the same time."""
    claimed = readings.select(
        *SERIES, "row_id", F.unix_micros(F.coalesce("source_time", "created")).alias("at"), F.lit(0.0).alias("v")
    )
    arrived = Window.partitionBy(*SERIES).orderBy("row_id")
    return (
        _runs(claimed, arrived, "at")
        .agg(
            F.min("at").alias("at"),
            F.min("row_id").alias("first_row"),
            F.max("row_id").alias("last_row"),
            F.count("*").alias("count"),
        )
        .where(F.col("count") >= min_rows)
        .select(*SERIES, F.timestamp_micros("at").alias("at"), "first_row", "last_row", "count")
    )


def _runs(values: DataFrame, order: WindowSpec, column: str) -> GroupedData:
    is_new = F.coalesce(F.lag(column).over(order) != F.col(column), F.lit(True))
    numbered = values.withColumn("is_new", is_new.cast("long")).withColumn("run", F.sum("is_new").over(order))
    return numbered.groupBy(*SERIES, "run")


def _scored(framed: DataFrame) -> DataFrame:
    away = F.col("v") - F.col("low")
    is_flat = F.col("high") == F.col("low")
    of_flat = F.when(away == 0, F.lit(0.0)).otherwise(F.signum(away) * F.lit(sys.float_info.max))
    score = (F.col("v") - F.col("mean")) / F.nullif(F.sqrt("variance"), F.lit(0.0))
    return framed.select(
        *SERIES,
        F.timestamp_micros("at").alias("at"),
        "row_id",
        F.col("v").alias("value"),
        F.when(F.col("n") > 1, F.when(is_flat, of_flat).otherwise(score)).alias("score"),
    )
