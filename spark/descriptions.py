"""What jobs take from Thing Descriptions: expected intervals of series, by JSON text of the description."""

from collections.abc import Iterator

from pydantic_core import from_json
from pyspark.sql.types import LongType, StringType, StructField, StructType

from things.durations import td_seconds
from things.errors import Invalid

INTERVAL = "skep:interval"
INTERVALS = StructType(
    [
        StructField("gateway", StringType()),
        StructField("thing_id", StringType()),
        StructField("kind", StringType()),
        StructField("name", StringType()),
        StructField("interval_us", LongType()),
    ]
)


def declared_intervals(td: str) -> Iterator[tuple[str, str, int]]:
    """(kind, name, µs) for every series with an interval of its own, or of its whole Thing. What cannot be read as a
    duration declares none."""
    document = from_json(td)
    if not isinstance(document, dict):
        return
    whole = document.get(INTERVAL)
    for kind, plural in (("property", "properties"), ("event", "events")):
        affordances = document.get(plural)
        for name, definition in affordances.items() if isinstance(affordances, dict) else ():
            own = definition.get(INTERVAL, whole) if isinstance(definition, dict) else whole
            try:
                interval_us = round(td_seconds(own) * 1_000_000) if own is not None else 0
            except Invalid:
                continue
            if interval_us > 0:
                yield kind, name, interval_us
