"""What the lake will weigh: today's rows and bytes, how fast they grow, and where retention lets them settle."""

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from things.lake import READINGS, day_of
from twin.lake.manifest import Manifest
from twin.lake.retention import RetentionRule
from twin.lake.rows import HotRows

RECENT_DAYS = 7
"""Days that tell how fast readings come."""
BYTES_PER_ROW = 8.5
"""Assumed before anything was sealed."""


class Plan(NamedTuple):
    """`*_in_a_year` counts what the rules keep by then; `settles_bytes` is None when nothing bounds growth."""

    rows: int
    bytes: int
    bytes_per_row: float
    days: int
    hot_rows: int
    rows_per_day: float
    bytes_per_day: float
    rows_in_a_year: int
    bytes_in_a_year: int
    settles_bytes: int | None


def plan(manifest: Manifest, hot: HotRows, rules: Sequence[RetentionRule] = ()) -> Plan:
    """Predict by the readings received in the last days; only a rule for everything bounds the whole."""
    snapshot = manifest.snapshot()
    parts = [part for part in snapshot.parts if part.table == READINGS]
    sizes = {file.path: file.size for file in manifest.place.walk(f"{READINGS}/gateway={manifest.gateway}")}
    rows = sum(part.rows for part in parts)
    size = sum(sizes.get(part.path, 0) for part in parts)
    per_row = size / rows if rows else BYTES_PER_ROW
    hot_rows = max(hot.last() - snapshot.sealed, 0)

    today = date.fromisoformat(day_of(manifest.now()))
    by_day: dict[str, int] = {}
    for part in parts:
        by_day[part.day] = by_day.get(part.day, 0) + part.rows
    recent = {day: count for day, count in by_day.items() if 0 <= (today - date.fromisoformat(day)).days < RECENT_DAYS}
    seen = max(((today - date.fromisoformat(day)).days + 1 for day in recent), default=1)
    per_day = (sum(recent.values()) + hot_rows) / seen

    general = next((rule for rule in rules if rule.is_general), RetentionRule())
    kept_days = 365 if general.days is None else min(365, general.days + 1)
    year_rows = (rows + per_day * 365) if general.days is None else per_day * kept_days
    year_bytes = year_rows * per_row
    settles: float | None = None if general.days is None else per_day * (general.days + 1) * per_row
    if general.bytes is not None:
        year_bytes = min(year_bytes, general.bytes)
        year_rows = year_bytes / per_row
        settles = general.bytes if settles is None else min(settles, general.bytes)
    return Plan(
        rows=rows,
        bytes=size,
        bytes_per_row=per_row,
        days=len(by_day),
        hot_rows=hot_rows,
        rows_per_day=per_day,
        bytes_per_day=per_day * per_row,
        rows_in_a_year=round(year_rows),
        bytes_in_a_year=round(year_bytes),
        settles_bytes=None if settles is None else round(settles),
    )
