"""Availability of agents, from the times at which they came and went."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

AGENT = ("gateway", "agent_id")


def availability(presence: DataFrame, window_s: float, until_us: int) -> DataFrame:
    """`gateway, agent_id, window_start, online_s, known_s, availability, changes`: for each window the time an agent
    was online, of the time since it was first heard of, up to `until_us`."""
    width = F.lit(round(window_s * 1_000_000))
    in_order = Window.partitionBy(*AGENT).orderBy("at")
    # A change may be reported again after a restart; the same report twice is one.
    changes = (
        presence.select(*AGENT, F.unix_micros("at").alias("at"), "online")
        .groupBy(*AGENT, "at")
        .agg(F.bool_and("online").alias("online"))
        .where(F.col("at") < until_us)
    )
    states = changes.withColumn("until", F.coalesce(F.lead("at").over(in_order), F.lit(until_us))).withColumn(
        "is_change", F.coalesce(F.lag("online").over(in_order) != F.col("online"), F.lit(False))
    )
    first, last = F.col("at") - F.pmod("at", width), (F.col("until") - 1) - F.pmod(F.col("until") - 1, width)
    split = states.withColumn("w", F.explode(F.sequence(first, last, width)))
    seconds = (F.least(F.col("until"), F.col("w") + width) - F.greatest("at", "w")) / 1_000_000
    changed_here = F.col("is_change") & (F.col("at") >= F.col("w"))
    return (
        split.withColumn("seconds", seconds)
        .groupBy(*AGENT, "w")
        .agg(
            F.sum(F.when(F.col("online"), F.col("seconds")).otherwise(0.0)).alias("online_s"),
            F.sum("seconds").alias("known_s"),
            F.count_if(changed_here).alias("changes"),
        )
        .select(
            *AGENT,
            F.timestamp_micros("w").alias("window_start"),
            "online_s",
            "known_s",
            (F.col("online_s") / F.col("known_s")).alias("availability"),
            "changes",
        )
    )
