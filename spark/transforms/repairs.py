"""Late data: roll-ups made before some readings arrived, made right again."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from spark.schemas import ROLLUPS
from spark.transforms.rollups import rollup

_KEY = ["gateway", "thing_id", "name"]


def late(readings: DataFrame, rolled_up: Mapping[str, int]) -> DataFrame:
    """Readings that came after the roll-up: row ids above what it had seen, by gateway."""
    is_late: Column = ~F.col("gateway").isin(list(rolled_up))
    for gateway, row_id in rolled_up.items():
        is_late = is_late | ((F.col("gateway") == gateway) & (F.col("row_id") > row_id))
    return readings.where(is_late)


def repaired(
    rollups: DataFrame,
    readings: DataFrame,
    window_s: float,
    rolled_up: Mapping[str, int],
    intervals: DataFrame | None = None,
) -> DataFrame:
    """`rollups` with every series that got late readings rolled up again from all its `readings`; the same as rolling
    up everything again. A late reading changes its own window, what the next one carries in, and the median interval.
    """
    # One row for each series that is touched: the key only, however many readings were late.
    touched = late(readings, rolled_up).select(*_KEY).distinct()
    again = rollup(readings.join(touched, on=_KEY, how="left_semi"), window_s, intervals)
    return rollups.join(touched, on=_KEY, how="left_anti").select(*ROLLUPS.fieldNames()).unionByName(again)
