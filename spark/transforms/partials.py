"""Roll-ups in two steps: windows that stand alone, then what runs across their borders.

A partial holds all that one window's own readings say. What a value carries into later windows, and the interval that
completeness is measured by, come from the neighbours and are worked out when the table is read. So a late reading
changes one partial only, and a stream need not repair the windows after it.
"""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructField, StructType

from spark.schemas import ROLLUPS
from spark.transforms.rollups import SERIES, numeric

PARTIALS = StructType(
    [
        *(StructField(name, StringType()) for name in SERIES),
        StructField("w", LongType()),
        StructField("count", LongType()),
        *(StructField(name, DoubleType()) for name in ("sum", "sum_sq", "min", "max", "first", "last", "integral")),
        StructField("first_at", LongType()),
        StructField("last_at", LongType()),
        StructField("gaps", ArrayType(LongType())),
    ]
)
"""`w` is the window's start; `integral` is value · µs from the first reading to the window's end; `gaps` are the
intervals between its readings."""


def partials(readings: DataFrame, window_s: float) -> DataFrame:
    """One row for each series and window with a numeric reading."""
    width = F.lit(round(window_s * 1_000_000))
    inside = Window.partitionBy(*SERIES, "w").orderBy("at", "row_id")
    ordered = (
        numeric(readings)
        .withColumn("w", F.col("at") - F.pmod("at", width))
        .withColumn("next_at", F.lead("at").over(inside))
        .withColumn("position", F.row_number().over(inside))
    )
    held = F.coalesce(F.col("next_at"), F.col("w") + width) - F.col("at")
    return (
        ordered.groupBy(*SERIES, "w")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.sum("v").alias("sum"),
            F.sum(F.col("v") * F.col("v")).alias("sum_sq"),
            F.min("v").alias("min"),
            F.max("v").alias("max"),
            F.max(F.when(F.col("position") == 1, F.col("v"))).alias("first"),
            F.max(F.when(F.col("next_at").isNull(), F.col("v"))).alias("last"),
            F.sum(F.col("v") * held).alias("integral"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
            F.collect_list(F.col("next_at") - F.col("at")).alias("gaps"),
        )
        .select(*PARTIALS.fieldNames())
    )


def finished(windows: DataFrame, window_s: float, intervals: DataFrame | None = None) -> DataFrame:
    """Partials as roll-ups; the same as `spark.transforms.rollups.rollup` of all their readings."""
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
    ).select(*ROLLUPS.fieldNames())
