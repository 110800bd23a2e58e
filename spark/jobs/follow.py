"""Roll-ups that follow the lake: a stream of row ids whose results survive any kill exactly once.

Each batch names the windows its rows fall into; those windows are computed anew from the lake and written to a folder
of the batch's own number, replacing what a killed attempt left there. Late rows therefore repair old windows, however
late, and a row that came twice counts once, since the lake has it once. Reading takes, of each window, the newest batch
that Spark has committed.
"""

import sys
from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark import lake as lakes
from spark.sources import register
from spark.transforms.partials import PARTIALS, finished, partials
from spark.transforms.rollups import SERIES, numeric
from things.durations import window_seconds

MAX_ROWS = 500_000
"""Rows of one batch, unless told otherwise."""
SHOW_EVERY_S = 5


def state_of(lake: str, window: str) -> str:
    """Where the stream of a window keeps its table and its offsets, unless told otherwise."""
    return f"{lake.rstrip('/')}/streams/rollup-{window}"


def start(
    session: SparkSession,
    lake: str,
    *,
    window: str = "5m",
    state: str | None = None,
    max_rows: int = MAX_ROWS,
    every: str | None = None,
) -> StreamingQuery:
    """Follow the lake from where `state` stands. Looks for new rows `every` so often (`10s`), or, with None, takes what
    is there now and ends."""
    register(session)
    width_s = window_seconds(window)
    state = state or state_of(lake, window)

    def take(frame: DataFrame, batch: int) -> None:
        _touched_windows(frame, lake, width_s).write.mode("overwrite").parquet(f"{state}/batch={batch}")

    rows = session.readStream.format("skep").option("lake", lake).option("maxRowsPerBatch", max_rows).load()
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", f"{state}/_checkpoint")
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{window_seconds(every):g} seconds").start()


def table(session: SparkSession, lake: str, *, window: str = "5m", state: str | None = None) -> DataFrame:
    """The roll-ups so far, in order; the same as rolling up at once all rows that the stream has taken."""
    windows = _committed(session, state or state_of(lake, window))
    return finished(windows, window_seconds(window), lakes.intervals(session, lake)).orderBy(
        "gateway", "thing_id", "name", "window_start"
    )


def watch(query: StreamingQuery) -> None:
    """Say on stderr how the stream gets on, until it ends; Ctrl-C ends it after its batch."""
    shown = -1
    try:
        while not query.awaitTermination(SHOW_EVERY_S):
            shown = _show(query, shown)
    except KeyboardInterrupt:
        query.stop()
    _show(query, shown)


def _touched_windows(frame: DataFrame, lake: str, width_s: float) -> DataFrame:
    """The windows of a batch's rows, computed from all the rows the lake has of them."""
    session = frame.sparkSession
    width = F.lit(round(width_s * 1_000_000))
    in_window = F.col("at") - F.pmod("at", width)
    # The key of each window once, however many rows of the batch fall into it.
    touched = numeric(frame).select(*SERIES, in_window.alias("w")).distinct().persist()
    try:
        days = _days(touched, width_s)
        readings = lakes.readings(session, lake, days=(days[0], days[-1]) if days else ("9999", "0000"))
        at = F.unix_micros("created")
        windowed = readings.where(F.col("day").cast("string").isin(days)).withColumn("w", at - F.pmod(at, width))
        mine = windowed.join(F.broadcast(touched), on=[*SERIES, "w"], how="left_semi").drop("w")
        # Worked out before the keys are let go.
        return partials(mine, width_s).localCheckpoint()
    finally:
        touched.unpersist()


def _days(touched: DataFrame, width_s: float) -> Sequence[str]:
    """Days that the windows reach into."""
    last = F.col("w") + (round(width_s * 1_000_000) - 1)
    days = F.sequence(F.to_date(F.timestamp_micros("w")), F.to_date(F.timestamp_micros(last)), F.expr("interval 1 day"))
    spans = touched.select(F.explode(days).alias("day"))
    return sorted(row.day for row in spans.select(F.col("day").cast("string").alias("day")).distinct().collect())


def _committed(session: SparkSession, state: str) -> DataFrame:
    """Of each window the newest partial, among the batches that Spark has committed."""
    commits = _commits(session, state)
    if not commits:
        return session.createDataFrame([], PARTIALS)
    folders = [f"{state}/batch={number}" for number in range(max(commits) + 1)]
    found = session.read.option("basePath", state).parquet(*folders)
    values = [name for name in PARTIALS.fieldNames() if name not in (*SERIES, "w")]
    newest = F.max_by(F.struct(*values), F.col("batch")).alias("newest")
    return found.groupBy(*SERIES, "w").agg(newest).select(*SERIES, "w", *(f"newest.{name}" for name in values))


def _commits(session: SparkSession, state: str) -> list[int]:
    """The batches that Spark's own log has as done. A batch that is not may be half written."""
    try:
        paths = session.read.text(f"{state}/_checkpoint/commits/*").select("_metadata.file_name").distinct().collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return [int(row.file_name) for row in paths if row.file_name.isdigit()]


def _show(query: StreamingQuery, shown: int) -> int:
    progress: Any = query.lastProgress
    if progress is None or progress["batchId"] == shown:
        return shown
    rate = progress["processedRowsPerSecond"] or 0
    end = progress["sources"][0]["endOffset"]
    print(f"batch {progress['batchId']}: {progress['numInputRows']} rows, {rate:.0f}/s, up to {end}", file=sys.stderr)
    return int(progress["batchId"])
