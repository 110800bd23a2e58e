"""Anomaly scores: rolling z-score, median and MAD by window, flat lines, stuck clocks.

Every score says how unusual a reading is among its own series; nothing is decided across series.
"""

from pyspark.sql import Column, DataFrame, GroupedData, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.rollups import SERIES, numeric

MAD_TO_SIGMA = 0.6745
"""A normal distribution's median absolute deviation, in standard deviations."""


def z_scores(readings: DataFrame, rows: int, *, fast: bool = True) -> DataFrame:
    """`gateway, thing_id, kind, name, at, row_id, value, score`: distance from the mean of the `rows` readings before,
    in their standard deviations; null before there are two, and where they are all equal.

    Spark computes a bounded frame anew for every row. The fast form takes differences of running sums instead, of
    values counted from the series' first one so that large offsets do not cost digits.
    """
    in_order = Window.partitionBy(*SERIES).orderBy("at", "row_id")
    if not fast:
        before = in_order.rowsBetween(-rows, -1)
        plain = numeric(readings).select(
            *SERIES,
            "at",
            "row_id",
            "v",
            F.count("v").over(before).alias("n"),
            F.avg("v").over(before).alias("mean"),
            F.stddev_samp("v").over(before).alias("deviation"),
        )
        return _scored(plain)
    running = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    shifted = numeric(readings).withColumn("x", F.col("v") - F.first("v").over(running))
    sums = (
        shifted.withColumn("sum", F.sum("x").over(running))
        .withColumn("sum_sq", F.sum(F.col("x") * F.col("x")).over(running))
        .withColumn("index", F.row_number().over(in_order))
    )

    def between(name: str) -> Column:
        own = F.col("x") if name == "sum" else F.col("x") * F.col("x")
        return F.col(name) - own - F.coalesce(F.lag(name, rows + 1).over(in_order), F.lit(0.0))

    framed = sums.select(
        *SERIES,
        "at",
        "row_id",
        "v",
        "x",
        F.least(F.col("index") - 1, F.lit(rows)).alias("n"),
        between("sum").alias("s"),
        between("sum_sq").alias("q"),
    )
    variance = (F.col("q") - F.col("s") * F.col("s") / F.col("n")) / (F.col("n") - 1)
    # Differences of sums leave dust where all values are equal; it must not pass for a deviation.
    is_spread = variance > F.col("q") / F.col("n") * 1e-12
    scored = framed.select(
        *SERIES,
        "at",
        "row_id",
        "v",
        "n",
        (F.col("v") - F.col("x") + F.col("s") / F.col("n")).alias("mean"),
        F.when((F.col("n") > 1) & is_spread, F.sqrt(variance)).alias("deviation"),
    )
    return _scored(scored)


def mad_scores(readings: DataFrame, window_s: float) -> DataFrame:
    """`gateway, thing_id, kind, name, at, row_id, value, score`: distance from the median of the tumbling window in
    which the reading lies, in median absolute deviations scaled to standard ones; null where half the values are equal.
    """
    width = F.lit(round(window_s * 1_000_000))
    key = [*SERIES, "w"]
    values = numeric(readings).withColumn("w", F.col("at") - F.pmod("at", width))
    medians = values.groupBy(*key).agg(F.percentile("v", 0.5).alias("median"))
    distances = values.join(medians, on=key, how="inner").withColumn("distance", F.abs(F.col("v") - F.col("median")))
    spreads = distances.groupBy(*key).agg(F.percentile("distance", 0.5).alias("mad"))
    return distances.join(spreads, on=key, how="inner").select(
        *SERIES,
        F.timestamp_micros("at").alias("at"),
        "row_id",
        F.col("v").alias("value"),
        (F.col("distance") * MAD_TO_SIGMA / F.nullif(F.col("mad"), F.lit(0.0))).alias("score"),
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
    score = (F.col("v") - F.col("mean")) / F.nullif(F.col("deviation"), F.lit(0.0))
    return framed.select(
        *SERIES,
        F.timestamp_micros("at").alias("at"),
        "row_id",
        F.col("v").alias("value"),
        F.when(F.col("n") > 1, score).alias("score"),
    )
