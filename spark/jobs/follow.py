"""Roll-ups that follow the lake: a stream of row ids whose results survive any kill exactly once.

Each batch is rolled up by itself and written to a folder that its number names, replacing what a killed attempt left
there; now and then folders are folded into larger ones (`spark.jobs.runs`). Row ids are the only progress: a row
belongs to one batch for ever, so it counts once, however late it is and however often the batch is tried. Where late
readings lie among those of an earlier batch, their windows are read again from the lake.
"""

import sys
from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark import lake as lakes
from spark.jobs import runs
from spark.sources import register
from spark.transforms.partials import PARTIALS, added, finished, mended, partials
from things.durations import window_seconds

MAX_ROWS = 1_000_000
"""Rows of one batch, unless told otherwise."""
FEW_WINDOWS = 100_000
"""So many are sent to every task, rather than the readings sorted by window."""
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

    def take(ranges: DataFrame, batch: int) -> None:
        within = ranges.sparkSession
        for run in runs.due(batch):
            folded = _whole(within, lake, _read(within, state, run.sources), width_s)
            folded.write.mode("overwrite").parquet(f"{state}/{run.folder}")
        rows = {row.gateway: (row.first, row.last) for row in ranges.collect()}
        taken = partials(lakes.readings(within, lake, rows=rows), width_s)
        taken.write.mode("overwrite").parquet(f"{state}/{runs.Run(0, batch).folder}")

    stream = session.readStream.format("skep").option("lake", lake).option("ranges", "true")
    ranges = stream.option("maxRowsPerBatch", max_rows).load()
    writer = ranges.writeStream.foreachBatch(take).option("checkpointLocation", f"{state}/_checkpoint")
    if every is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{window_seconds(every):g} seconds").start()


def table(session: SparkSession, lake: str, *, window: str = "5m", state: str | None = None) -> DataFrame:
    """The roll-ups so far, in order; the same as rolling up at once all rows that the stream has taken."""
    state = state or state_of(lake, window)
    width_s = window_seconds(window)
    commits = _commits(session, state)
    pieces = _read(session, state, runs.after(max(commits))) if commits else session.createDataFrame([], PARTIALS)
    windows = _whole(session, lake, pieces, width_s)
    return finished(windows, width_s, lakes.intervals(session, lake)).orderBy(
        "gateway", "thing_id", "name", "kind", "window_start"
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


def _read(session: SparkSession, state: str, wanted: Sequence[runs.Run]) -> DataFrame:
    return session.read.schema(PARTIALS).parquet(*(f"{state}/{run.folder}" for run in wanted))


def _whole(session: SparkSession, lake: str, pieces: DataFrame, width_s: float) -> DataFrame:
    """Pieces added up to one row for each window; those that overlap in time with the help of the lake."""
    windows = added(pieces, width_s)
    torn = windows.where("is_torn").select(*PARTIALS.fieldNames())
    whole = windows.where(~F.col("is_torn")).select(*PARTIALS.fieldNames())
    spans = torn.groupBy("gateway").agg(
        F.count("*").alias("windows"),
        F.min("first_row").alias("first"),
        F.max("last_row").alias("last"),
        F.date_format(F.timestamp_micros(F.min("first_at")), "yyyy-MM-dd").alias("begin"),
        F.date_format(F.timestamp_micros(F.max("last_at")), "yyyy-MM-dd").alias("end"),
    )
    found = spans.collect()
    if not found:
        return whole
    days = (min(row.begin for row in found), max(row.end for row in found))
    rows = {row.gateway: (row.first, row.last) for row in found}
    if sum(row.windows for row in found) <= FEW_WINDOWS:
        torn = F.broadcast(torn)
    return whole.unionByName(mended(torn, lakes.readings(session, lake, days=days, rows=rows), width_s))


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
    source = progress["sources"][0]
    begin, end = (_offset(source[name]) for name in ("startOffset", "endOffset"))
    rows = sum(last - begin.get(gateway, 0) for gateway, last in end.items())
    rate = rows / max(progress["batchDuration"], 1) * 1_000
    print(f"batch {progress['batchId']}: {rows} rows, {rate:.0f}/s, up to {end}", file=sys.stderr)
    return int(progress["batchId"])


def _offset(given: Any) -> dict[str, int]:
    found = from_json(given) if isinstance(given, str) else given
    return dict(found or {})
