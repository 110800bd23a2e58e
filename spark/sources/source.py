"""The data source `skep`, in pure Python: out of a lake or a running gateway, in batches or streams, and back into one.

Options for reading: `lake` (folder or URL), or `url` with `token` and `ca`; `things`, `names`, `kinds`, `gateways`
(comma separated), `days` (`2026-01-01,2026-01-31`), `model`; for streams `maxRowsPerBatch`, and `ranges` for where the
rows of a batch are instead of the rows: `spark.lake.readings` then reads them faster. For writing see
`spark.sources.publishing`. Spark gives a Python source no column pruning, so select by options.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as pads
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark import schemas
from spark.sources.files import LakeFiles, Selection
from spark.sources.live import LiveGateway
from spark.sources.models import Model, model_of, wide
from spark.sources.publishing import Publisher
from things.errors import Invalid
from things.lake import Part

# fmt: off
KNOWN = frozenset({
    "lake", "url", "token", "ca", "things", "names", "kinds", "gateways", "days", "model", "maxrowsperbatch", "ranges",
})
# fmt: on
"""Options for reading, in lower case, as Spark may hand them over."""
RANGES = StructType(
    [StructField("gateway", StringType()), *(StructField(end, LongType()) for end in ("first", "last"))]
)
"""What a stream of ranges gives: row ids, both ends included."""
TASK_ROWS = 250_000
"""Rows that one task reads, unless one file has more."""


def register(session: SparkSession) -> None:
    """Make `format("skep")` known to a session."""
    session.dataSource.register(SkepSource)


class SkepSource(DataSource):
    """Readings as `spark.schemas.READINGS`, the wide table of a model, or a stream of `RANGES`."""

    @classmethod
    def name(cls) -> str:
        return "skep"

    def schema(self) -> StructType:
        return _Selection.of(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return _BatchReader(_Selection.of(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return _StreamReader(_Selection.of(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise Invalid("what was published stays; use mode append")
        return Publisher(dict(self.options), schema)


class _Selection(NamedTuple):
    """The options, checked; small enough to travel to every task."""

    lake: str | None
    url: str | None
    token: str
    ca: str | None
    selection: Selection
    model: str | None
    max_rows: int | None
    ranges: bool

    @staticmethod
    def of(options: Mapping[str, str]) -> "_Selection":
        given = {key.lower(): value for key, value in dict(options).items()}
        unknown = set(given) - KNOWN
        if unknown:
            raise Invalid(f"format skep has no option {', '.join(sorted(unknown))}")
        lake, url = given.get("lake"), given.get("url")
        if (lake is None) == (url is None):
            raise Invalid("say where to read: option lake, or options url and token")
        days = _listed(given.get("days"))
        if len(days) not in (0, 1, 2):
            raise Invalid("option days is one day, or the first and the last")
        rows = given.get("maxrowsperbatch")
        if rows is not None and (not rows.isdigit() or int(rows) < 1):
            raise Invalid("option maxRowsPerBatch is a number, at least 1")
        ranges = given.get("ranges", "false")
        if ranges not in ("true", "false"):
            raise Invalid("option ranges is true or false")
        selection = Selection(
            things=_listed(given.get("things")),
            names=_listed(given.get("names")),
            kinds=_listed(given.get("kinds")),
            gateways=_listed(given.get("gateways")),
            days=(days[0], days[-1]) if days else None,
        )
        return _Selection(
            lake,
            url,
            given.get("token", ""),
            given.get("ca"),
            selection,
            given.get("model"),
            int(rows) if rows else None,
            ranges == "true",
        )

    def schema(self) -> StructType:
        if self.ranges:
            return RANGES
        return schemas.READINGS if self.model is None else self.opened_model().schema()

    def opened_model(self) -> Model:
        found = self.gateway().descriptions() if self.url else self.files().descriptions(self.selection.gateways)
        return model_of(self.model or "", found)

    def files(self) -> LakeFiles:
        return LakeFiles(self.lake or "")

    def gateway(self) -> LiveGateway:
        return LiveGateway(self.url or "", self.token, ca=self.ca)


class _Files(InputPartition):
    """Files that one task reads, and which of their rows."""

    def __init__(self, parts: Sequence[Part], first: int = 0, last: int = 2**63 - 1) -> None:
        self.parts, self.first, self.last = tuple(parts), first, last


class _Rows(InputPartition):
    """Rows of a gateway that one task fetches: above `first`, up to `last`."""

    def __init__(self, first: int = 0, last: int | None = None) -> None:
        self.first, self.last = first, last


class _Ranges(InputPartition):
    """Which rows there are, and not the rows."""

    def __init__(self, rows: Sequence[tuple[str, int, int]]) -> None:
        self.rows = tuple(rows)


class _BatchReader(DataSourceReader):
    def __init__(self, asked: _Selection) -> None:
        if asked.ranges:
            raise Invalid("ranges are those of a stream's batches; a batch reads rows")
        self.asked = asked
        self.model = None if asked.model is None else asked.opened_model()

    def partitions(self) -> Sequence[InputPartition]:
        if self.asked.url:
            return [_Rows()]
        selection = self.asked.selection
        parts = [
            part
            for snapshot in self.asked.files().snapshots(selection.gateways)
            for part in snapshot.parts
            if selection.takes(part)
        ]
        if self.model is None:
            return [_Files(group) for group in _packed(parts)]
        # Values of one Thing at one time may lie in several files, but never of several days.
        days: dict[tuple[str, str], list[Part]] = {}
        for part in parts:
            days.setdefault((part.gateway, part.day), []).append(part)
        return [_Files(found) for found in days.values()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        found = _read(self.asked, partition)
        return found if self.model is None else wide(found, self.model)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are row ids by gateway: the same two offsets always name the same rows, also after a compaction."""

    def __init__(self, asked: _Selection) -> None:
        if asked.model is not None:
            raise Invalid("a stream has no wide table: values of one time may come in different batches")
        if asked.ranges and (asked.url or asked.selection != Selection(gateways=asked.selection.gateways)):
            raise Invalid("ranges are those of a lake, of all rows; select when reading them")
        self.asked = asked
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self.asked.max_rows is None else ReadMaxRows(self.asked.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._newest({}, None)

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        return self._newest({}, None) if self.asked.lake else None

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return self._newest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        if self.asked.ranges:
            before = {gateway: start.get(gateway, 0) for gateway in end}
            return [_Ranges([(one, before[one] + 1, last) for one, last in end.items() if last > before[one]])]
        if self.asked.url:
            first, last = start.get("", 0), end.get("", 0)
            return [_Rows(first, last)] if last > first else []
        found: list[InputPartition] = []
        for snapshot in self._snapshots():
            first, last = start.get(snapshot.gateway, 0) + 1, end.get(snapshot.gateway, 0)
            takes = self.asked.selection.takes
            parts = [part for part in snapshot.parts if takes(part) and part.first <= last and part.last >= first]
            found.extend(_Files(group, first, last) for group in _packed(parts))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self.asked, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to forget: the lake keeps its rows."""

    def _newest(self, start: Mapping[str, int], most: int | None) -> dict[str, int]:
        """The offset to read up to from `start`: at most `most` rows on, never past the target."""
        target = self._target
        if self.asked.url:
            reached = self.asked.gateway().last_row(self.asked.selection, start.get("", 0), most)
            return {"": reached if target is None else min(reached, max(target.get("", 0), start.get("", 0)))}
        waiting: dict[str, tuple[int, int]] = {}
        for snapshot in self._snapshots():
            before = start.get(snapshot.gateway, 0)
            end = snapshot.sealed if target is None else min(snapshot.sealed, target.get(snapshot.gateway, 0))
            # Row ids may skip a stretch (after a restore); room counts from where rows go on.
            ahead = [part.first for part in snapshot.parts if part.last > before and part.table == "readings"]
            goes_on = max(before, min(ahead, default=before + 1) - 1)
            if end > before:
                waiting[snapshot.gateway] = goes_on, end
        rows = {gateway: max(0, end - goes_on) for gateway, (goes_on, end) in waiting.items()}
        room = rows if most is None else shared(rows, most)
        ends = {gateway: min(end, goes_on + room[gateway]) for gateway, (goes_on, end) in waiting.items()}
        return {**start, **{gateway: end for gateway, end in ends.items() if end > start.get(gateway, 0)}}

    def _snapshots(self) -> Sequence[Any]:
        return self.asked.files().snapshots(self.asked.selection.gateways)


def _read(asked: _Selection, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _Ranges):
        columns = list(zip(*partition.rows, strict=True)) or [(), (), ()]
        schema = pa.schema([("gateway", pa.string()), ("first", pa.int64()), ("last", pa.int64())])
        yield pa.record_batch(
            [pa.array(list(one), field.type) for one, field in zip(columns, schema, strict=True)], schema
        )
        return
    if isinstance(partition, _Rows):
        names = schemas.READINGS.fieldNames()
        for batch in asked.gateway().batches(asked.selection, after=partition.first, last=partition.last):
            yield batch.select(names)
        return
    assert isinstance(partition, _Files)
    rows = (pads.field("row_id") >= partition.first) & (pads.field("row_id") <= partition.last)
    yield from asked.files().batches(partition.parts, asked.selection.expression() & rows)


def _packed(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Files in groups that are worth a task each: starting one costs as much as reading many small files."""
    group: list[Part] = []
    rows = 0
    for part in parts:
        if group and rows + part.rows > TASK_ROWS:
            yield group
            group, rows = [], 0
        group.append(part)
        rows += part.rows
    if group:
        yield group


def shared(waiting: Mapping[str, int], room: int) -> dict[str, int]:
    """So many rows of each gateway, `room` in all: evenly, what one does not need for the others, and what cannot be
    divided for those with most."""
    shares = {}
    left = len(waiting)
    for gateway, rows in sorted(waiting.items(), key=lambda item: (item[1], item[0])):
        shares[gateway] = min(rows, room // left)
        room -= shares[gateway]
        left -= 1
    return shares


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip()) if text else ()
