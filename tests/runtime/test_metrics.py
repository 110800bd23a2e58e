"""Counters as Prometheus reads them."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics
from things.delivery import State
from things.messages import Operation


class Once:
    """A collector of one set of counters."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return list(self._metrics.families())


def test_every_counter_is_read_back_with_its_labels() -> None:
    metrics = Metrics(delivered=3, duplicates=1)
    metrics.handled[Operation.PUBLISH_EVENT, "mqtt"] += 2
    metrics.refused[Operation.INVOKE_ACTION, "http", "forbidden"] += 1
    metrics.sessions["mqtt"] += 1
    metrics.requests[State.COMPLETED] += 4
    metrics.dropped["http", "event", "queue-full"] += 5
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once(metrics))

    families = list(text_string_to_metric_families(generate_latest(registry).decode()))

    found = {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    assert all(family.documentation for family in families)
    assert found["skep_delivered_total", frozenset()] == 3
    assert found["skep_duplicates_total", frozenset()] == 1
    assert found["skep_sessions", frozenset({"mqtt"})] == 1
    assert found["skep_refused_total", frozenset({"invoke_action", "http", "forbidden"})] == 1
    assert found["skep_dropped_total", frozenset({"http", "event", "queue-full"})] == 5
    assert found["skep_request_transitions_total", frozenset({"completed"})] == 4
