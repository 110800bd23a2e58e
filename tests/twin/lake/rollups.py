"""Roll-ups in plain Python, written from their definition: what the fast ones are compared with."""

import json
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from twin.lake.rows import HotRow


def plain_rollups(rows: Sequence[HotRow], window: int) -> list[dict[str, Any]]:
    """Roll-ups of numeric rows by (Thing, name, kind), `window` and times in µs."""
    series: dict[tuple[str, str, str], list[tuple[int, int, float]]] = {}
    for row in rows:
        value = json.loads(row.value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            series.setdefault((row.thing_id, row.name, row.kind), []).append((row.created, row.row_id, float(value)))
    return [line for key in sorted(series) for line in _of_series(key, sorted(series[key]), window)]


def _of_series(key: tuple[str, str, str], readings: list[tuple[int, int, float]], window: int) -> list[dict[str, Any]]:
    gaps = [after[0] - before[0] for before, after in pairwise(readings)]
    interval = median(gaps) if gaps else 0
    lines = []
    for start in sorted({at - at % window for at, _, _ in readings}):
        inside = [(at, value) for at, _, value in readings if start <= at < start + window]
        before = [value for at, _, value in readings if at < start]
        steps = [(start, before[-1]), *inside] if before else inside
        ends = [at for at, _ in steps[1:]] + [start + window]
        weights = [(end - at, value) for (at, value), end in zip(steps, ends, strict=True)]
        values = [value for _, value in inside]
        lines.append(
            {
                "thing_id": key[0],
                "name": key[1],
                "window_start": start,
                "count": len(values),
                "sum": sum(values),
                "sum_sq": sum(value * value for value in values),
                "min": min(values),
                "max": max(values),
                "first": values[0],
                "last": values[-1],
                "mean_tw": sum(weight * value for weight, value in weights) / sum(weight for weight, _ in weights),
                "completeness": len(values) * interval / window if interval else None,
                "kind": key[2],
            }
        )
    return lines
