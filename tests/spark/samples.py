"""Readings for transforms: made by hand, or from the recordings that SKEP_RECORDINGS names."""

import csv
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.schemas import READINGS
from tests.twin.lake.samples import NOON, SECOND, hot_row
from things.lake import agent_of, day_of, placed
from twin.lake.rows import HotRow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MACHINE = "machine_temperature_system_failure.csv"
AMBIENT = "ambient_temperature_system_failure.csv"


def at(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def after(seconds: float) -> datetime:
    """A time counted from NOON."""
    return at(NOON + round(seconds * SECOND))


def readings_of(spark: SparkSession, rows: Sequence[HotRow], gateway: str = "gw") -> DataFrame:
    """Rows as the lake gives them."""
    from pydantic_core import from_json

    found = []
    for row in rows:
        value = placed(from_json(row.value), row.value_type)
        given: dict[str, Any] = {
            **value._asdict(),
            "row_id": row.row_id,
            "agent_id": agent_of(row.thing_id),
            "thing_id": row.thing_id,
            "name": row.name,
            "kind": row.kind,
            "created": at(row.created),
            "received": at(row.received),
            "unit": row.unit,
            "quality": row.quality | value.quality,
            "td_version": row.td_version,
            "source_time": None if row.source_time is None else at(row.source_time),
            "gateway": gateway,
            "day": datetime.strptime(day_of(row.created), "%Y-%m-%d").date(),
        }
        found.append(tuple(given[name] for name in READINGS.fieldNames()))
    return spark.createDataFrame(found, READINGS)


def series(*points: tuple[float, object], name: str = "temperature", first: int = 1, **members: Any) -> list[HotRow]:
    """One series: (seconds after NOON, value)."""
    return [
        hot_row(first + index, value, name=name, created=NOON + round(second * SECOND), **members)
        for index, (second, value) in enumerate(points)
    ]


def collected(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The rows as plain tuples of these columns; times as aware datetimes."""
    return [tuple(_aware(row[name]) for name in names) for row in frame.collect()]


def recording(name: str) -> list[HotRow]:
    """A recording as rows in the order they were taken; skips visibly where it is not at hand."""
    folder = os.environ.get("SKEP_RECORDINGS")
    if not folder or not (Path(folder) / name).is_file():
        pytest.skip(f"SKEP_RECORDINGS names no folder with {name}")
    rows = []
    with (Path(folder) / name).open() as file:
        for row_id, line in enumerate(csv.DictReader(file), 1):
            created = round(
                (datetime.fromisoformat(line["timestamp"]).replace(tzinfo=UTC) - EPOCH) / timedelta(microseconds=1)
            )
            rows.append(hot_row(row_id, float(line["value"]), created=created, thing_id="dtw:nab:machine"))
    return rows


def _aware(value: Any) -> Any:
    # Spark hands out naive datetimes in the local zone.
    return value.astimezone(UTC) if isinstance(value, datetime) else value
