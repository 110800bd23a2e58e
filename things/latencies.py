"""How long something took, as counts by upper bound: what a histogram of Prometheus is made of."""

from bisect import bisect_left
from collections.abc import Sequence

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds; for what somebody waits for."""
LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3_600.0, 86_400.0)
"""Seconds; for what may wait for a device."""


class Latencies:
    """Durations in seconds, counted. For one thread; others may read."""

    __slots__ = ("_bounds", "_counts", "sum_s")

    def __init__(self, bounds: Sequence[float] = SHORT) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Count one; a clock that went back makes it 0."""
        seconds = max(seconds, 0.0)
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Each upper bound with how many took at most so long; the last is `+Inf`, with all."""
        found, total = [], 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), tuple(self._counts), strict=True):
            total += count
            found.append((bound, float(total)))
        return found
