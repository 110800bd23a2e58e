"""Readings summed up by windows of time: count, and for numbers mean, least, greatest, sum, first and last."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from things.times import parse_time, rfc3339

AGGREGATES = frozenset({"avg", "min", "max", "count", "sum", "first", "last"})


@dataclass(slots=True)
class _Sum:
    """What one window holds of one series; numbers only count for what can be calculated."""

    count: int = 0
    numbers: int = 0
    total: float = 0.0
    least: float | None = None
    greatest: float | None = None
    first: Any = None
    last: Any = None

    def take(self, value: Any) -> None:
        if not self.count:
            self.first = value
        self.last = value
        self.count += 1
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        self.numbers += 1
        self.total += value
        self.least = value if self.least is None else min(self.least, value)
        self.greatest = value if self.greatest is None else max(self.greatest, value)

    def values(self) -> dict[str, Any]:
        return {
            "avg": self.total / self.numbers if self.numbers else None,
            "min": self.least,
            "max": self.greatest,
            "count": self.count,
            "sum": self.total if self.numbers else None,
            "first": self.first,
            "last": self.last,
        }


class Windows:
    """Sums by series and window; windows begin at whole multiples of their length since 1970."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._sums: dict[tuple[str, str, int], _Sum] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def take(self, items: Iterable[dict[str, Any]]) -> None:
        """Add history items, in order of time."""
        for item in items:
            begin = parse_time(item["created"]) // self._window_us * self._window_us
            key = (item["kind"], item["name"], begin)
            sum_ = self._sums.get(key)
            if sum_ is None:
                sum_ = self._sums[key] = _Sum()
            sum_.take(item["value"])

    def documents(self, asked: Sequence[str]) -> list[dict[str, Any]]:
        """One document for each window that holds something, by kind, name and time."""
        found = []
        for (kind, name, begin), sum_ in sorted(self._sums.items()):
            values = sum_.values()
            window = {"kind": kind, "name": name, "from": rfc3339(begin), "to": rfc3339(begin + self._window_us)}
            found.append(window | {one: values[one] for one in asked})
        return found
