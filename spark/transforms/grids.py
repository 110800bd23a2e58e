"""Regular grids out of irregular readings: gaps found, steps filled, values carried forward."""

from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.rollups import SERIES, numeric
from things.errors import Invalid

How = Literal["last", "first", "mean", "min", "max", "sum", "count"]


def resample(readings: DataFrame, step_s: float, *, how: How = "last", limit_s: float | None = None) -> DataFrame:
    """`gateway, thing_id, kind, name, at, value, is_filled`: one row a step from the first to the last reading.

    A step without a reading takes the value of the step before it, as long as that is no older than `limit_s`; after
    that its value is null.
    """
    step = F.lit(round(step_s * 1_000_000))
    by_step = (
        numeric(readings)
        .withColumn("step", F.col("at") - F.pmod("at", step))
        .groupBy(*SERIES, "step")
        .agg(_aggregate(how).alias("value"))
        .withColumn("next_step", F.lead("step").over(Window.partitionBy(*SERIES).orderBy("step")))
    )
    # Each step fills the hole behind it, so no grid is ever built over the whole range.
    filled = by_step.select(
        *SERIES,
        "step",
        "value",
        F.explode(F.sequence("step", F.coalesce(F.col("next_step") - step, "step"), step)).alias("at"),
    )
    is_filled = F.col("at") > F.col("step")
    is_fresh = F.lit(True) if limit_s is None else F.col("at") - F.col("step") <= round(limit_s * 1_000_000)
    return filled.select(
        *SERIES,
        F.timestamp_micros("at").alias("at"),
        F.when(is_fresh, F.col("value")).alias("value"),
        is_filled.alias("is_filled"),
    )


def gaps(readings: DataFrame, intervals: DataFrame | None = None, *, factor: float = 1.5) -> DataFrame:
    """`gateway, thing_id, kind, name, gap_start, gap_end, seconds, missing`: where the next reading came later than
    `factor` times the expected interval (declared in `intervals`, else the median of the series)."""
    if factor <= 1:
        raise Invalid("a gap is longer than the expected interval: factor is more than 1")
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    ordered = numeric(readings).withColumn("next_at", F.lead("at").over(in_order))
    steps = ordered.where(F.col("next_at").isNotNull()).withColumn("gap", F.col("next_at") - F.col("at"))
    expected = steps.groupBy(*SERIES).agg(F.percentile("gap", 0.5).alias("expected_us"))
    if intervals is not None:
        declared = intervals.select(*SERIES, F.col("interval_us").cast("double").alias("declared_us"))
        expected = expected.join(F.broadcast(declared), on=list(SERIES), how="left").select(
            *SERIES, F.coalesce("declared_us", "expected_us").alias("expected_us")
        )
    is_gap = (F.col("expected_us") > 0) & (F.col("gap") > F.col("expected_us") * factor)
    return (
        steps.join(F.broadcast(expected), on=list(SERIES), how="inner")
        .where(is_gap)
        .select(
            *SERIES,
            F.timestamp_micros("at").alias("gap_start"),
            F.timestamp_micros("next_at").alias("gap_end"),
            (F.col("gap") / 1_000_000).alias("seconds"),
            (F.round(F.col("gap") / F.col("expected_us")) - 1).cast("long").alias("missing"),
        )
    )


def _aggregate(how: How) -> Column:
    order = F.struct("at", "row_id")
    match how:
        case "last":
            return F.max_by("v", order)
        case "first":
            return F.min_by("v", order)
        case "mean":
            return F.avg("v")
        case "min":
            return F.min("v")
        case "max":
            return F.max("v")
        case "sum":
            return F.sum("v")
        case "count":
            return F.count("v").cast("double")
        case _:
            raise Invalid(f"{how!r} is no way to resample; there are last, first, mean, min, max, sum, count")
