"""Readings summed up by series and window of time, in plain Python: what the lake's process does at scale.

Windows begin at whole multiples of their length since 1970. Every reading counts; mean, least, greatest and sum are of
those that are numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from things.records import Row

AGGREGATES = ("avg", "min", "max", "count", "sum", "first", "last")

NICE_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
"""Lengths of windows that people expect on an axis."""


@dataclass(slots=True)
class _Sum:
    """What one window holds of one series."""

    count: int = 0
    numbers: int = 0
    total: float = 0.0
    least: float | None = None
    greatest: float | None = None
    first: str = "null"
    last: str = "null"

    def take(self, text: bytes) -> None:
        value = from_json(text)
        self.last = text.decode()
        if not self.count:
            self.first = self.last
        self.count += 1
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        number = float(value)
        self.numbers += 1
        self.total += number
        self.least = number if self.least is None else min(self.least, number)
        self.greatest = number if self.greatest is None else max(self.greatest, number)


class Windows:
    """Sums by series and window."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._sums: dict[tuple[str, str, str, int], _Sum] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def take(self, rows: Iterable[Row]) -> None:
        """Add rows, in order of time."""
        for row in rows:
            begin = row.created // self._window_us * self._window_us
            key = (row.thing_id, row.kind, row.name, begin)
            sum_ = self._sums.get(key)
            if sum_ is None:
                sum_ = self._sums[key] = _Sum()
            sum_.take(row.value)

    def found(self, limit: int) -> Sequence[Mapping[str, Any]]:
        """One mapping for each window that holds something, by series and time."""
        return [
            {
                "thing_id": thing_id,
                "kind": kind,
                "name": name,
                "begin": begin,
                "count": one.count,
                "avg": one.total / one.numbers if one.numbers else None,
                "min": one.least,
                "max": one.greatest,
                "sum": one.total if one.numbers else None,
                "first": one.first,
                "last": one.last,
            }
            for (thing_id, kind, name, begin), one in sorted(self._sums.items(), key=lambda item: item[0])[:limit]
        ]


def nice_window_us(span_us: int, points: int) -> int:
    """The shortest agreeable window (µs) of which at most `points` begin in a span of time."""
    least_s = span_us / max(points - 1, 1) / 1_000_000
    for seconds in NICE_S:
        if seconds >= least_s:
            return seconds * 1_000_000
    return -int(-least_s // 86_400) * 86_400 * 1_000_000
