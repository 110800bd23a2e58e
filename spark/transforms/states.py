"""State of the fleet at an instant: latest values, values as of a time, and what differs between two."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark.transforms.rollups import SERIES
from things.lake import VALUE_COLUMNS

_LATEST = ("row_id", "created", *VALUE_COLUMNS, "unit", "quality", "td_version")


def latest(readings: DataFrame) -> DataFrame:
    """The newest reading of each series, by time created and then row id: `gateway, thing_id, kind, name, row_id,
    created`, the value columns, `unit, quality, td_version`."""
    newest = F.max(
        F.struct("created", "row_id", *(F.col(name) for name in _LATEST if name not in ("created", "row_id")))
    )
    return (
        readings.groupBy(*SERIES).agg(newest.alias("newest")).select(*SERIES, *(f"newest.{name}" for name in _LATEST))
    )


def as_of(readings: DataFrame, at_us: int) -> DataFrame:
    """The fleet as it was at an instant: the newest readings created up to then."""
    return latest(readings.where(F.unix_micros("created") <= at_us))


def difference(before: DataFrame, after: DataFrame) -> DataFrame:
    """`gateway, thing_id, kind, name, change, before, after, delta` of two states: series that are `added`, `removed`
    or `changed`; values as text, `delta` for numbers."""

    def spelled(state: DataFrame, name: str) -> DataFrame:
        text = F.coalesce(
            F.col("value_long").cast("string"),
            F.col("value_bool").cast("string"),
            F.col("value_string"),
            F.col("value_json"),
            F.col("value_double").cast("string"),
        )
        return state.select(*SERIES, F.struct(text.alias("text"), F.col("value_double").alias("number")).alias(name))

    both = spelled(before, "old").join(spelled(after, "new"), on=list(SERIES), how="full")
    change = (
        F.when(F.col("old").isNull(), "added")
        .when(F.col("new").isNull(), "removed")
        .when(~F.col("old.text").eqNullSafe(F.col("new.text")), "changed")
    )
    return (
        both.withColumn("change", change)
        .where(F.col("change").isNotNull())
        .select(
            *SERIES,
            "change",
            F.col("old.text").alias("before"),
            F.col("new.text").alias("after"),
            (F.col("new.number") - F.col("old.number")).alias("delta"),
        )
    )
