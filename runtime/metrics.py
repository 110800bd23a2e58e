"""The runtime's own counters; plain integers, since each is touched for every message.

What is asked for by Prometheus is made of them when it asks: families as its client library writes them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from things.delivery import State
from things.latencies import LONG, Latencies
from things.messages import Operation

Door = tuple[Operation, str]
"""Operation and binding."""
L = TypeVar("L", bound=tuple[str, ...])
Labels = tuple[str, ...]
"""Their values, in the order of their names."""


@dataclass(slots=True)
class Metrics:
    """Counts since start."""

    handled: Counter[Door] = field(default_factory=Counter)
    refused: Counter[tuple[Operation, str, str]] = field(default_factory=Counter)
    """By operation, binding and error code."""
    sessions: Counter[str] = field(default_factory=Counter)
    """Open now, by binding."""
    requests: Counter[State] = field(default_factory=Counter)
    """Ledger transitions by state reached."""
    request_s: Latencies = field(default_factory=lambda: Latencies(LONG))
    """From a request's acceptance to its end."""
    delivered: int = 0
    """Publications handed to sessions."""
    dropped: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Deliveries given up, by binding, kind and reason."""
    duplicates: int = 0
    lost_undurable: int = 0
    """Publications without guarantee that could not be stored."""

    def families(self) -> Iterator[Metric]:
        """For Prometheus."""
        yield labelled(
            "skep_messages_total",
            "Messages handled, by operation and binding.",
            ("operation", "binding"),
            {(str(operation), binding): count for (operation, binding), count in self.handled.items()},
        )
        yield labelled(
            "skep_refused_total",
            "Messages refused, by operation, binding and error code.",
            ("operation", "binding", "code"),
            {(str(operation), binding, code): count for (operation, binding, code), count in self.refused.items()},
        )
        yield labelled(
            "skep_sessions",
            "Sessions open now, by binding.",
            ("binding",),
            {(binding,): count for binding, count in self.sessions.items()},
        )
        yield labelled(
            "skep_request_transitions_total",
            "Steps of actions and property writes, by state reached.",
            ("state",),
            {(str(state),): count for state, count in self.requests.items()},
        )
        yield histogram(
            "skep_request_seconds", "From the acceptance of a request to its end.", (), {(): self.request_s}
        )
        yield counter("skep_delivered_total", "Publications handed to sessions.", self.delivered)
        yield labelled(
            "skep_dropped_total",
            "Deliveries given up on their way to a client, by binding, kind and reason.",
            ("binding", "kind", "reason"),
            self.dropped,
        )
        yield counter("skep_duplicates_total", "Publications recognised as repeated.", self.duplicates)
        yield counter(
            "skep_lost_undurable_total",
            "Publications without guarantee that could not be stored.",
            self.lost_undurable,
        )


def counter(name: str, text: str, value: float) -> Metric:
    """A number that only grows; its name ends with `_total`."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """A number that goes up and down."""
    return GaugeMetricFamily(name, text, value=value)


def labelled(name: str, text: str, labels: Iterable[str], values: Mapping[L, float]) -> Metric:
    """Numbers by their labels' values: counts if the name ends with `_total`."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, text, labels=tuple(labels))
    for key in sorted(values):
        family.add_metric(key, values[key])
    return family


def histogram(name: str, text: str, labels: Iterable[str], values: Mapping[Labels, Latencies]) -> Metric:
    """Durations in seconds by their labels' values."""
    family = HistogramMetricFamily(name, text, labels=tuple(labels))
    for key, latencies in sorted(values.items()):
        family.add_metric(key, buckets=latencies.buckets(), sum_value=latencies.sum_s)
    return family
