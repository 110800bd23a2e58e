"""Roll-ups in three steps: windows of some rows, windows of all rows, and what runs across their borders.

A partial holds what some readings of one window say, with the bounds of their times and row ids. Partials of the same
window add up exactly as long as their readings follow each other in time. Where they lie among each other, only the
readings themselves tell the integral and the gaps; `torn` names those windows, and `mended` takes them from the
readings. What a value carries into later windows, and the interval that completeness is measured by, come from the
neighbours and are worked out when the table is read.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from spark.schemas import ROLLUPS
from spark.transforms.rollups import SERIES, numeric

KEY = (*SERIES, "w")
PARTIALS = StructType(
    [
        *(StructField(name, StringType()) for name in SERIES),
        StructField("w", LongType()),
        StructField("count", LongType()),
        *(StructField(name, DoubleType()) for name in ("sum", "sum_sq", "min", "max", "first", "last", "integral")),
        *(StructField(name, LongType()) for name in ("first_at", "last_at", "first_row", "last_row")),
        StructField("gaps", ArrayType(LongType())),
    ]
)
"""`w` is the window's start; `integral` is value · µs from the first reading to the window's end; `gaps` are the
intervals between its readings; times are µs."""


def partials(readings: DataFrame, window_s: float) -> DataFrame:
    """One row for each series and window with a numeric reading."""
    width = _width(window_s)
    inside = Window.partitionBy(*KEY).orderBy("at", "row_id")
    ordered = (
        numeric(readings)
        .withColumn("w", F.col("at") - F.pmod("at", width))
        .withColumn("next_at", F.lead("at").over(inside))
        .withColumn("is_first", F.lag("at").over(inside).isNull())
    )
    held = F.coalesce(F.col("next_at"), F.col("w") + width) - F.col("at")
    return (
        ordered.groupBy(*KEY)
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("v").alias("sum"),
            F.sum(F.col("v") * F.col("v")).alias("sum_sq"),
            F.min("v").alias("min"),
            F.max("v").alias("max"),
            F.max(F.when(F.col("is_first"), F.col("v"))).alias("first"),
            F.max(F.when(F.col("next_at").isNull(), F.col("v"))).alias("last"),
            F.sum(F.col("v") * held).alias("integral"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.min("row_id").alias("first_row"),
            F.max("row_id").alias("last_row"),
            F.collect_list(F.col("next_at") - F.col("at")).alias("gaps"),
        )
        .select(*PARTIALS.fieldNames())
    )


def added(pieces: DataFrame, window_s: float) -> DataFrame:
    """Partials of separate rows as one row for each series and window, and whether it `is_torn`: its pieces overlap in
    time, so that integral and gaps are estimates. Everything else is exact in any case."""
    end = F.col("w") + _width(window_s)
    in_order = Window.partitionBy(*KEY).orderBy("first_at", "last_at")
    linked = pieces.withColumn("before", F.lag("last_at").over(in_order)).withColumn(
        "next_at", F.lead("first_at").over(in_order)
    )
    # Until the next piece begins, and not to the window's end, a piece's last value holds.
    own = F.col("integral") - F.when(F.col("next_at").isNotNull(), F.col("last") * (end - F.col("next_at"))).otherwise(
        F.lit(0.0)
    )
    steps = F.when(F.col("before").isNull(), F.col("gaps")).otherwise(
        F.concat("gaps", F.array(F.col("first_at") - F.col("before")))
    )
    is_torn = F.coalesce(F.max(F.col("before") >= F.col("first_at")), F.lit(False))
    # As if the pieces' means were of equal worth for the time that each covers.
    estimate = F.sum("integral") / F.sum(end - F.col("first_at")) * (end - F.min("first_at"))
    return (
        linked.groupBy(*KEY)
        .agg(
            F.sum("count").alias("count"),
            F.sum("sum").alias("sum"),
            F.sum("sum_sq").alias("sum_sq"),
            F.min("min").alias("min"),
            F.max("max").alias("max"),
            # A later piece has higher row ids throughout, so they settle what happened at the very same time.
            F.min_by("first", F.struct("first_at", "first_row")).alias("first"),
            F.max_by("last", F.struct("last_at", "last_row")).alias("last"),
            F.when(is_torn, estimate).otherwise(F.sum(own)).alias("integral"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.min("first_row").alias("first_row"),
            F.max("last_row").alias("last_row"),
            F.flatten(F.collect_list(steps)).alias("gaps"),
            is_torn.alias("is_torn"),
        )
        .select(*PARTIALS.fieldNames(), "is_torn")
    )


def mended(torn: DataFrame, readings: DataFrame, window_s: float) -> DataFrame:
    """Torn windows with integral and gaps from their own readings: those with row ids from `first_row` to `last_row`.
    A window whose readings are no longer all among `readings` keeps its estimates."""
    width = _width(window_s)
    at = F.unix_micros("created")
    bounds = torn.select(*KEY, F.col("first_row").alias("low"), F.col("last_row").alias("high"))
    mine = readings.withColumn("w", at - F.pmod(at, width)).join(bounds, on=list(KEY), how="inner")
    again = partials(mine.where(F.col("row_id").between(F.col("low"), F.col("high"))), window_s)
    # All are there when as many are: rows are never added to a range of ids that has been taken.
    exact = again.select(*KEY, "count", F.struct(*_FROM_READINGS).alias("exact"))
    joined = torn.join(exact, on=[*KEY, "count"], how="left")
    values = [
        F.coalesce(F.col(f"exact.{name}"), F.col(name)).alias(name) if name in _FROM_READINGS else F.col(name)
        for name in PARTIALS.fieldNames()
    ]
    return joined.select(*values)


def finished(windows: DataFrame, window_s: float, intervals: DataFrame | None = None) -> DataFrame:
    """Whole windows as roll-ups; the same as `spark.transforms.rollups.rollup` of all their readings."""
    width = round(window_s * 1_000_000)
    in_order = Window.partitionBy(*SERIES).orderBy("w")
    linked = windows.withColumn("carried", F.lag("last").over(in_order)).withColumn(
        "before", F.lag("last_at").over(in_order)
    )
    steps = F.when(F.col("before").isNull(), F.col("gaps")).otherwise(
        F.concat("gaps", F.array(F.col("first_at") - F.col("before")))
    )
    medians = (
        linked.select(*SERIES, F.explode(steps).alias("gap"))
        .groupBy(*SERIES)
        .agg(F.percentile("gap", 0.5).alias("median_us"))
    )
    complete = linked.join(medians, on=list(SERIES), how="left")
    expected = F.col("median_us")
    if intervals is not None:
        complete = complete.join(F.broadcast(intervals), on=list(SERIES), how="left")
        expected = F.coalesce(F.col("interval_us").cast("double"), expected)
    ahead = F.when(F.col("carried").isNotNull(), F.col("first_at") - F.col("w")).otherwise(F.lit(0))
    integral = F.col("integral") + F.coalesce("carried", F.lit(0.0)) * ahead
    weight = F.col("w") + width - F.col("first_at") + ahead
    return complete.select(
        "gateway",
        "thing_id",
        "name",
        F.timestamp_micros("w").alias("window_start"),
        *(F.col(name) for name in ("count", "sum", "sum_sq", "min", "max", "first", "last")),
        (integral / weight).alias("mean_tw"),
        (F.col("count") * F.nullif(expected, F.lit(0.0)) / width).alias("completeness"),
        "kind",
    ).select(*ROLLUPS.fieldNames())


_FROM_READINGS = ("integral", "gaps")
"""What only the readings tell of a torn window."""


def _width(window_s: float) -> Column:
    return F.lit(round(window_s * 1_000_000))
