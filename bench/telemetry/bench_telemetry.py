"""What sealing and Spark cost: `python -m bench.telemetry.bench_telemetry --rows 2000000`.

Each figure is a ratio of two ways taken in turns in one run, medians of several rounds, with the results of both
compared; on a machine that does other things too, trust the ratios. SKEP_RECORDINGS names a folder of recordings.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bench.telemetry.anomalies import show_anomalies
from bench.telemetry.data import Replicated, hot_files
from spark import lake as lakes
from spark.jobs import follow
from spark.schemas import READINGS
from spark.session import opened
from spark.sources import register
from spark.transforms.anomalies import z_scores
from spark.transforms.rollups import rollup
from twin.lake.compaction import Compactor
from twin.lake.hot import HotFiles
from twin.lake.manifest import Manifest
from twin.lake.places import place_of
from twin.lake.sealing import Sealer

SQL = """
WITH ordered AS (
    SELECT gateway, thing_id, kind, name, row_id, unix_micros(created) AS at, value_double AS v,
        unix_micros(created) - pmod(unix_micros(created), 300000000) AS w,
        lead(unix_micros(created)) OVER s AS next_at, lag(value_double) OVER s AS before_v,
        lag(unix_micros(created)) OVER s AS before_at
    FROM readings WHERE value_double IS NOT NULL
    WINDOW s AS (PARTITION BY gateway, thing_id, kind, name ORDER BY unix_micros(created), row_id)
), medians AS (
    SELECT gateway, thing_id, kind, name, percentile(next_at - at, 0.5) AS us FROM ordered
    WHERE next_at IS NOT NULL GROUP BY ALL
), windows AS (
    SELECT gateway, thing_id, kind, name, w, count(*) AS count, sum(v) AS sum, sum(v * v) AS sum_sq, min(v) AS min,
        max(v) AS max, min_by(v, struct(at, row_id)) AS first, max_by(v, struct(at, row_id)) AS last,
        sum(v * (least(coalesce(next_at, w + 300000000), w + 300000000) - at)
            + CASE WHEN before_at < w THEN before_v * (at - w) ELSE 0 END) AS integral,
        sum(least(coalesce(next_at, w + 300000000), w + 300000000) - at
            + CASE WHEN before_at < w THEN at - w ELSE 0 END) AS weight
    FROM ordered GROUP BY ALL
)
SELECT gateway, thing_id, name, timestamp_micros(w) AS window_start, count, sum, sum_sq, min, max, first, last,
    integral / weight AS mean_tw, count * us / 300000000 AS completeness
