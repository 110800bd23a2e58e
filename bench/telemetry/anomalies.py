"""How the anomaly scores do on recordings whose failures people have labelled.

A window counts as found when a reading in it is flagged; flags outside all windows are false. The first eighth of a
recording, in which a rolling score learns, is not judged.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from bench.telemetry.data import recordings
from spark.schemas import READINGS
from spark.transforms.anomalies import mad_scores, z_scores

COLUMNS = ("row_id", "thing_id", "name", "kind", "created", "value_double", "gateway")
THRESHOLDS = {"z": 4.0, "mad": 4.0}


def show_anomalies(session: SparkSession) -> None:
    """One line for each recording and score; nothing to judge by without SKEP_RECORDINGS."""
    folder = os.environ.get("SKEP_RECORDINGS")
    if not folder:
        print("anomalies  skipped: SKEP_RECORDINGS names no folder of recordings")
        return
    labels = {Path(name).name: spans for name, spans in json.loads((Path(folder) / "windows.json").read_text()).items()}
    for name, readings in recordings().items():
        rows = [
            (number, f"dtw:nab:{name}", "value", "property", datetime.fromtimestamp(at / 1e6, UTC), value, "bench")
            for number, (at, value) in enumerate(readings, 1)
        ]
        frame = session.createDataFrame(rows, StructType([READINGS[column] for column in COLUMNS]))
        day_rows = round(86_400_000_000 / max(readings[1][0] - readings[0][0], 1))
        spans = [tuple(_micros(text) for text in span) for span in labels[name]]
        for score, scored in {
            "z": z_scores(frame, 7 * day_rows),
            "mad": mad_scores(frame, 28 * 86_400),
        }.items():
            flags = _flagged(scored, THRESHOLDS[score], len(readings) // 8)
            found = sum(any(first <= at <= last for at in flags) for first, last in spans)
            false = sum(not any(first <= at <= last for first, last in spans) for at in flags)
            print(f"anomalies  {name.split('_')[0]} by {score}: {found} of {len(spans)} windows, {false} false flags")


def _flagged(scored: DataFrame, threshold: float, learning: int) -> list[int]:
    chosen = scored.where((F.abs("score") >= threshold) & (F.col("row_id") > learning))
    return [row.at for row in chosen.select(F.unix_micros("at").alias("at")).collect()]


def _micros(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)
