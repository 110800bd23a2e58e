"""How many requests wait for their agents, and for how long the oldest of them."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric

from runtime.metrics import gauge


@dataclass(slots=True)
class Queues:
    """The figures of one runtime; `keep` looks for the oldest, which takes a query."""

    waiting: Callable[[], int]
    oldest: Callable[[], Awaitable[int | None]]
    """When the oldest was made (µs UTC)."""
    steady: Callable[[], int]
    _oldest: int | None = None

    async def keep(self) -> None:
        """Look again. Raises StorageFailed."""
        self._oldest = await self.oldest()

    def metrics(self) -> Iterator[Metric]:
        """For Prometheus."""
        waiting = self.waiting()
        age_s = 0.0 if self._oldest is None or not waiting else max(0.0, (self.steady() - self._oldest) / 1e6)
        yield gauge("skep_requests_waiting", "Actions and property writes that wait for their agents.", waiting)
        yield gauge(
            "skep_requests_oldest_waiting_seconds",
            "How long the oldest of them has waited, looked at once a minute.",
            round(age_s),
        )
