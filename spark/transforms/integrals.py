"""Time-weighted averages and integrals, and what counters counted.

Here every window that a value reaches into has a row, with or without a reading of its own: an interval between two
readings is split at each border it crosses.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.rollups import SERIES, numeric


def integrals(readings: DataFrame, window_s: float, *, max_gap_s: float | None = None) -> DataFrame:
    """`gateway, thing_id, kind, name, window_start, integral, covered_s, mean_tw`, the integral in value · seconds.

    Each value holds until the next reading, but not longer than `max_gap_s`; a series' last one until its window ends.
    """
    width = F.lit(round(window_s * 1_000_000))
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    window_end = F.col("at") - F.pmod("at", width) + width
    until = F.coalesce(F.lead("at").over(in_order), window_end)
    if max_gap_s is not None:
        until = F.least(until, F.col("at") + round(max_gap_s * 1_000_000))
    held = numeric(readings).withColumn("until", until).where(F.col("until") > F.col("at"))
    first, last = F.col("at") - F.pmod("at", width), (F.col("until") - 1) - F.pmod(F.col("until") - 1, width)
    split = held.select(*SERIES, "at", "until", "v", F.explode(F.sequence(first, last, width)).alias("w"))
    weight = (F.least(F.col("until"), F.col("w") + width) - F.greatest("at", "w")) / 1_000_000
    return (
        split.withColumn("weight", weight)
        .groupBy(*SERIES, "w")
        .agg(F.sum(F.col("v") * F.col("weight")).alias("integral"), F.sum("weight").alias("covered_s"))
        .select(
            *SERIES,
            F.timestamp_micros("w").alias("window_start"),
            "integral",
            "covered_s",
            (F.col("integral") / F.col("covered_s")).alias("mean_tw"),
        )
    )


def counter_deltas(readings: DataFrame) -> DataFrame:
    """`gateway, thing_id, kind, name, at, value, delta, is_reset`: what a rising counter counted since the reading
    before. After a reset (the value fell) it counted what it shows now; the first reading has no delta."""
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    ordered = numeric(readings).withColumn("previous", F.lag("v").over(in_order))
    is_reset = F.coalesce(F.col("v") < F.col("previous"), F.lit(False))
    return ordered.select(
        *SERIES,
        F.timestamp_micros("at").alias("at"),
        F.col("v").alias("value"),
        F.when(is_reset, F.col("v")).otherwise(F.col("v") - F.col("previous")).alias("delta"),
        is_reset.alias("is_reset"),
    )
