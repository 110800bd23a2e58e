"""Roll-ups by tumbling window: counts, sums, extremes, first and last, time-weighted mean, completeness.

The time-weighted mean carries each value forward until the next one, across window borders: the value before a window
counts from the window's start to its first reading, the last one until the window's end. Windows without a reading
have no row.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark.schemas import ROLLUPS

SERIES = ("gateway", "thing_id", "kind", "name")


def numeric(readings: DataFrame) -> DataFrame:
    """Numeric readings: the series' key, `at` (µs), `row_id`, `v`."""
    is_number = F.col("value_double").isNotNull() & ~F.isnan("value_double")
    is_finite = F.abs("value_double") < F.lit(float("inf"))
    return readings.where(is_number & is_finite).select(
        *SERIES, F.unix_micros("created").alias("at"), "row_id", F.col("value_double").alias("v")
    )


def rollup(readings: DataFrame, window_s: float, intervals: DataFrame | None = None) -> DataFrame:
    """One row for each series and window with a numeric reading, as `spark.schemas.ROLLUPS`.

    `intervals` holds expected intervals (`gateway, thing_id, kind, name, interval_us`); a series that is not there is
    measured by its own median.
    """
    width = F.lit(round(window_s * 1_000_000))
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    ordered = (
        numeric(readings)
        .withColumn("w", F.col("at") - F.pmod("at", width))
        .withColumn("next_at", F.lead("at").over(in_order))
        .withColumn("previous_w", F.lag("w").over(in_order))
        .withColumn("previous_v", F.lag("v").over(in_order))
    )
    end = F.col("w") + width
    is_first = F.col("previous_w").isNull() | (F.col("previous_w") < F.col("w"))
    is_last = F.col("next_at").isNull() | (F.col("next_at") >= end)
    own = F.least(F.coalesce("next_at", end), end) - F.col("at")
    carried = F.when(is_first & F.col("previous_w").isNotNull(), F.col("at") - F.col("w")).otherwise(F.lit(0))
    # Of the conditional values exactly one in each window is set, so max picks it; ties were settled by row id.
    windows = ordered.groupBy(*SERIES, "w").agg(
        F.count(F.lit(1)).alias("count"),
        F.sum("v").alias("sum"),
        F.sum(F.col("v") * F.col("v")).alias("sum_sq"),
        F.min("v").alias("min"),
        F.max("v").alias("max"),
        F.max(F.when(is_first, F.col("v"))).alias("first"),
        F.max(F.when(is_last, F.col("v"))).alias("last"),
        F.sum(F.col("v") * own + F.coalesce("previous_v", F.lit(0.0)) * carried).alias("integral"),
        F.sum(own + carried).alias("weight"),
    )
    gaps = (
        ordered.where(F.col("next_at").isNotNull())
        .groupBy(*SERIES)
        .agg(F.percentile(F.col("next_at") - F.col("at"), 0.5).alias("median_us"))
    )
    complete = windows.join(gaps, on=list(SERIES), how="left")
    expected: Column = F.col("median_us")
    if intervals is not None:
        complete = complete.join(F.broadcast(intervals), on=list(SERIES), how="left")
        expected = F.coalesce(F.col("interval_us").cast("double"), expected)
    return complete.select(
        "gateway",
        "thing_id",
        "name",
        F.timestamp_micros("w").alias("window_start"),
        *(F.col(name) for name in ("count", "sum", "sum_sq", "min", "max", "first", "last")),
        (F.col("integral") / F.col("weight")).alias("mean_tw"),
        (F.col("count") * F.nullif(expected, F.lit(0.0)) / width).alias("completeness"),
        "kind",
    ).select(*ROLLUPS.fieldNames())
