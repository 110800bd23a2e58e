"""How the anomaly scores do on recordings whose failures people have labelled.

A window counts as found when a reading in it is flagged; days with flags outside all windows are false alarms. The
first eighth of a recording, in which a rolling score learns, is not judged. Length and threshold of each score are
chosen on one recording and judged on the other, so that no figure is of the data it was tuned on.
"""

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from bench.telemetry.data import Reading, recordings
from spark.schemas import READINGS
from spark.transforms.anomalies import mad_scores, z_scores

COLUMNS = ("row_id", "thing_id", "name", "kind", "created", "value_double", "gateway")
DAY_US = 86_400_000_000
LENGTHS = {"z": (1, 3, 7, 14, 28), "mad": (1, 7, 28)}
"""Days that a score looks at, to choose from: those before a reading, or those of the window it lies in."""
THRESHOLDS = [step / 2 for step in range(4, 25)]


class Recording(NamedTuple):
    """Its readings as a frame and how many there are of a day; what is judged; what people labelled (µs)."""

    name: str
    frame: DataFrame
    day_rows: int
    judged_after: int
    spans: Sequence[tuple[int, int]]


class Choice(NamedTuple):
    """A score's length in days and the threshold from which a reading is flagged."""

    days: int
    threshold: float


class Result(NamedTuple):
    """How many labelled windows were found, and how many days had alarms outside them."""

    found: int
    false_days: int

    def quality(self, windows: int) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.found / (self.found + self.false_days + windows)


Scores = dict[int, list[tuple[int, float]]]
"""By length: (time, size of the score) of the readings that are judged."""


def show_anomalies(session: SparkSession) -> None:
    """One line for each recording and score; nothing to judge by without SKEP_RECORDINGS."""
    folder = os.environ.get("SKEP_RECORDINGS")
    if not folder:
        print("anomalies  skipped: SKEP_RECORDINGS names no folder of recordings")
        return
    labels = {Path(name).name: spans for name, spans in json.loads((Path(folder) / "windows.json").read_text()).items()}
    found = [_recording(session, name, rows, labels[name]) for name, rows in recordings().items()]
    for score in LENGTHS:
        scores = {one.name: {days: _scores(one, score, days) for days in LENGTHS[score]} for one in found}
        for judged in found:
            others = [one for one in found if one is not judged]
            choice = _best(others, scores)
            result = _judged(judged, scores[judged.name], choice)
            print(
                f"anomalies  {judged.name} by {score}, {choice.days} days, threshold {choice.threshold:g}"
                f" (chosen on {', '.join(one.name for one in others)}):"
                f" {result.found} of {len(judged.spans)} windows, {result.false_days} days of false alarms"
            )


def _recording(
    session: SparkSession, name: str, readings: Sequence[Reading], labels: Sequence[Sequence[str]]
) -> Recording:
    rows = [
        (number, f"dtw:nab:{name}", "value", "property", datetime.fromtimestamp(at / 1e6, UTC), value, "bench")
        for number, (at, value) in enumerate(readings, 1)
    ]
    frame = session.createDataFrame(rows, StructType([READINGS[column] for column in COLUMNS]))
    day_rows = round(DAY_US / max(readings[1][0] - readings[0][0], 1))
    spans = [(_micros(first), _micros(last)) for first, last in labels]
    return Recording(name.split("_")[0], frame, day_rows, len(readings) // 8, spans)


def _scores(recording: Recording, score: str, days: int) -> list[tuple[int, float]]:
    if score == "z":
        scored = z_scores(recording.frame, days * recording.day_rows)
    else:
        scored = mad_scores(recording.frame, days * 86_400)
    judged = scored.where((F.col("row_id") > recording.judged_after) & F.col("score").isNotNull())
    columns = (F.unix_micros("at").alias("at"), F.abs("score").alias("size"))
    return [(row.at, row.size) for row in judged.select(*columns).collect()]


def _best(recordings: Sequence[Recording], scores: dict[str, Scores]) -> Choice:
    """What does best on these recordings; of equals the middle one, which keeps most distance to both sides."""

    def worth(choice: Choice) -> float:
        return sum(_judged(one, scores[one.name], choice).quality(len(one.spans)) for one in recordings)

    lengths = next(iter(scores.values()))
    worths = {(choice := Choice(days, one)): worth(choice) for days in lengths for one in THRESHOLDS}
    best = [choice for choice, found in worths.items() if found == max(worths.values())]
    return best[len(best) // 2]


def _judged(recording: Recording, scores: Scores, choice: Choice) -> Result:
    flags = [at for at, size in scores[choice.days] if size >= choice.threshold]
    found = sum(any(first <= at <= last for at in flags) for first, last in recording.spans)
    false_days = {at // DAY_US for at in flags if not any(first <= at <= last for first, last in recording.spans)}
    return Result(found, len(false_days))


def _micros(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)