FROM windows LEFT JOIN medians USING (gateway, thing_id, kind, name)
"""
"""The roll-up as one would write it by hand."""


SECTIONS = ("seal", "anomalies", "read", "rollup", "stream")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="all of them unless told")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if "seal" in options.only:
            show_sealing(root / "hot", min(options.rows, 1_000_000))
        session = opened("bench", master="local[2]", options={"spark.driver.memory": "2g"})
        if "anomalies" in options.only:
            show_anomalies(session)
        if {"read", "rollup", "stream"}.isdisjoint(options.only):
            return
        files = made_lake(root / "lake", options.rows)
        register(session)
        lake = str(root / "lake")
        if "read" in options.only:
            show_reading(session, lake, files, options.rounds)
        if "rollup" in options.only:
            show_rollups(session, lake, files, options.rounds)
        if "stream" in options.only:
            show_stream(session, lake, options.rows)


def show_sealing(root: Path, rows: int) -> None:
    """Rows a second into the lake, beside only reading them from SQLite."""
    hot_files(root, rows)
    hot = HotFiles(root)
    began = time.perf_counter()
    assert sum(len(batch.row_ids) for batch in hot.columns(1, rows, 50_000)) == rows
    reading = time.perf_counter() - began
    pa.array([0])  # which imports pandas here; the lake's own process does without
    sealer = Sealer(Manifest(place_of(root / "lake"), "bench", lambda: time.time_ns() // 1000))
    began, worked = time.perf_counter(), time.process_time()
    sealed = sealer.seal(hot)
    took, worked = time.perf_counter() - began, time.process_time() - worked
    print(f"seal       {rows / took:,.0f} rows/s, {rows / worked:,.0f} rows/s of processor time")
    print(f"           {reading / took:.2f} of only reading them from SQLite")
    assert sealed.rows == rows


def made_lake(root: Path, rows: int) -> list[str]:
    """A sealed and compacted lake; the paths of its live files."""
    manifest = Manifest(place_of(root), "bench", lambda: time.time_ns() // 1000)
    Sealer(manifest).seal(Replicated(rows))
    sealed = sum((root / part.path).stat().st_size for part in manifest.snapshot().parts)
    Compactor(manifest).compact()
    parts = manifest.snapshot().parts
    size = sum((root / part.path).stat().st_size for part in parts)
    assert sum(part.rows for part in parts) == rows
    print(f"size       {sealed / rows:.1f} bytes a row as sealed, {size / rows:.1f} compacted, in {len(parts)} files")
    return [str(root / part.path) for part in parts]


def show_reading(session: SparkSession, lake: str, files: Sequence[str], rounds: int) -> None:
    """The bulk path and the data source, beside a bare read of the same files and columns."""
    base = session.read.option("basePath", f"{lake}/readings")

    def bare() -> DataFrame:
        return base.schema(READINGS).parquet(*files)

    ways = {
        "bare": lambda: _spent(bare),
        "bulk": lambda: _spent(lambda: lakes.readings(session, lake)),
        "skep": lambda: _spent(lambda: session.read.format("skep").option("lake", lake).load()),
    }
    took = _in_turns(ways, rounds)
    columns = (
        "count(*)",
        "sum(row_id)",
        "sum(unix_micros(created) % 1000003)",
        "sum(quality)",
        "count(DISTINCT thing_id)",
    )
    answers = {
        name: frame.selectExpr(*columns).collect()
        for name, frame in {
            "bare": bare(),
            "bulk": lakes.readings(session, lake),
            "skep": session.read.format("skep").option("lake", lake).load(),
        }.items()
    }
    assert answers["bare"] == answers["bulk"] == answers["skep"]
    print(f"readings   {took['bare'] / took['bulk']:.2f} of a bare read")
    print(f"skep       {took['bare'] / took['skep']:.2f} of a bare read")


def show_rollups(session: SparkSession, lake: str, files: Sequence[str], rounds: int) -> None:
    """The roll-up beside hand-written SQL, and the rolling z-score beside the roll-up."""
    base = session.read.option("basePath", f"{lake}/readings").schema(READINGS)
    base.parquet(*files).createOrReplaceTempView("readings")

    def by_us() -> DataFrame:
        return rollup(lakes.readings(session, lake), 300)

    ways = {
        "ours": lambda: _spent(by_us),
        "sql": lambda: _spent(lambda: session.sql(SQL)),
        "z": lambda: _spent(lambda: z_scores(lakes.readings(session, lake), 288)),
    }
    took = _in_turns(ways, rounds)
    sums = ("count(*)", "sum(count)", "sum(sum)", "sum(first)", "sum(last)", "sum(mean_tw)", "sum(completeness)")
    ours, sql = (frame.selectExpr(*sums).collect()[0] for frame in (by_us(), session.sql(SQL)))
    assert all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(ours, sql, strict=True)), (ours, sql)
    print(f"rollup     {took['ours'] / took['sql']:.2f} × hand-written SQL ({took['ours']:.1f} s)")
    print(f"z-score    {took['z'] / took['ours']:.2f} × the roll-up")


def show_stream(session: SparkSession, lake: str, rows: int) -> None:
    """Rows a second through the following roll-up in batches of half a million, and through the source by itself."""
    began = time.perf_counter()
    query = follow.start(session, lake, max_rows=500_000)
    query.awaitTermination()
    print(f"follow     {rows / (time.perf_counter() - began):,.0f} rows/s rolled up, ", end="")
    # The first batch is the one in which Spark compiles; folds fall into later ones.
    later: list[Any] = list(query.recentProgress)[1:]
    if later:
        last = max(float(progress["batchDuration"]) for progress in later) / 1_000
        spent = sum(float(progress["batchDuration"]) for progress in later) / 1_000
        print(f"{500_000 * len(later) / spent:,.0f} after the first batch, slowest batch {last:.1f} s")
    sums = ("count(*)", "sum(count)", "sum(sum)", "sum(first)", "sum(last)", "sum(mean_tw)", "sum(completeness)")
    at_once = rollup(lakes.readings(session, lake), 300, lakes.intervals(session, lake))
    ours, whole = (frame.selectExpr(*sums).collect()[0] for frame in (follow.table(session, lake), at_once))
    assert all(math.isclose(one, other, rel_tol=1e-9) for one, other in zip(ours, whole, strict=True)), (ours, whole)

    counted: list[int] = []
    reader = session.readStream.format("skep").option("lake", lake).option("maxRowsPerBatch", 500_000)
    began = time.perf_counter()
    query = (
        reader.load()
        .writeStream.foreachBatch(lambda frame, _: counted.append(frame.count()))
        .option("checkpointLocation", f"{lake}/../plain")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sum(counted) == rows
    print(f"stream     {rows / (time.perf_counter() - began):,.0f} rows/s read by the source, row by row")


def _in_turns(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    for way in ways.values():
        way()  # the first run compiles
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            took[name].append(way())
    return {name: median(each) for name, each in took.items()}


def _spent(make: Callable[[], DataFrame]) -> float:
    began = time.perf_counter()
    make().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
