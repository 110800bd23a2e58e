"""Results published back: rows become events of a virtual Thing that belongs to the job's service account.

Every message id is made of the row itself, so a task that Spark tries again publishes nothing twice. Options beside
`url`, `token` and `ca`: `thing` (the Thing's own id), `name` of the event (default `row`), `title`, `derivedFrom` (ids
of the Things it was computed of, comma separated), and `created`, the column that says when a row is about (else the
time of writing, and repeats are not recognised).
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any

from pydantic_core import to_json
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampType,
)

from spark.sources.live import LiveGateway
from things.errors import Invalid, Rejected
from things.names import checked_thing
from things.vocabulary import Term

BATCH = 1_000


class Published(WriterCommitMessage):
    """What one task published."""

    def __init__(self, stored: int, duplicates: int) -> None:
        self.stored, self.duplicates = stored, duplicates


class Publisher(DataSourceWriter):
    """Publishes one table. The Thing Description goes first, once, from the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        given = {key.lower(): value for key, value in options.items()}
        for needed in ("url", "token", "thing"):
            if not given.get(needed):
                raise Invalid(f"publishing needs the option {needed}")
        self.url, self.token, self.ca = given["url"], given["token"], given.get("ca")
        self.thing = checked_thing(given["thing"])
        self.event = given.get("name", "row")
        self.created = given.get("created")
        self.schema = schema
        if self.created is not None and self.created not in schema.fieldNames():
            raise Invalid(f"there is no column {self.created!r} to take the time from")
        self.sources = [one.strip() for one in given.get("derivedfrom", "").split(",") if one.strip()]
        title = given.get("title", self.thing)
        LiveGateway(self.url, self.token, ca=self.ca).put_thing(self.thing, self._description(title))

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        gateway = LiveGateway(self.url, self.token, ca=self.ca)
        stored = duplicates = 0
        waiting: list[dict[str, Any]] = []
        for row in iterator:
            waiting.append(self._envelope(row.asDict(recursive=True)))
            if len(waiting) == BATCH:
                stored, duplicates = _added(stored, duplicates, gateway.publish(waiting))
                waiting = []
        if waiting:
            stored, duplicates = _added(stored, duplicates, gateway.publish(waiting))
        return Published(stored, duplicates)

    def _envelope(self, row: dict[str, Any]) -> dict[str, Any]:
        data = {name: _plain(value) for name, value in row.items()}
        content = to_json([self.thing, self.event, data], inf_nan_mode="null")
        created = _plain(row[self.created]) if self.created is not None else None
        return {
            "v": 1,
            "operation": "publish_event",
            "thingID": self.thing,
            "name": self.event,
            "data": data,
            "messageID": sha256(content).hexdigest()[:32],
            **({"created": created} if created is not None else {}),
        }

    def _description(self, title: str) -> dict[str, Any]:
        members = {field.name: _json_schema(field.dataType) for field in self.schema.fields}
        return {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
            "@type": "skep:Table",
            "title": title,
            **({Term.DERIVED_FROM.value: self.sources} if self.sources else {}),
            "events": {self.event: {"data": {"type": "object", "properties": members}}},
        }


def _added(stored: int, duplicates: int, report: Mapping[str, Any]) -> tuple[int, int]:
    if report["rejected"]:
        first = report["rejected"][0]
        raise Rejected(f"{len(report['rejected'])} rows were refused, the first as {first['code']}")
    return stored + report["stored"], duplicates + report["duplicates"]


def _plain(value: Any) -> Any:
    """A value as JSON has it. Spark hands out naive times in the zone of the session's Python."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and value != value:
        return None
    return value


def _json_schema(kind: DataType) -> dict[str, Any]:
    """What a column may hold; null, which any column may, has no type of its own in a Thing Description."""
    for spark_type, name in (
        (BooleanType, "boolean"),
        (IntegralType, "integer"),
        (DoubleType, "number"),
        (FloatType, "number"),
        (StringType, "string"),
    ):
        if isinstance(kind, spark_type):
            return {"oneOf": [{"type": name}, {"type": "null"}]}
    if isinstance(kind, TimestampType):
        return {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}
    if isinstance(kind, DateType):
        return {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
    return {}
