"""Metrics as tests look at them."""

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


def measured(families: Iterable[Metric]) -> dict[str, float]:
    """Samples by name, with their labels as in `name{label="value"}`."""
    found = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = float(sample.value)
    return found


def read(text: str) -> dict[str, float]:
    """The same of what /metrics answered in Prometheus' text format."""
    return measured(text_string_to_metric_families(text))
