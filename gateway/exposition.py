"""What `/metrics` answers: everything that is measured, as OpenMetrics or in Prometheus' own text, as it was asked."""

import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

Families = Callable[[], Iterable[Metric]]


class Exposition(Collector):
    """Gathers families of metrics whenever they are asked for, beside those of the process itself."""

    def __init__(self, *sources: Families) -> None:
        self._sources = sources
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """One family after the other (`Collector`)."""
        yield InfoMetricFamily(
            "skep_build", "What runs here.", {"version": version("skep"), "python": platform.python_version()}
        )
        for families in self._sources:
            yield from families()

    def describe(self) -> list[Metric]:
        """Nothing is asked before the first time (`Collector`)."""
        return []

    def encoded(self, accept: str) -> tuple[bytes, str]:
        """The text and its media type, by the header Accept."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type
