"""The lake's contract as plain data: columns, where a value lands, quality flags, and what a manifest commit says.

The writer (`twin/lake`) and the Spark schemas (`spark/schemas.py`) are both built from here, so that they cannot drift
apart. Columns are only ever added; `SCHEMA_VERSION` rises when a reader of the older version would misread a file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntFlag, StrEnum
from math import isfinite
from typing import Any, NamedTuple

from things.addresses import TwinID, is_twin
from things.errors import BadAddress, NewerSchema, StorageDamaged
from things.jsontext import encode
from things.messages import JSONValue

SCHEMA_VERSION = 1
SCHEMA_KEY = "skep.schema"
"""Under this name the version stands in every manifest commit and in the metadata of every Parquet file."""
GATEWAY_KEY = "skep.gateway"
"""Under this name stands in the metadata of files, and of history as Arrow, whose rows they are."""

READINGS = "readings"
THINGS = "things"
PRESENCE = "presence"
REQUESTS = "requests"
ROLLUPS = "rollups"
SET_ASIDE = "setaside"
"""Rows of readings that no column can hold, each with the reason."""
MANIFEST = "_manifest"

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TIME_MIN, TIME_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last µs of the years 1 to 9999: what RFC 3339, Python and SQL can write down."""


class ColumnType(StrEnum):
    """The few types a lake column may have; `timestamp` is µs UTC."""

    LONG = "long"
    INT = "int"
    DOUBLE = "double"
    BOOL = "bool"
    STRING = "string"
    TIMESTAMP = "timestamp"


class Column(NamedTuple):
    """One column; `required` ones are never null."""

    name: str
    type: ColumnType
    required: bool = False


class Quality(IntFlag):
    """What is doubtful about a reading; 0 is a good one. Bits are only ever added."""

    NOT_IN_TD = 1
    """The Thing Description has no such property or event."""
    TYPE = 2
    """The JSON type is not the one the Thing Description declares."""
    RANGE = 4
    """Outside the declared minimum, maximum or enumeration."""
    UNIT = 8
    """The unit that came with the value is not the declared one."""
    STUCK_CLOCK = 16
    """The source repeats the same time."""
    FLATLINE = 32
    """The value has not changed for suspiciously long."""
    MISSING = 64
    """Readings are missing before this one."""
    FUTURE = 128
    """The source's time lay too far ahead; `created` is when it was received, `source_time` keeps the claim."""
    LATE = 256
    """Older than a reading of the same series that was received before."""
    HUGE = 512
    """A number no column holds: its text is in `value_string`."""
    UNREADABLE = 1024
    """Not JSON; the text is in `value_string` as it was found."""
    CLOCK = 2048
    """Stamped while the clock of the gateway was known to be wrong."""
    RESTAMPED = 4096
    """The gateway's own times were set right later; `source_time` keeps what `created` was."""


# fmt: off
READINGS_COLUMNS = (
    Column("row_id", ColumnType.LONG, True),
    Column("agent_id", ColumnType.STRING),
    Column("thing_id", ColumnType.STRING, True),
    Column("name", ColumnType.STRING, True),
    Column("kind", ColumnType.STRING, True),
    Column("created", ColumnType.TIMESTAMP, True),
    Column("received", ColumnType.TIMESTAMP, True),
    Column("value_double", ColumnType.DOUBLE),
    Column("value_long", ColumnType.LONG),
    Column("value_bool", ColumnType.BOOL),
    Column("value_string", ColumnType.STRING),
    Column("value_json", ColumnType.STRING),
    Column("unit", ColumnType.STRING),
    Column("quality", ColumnType.INT, True),
    Column("td_version", ColumnType.LONG, True),
    Column("source_time", ColumnType.TIMESTAMP),
)
THINGS_COLUMNS = (
    Column("thing_id", ColumnType.STRING, True),
    Column("agent_id", ColumnType.STRING),
    Column("td_version", ColumnType.LONG, True),
    Column("published", ColumnType.TIMESTAMP, True),
    Column("td", ColumnType.STRING, True),
)
PRESENCE_COLUMNS = (
    Column("agent_id", ColumnType.STRING, True),
    Column("online", ColumnType.BOOL, True),
    Column("at", ColumnType.TIMESTAMP, True),
)
REQUESTS_COLUMNS = (
    Column("request_id", ColumnType.STRING, True),
    Column("operation", ColumnType.STRING, True),
    Column("thing_id", ColumnType.STRING, True),
    Column("name", ColumnType.STRING, True),
    Column("caller", ColumnType.STRING, True),
    Column("state", ColumnType.STRING, True),
    Column("reason", ColumnType.STRING),
    Column("error", ColumnType.STRING),
    Column("created", ColumnType.TIMESTAMP, True),
    Column("updated", ColumnType.TIMESTAMP, True),
)
ROLLUPS_COLUMNS = (
    Column("thing_id", ColumnType.STRING, True),
    Column("name", ColumnType.STRING, True),
    Column("window_start", ColumnType.TIMESTAMP, True),
    Column("count", ColumnType.LONG, True),
    Column("sum", ColumnType.DOUBLE),
    Column("sum_sq", ColumnType.DOUBLE),
    Column("min", ColumnType.DOUBLE),
    Column("max", ColumnType.DOUBLE),
    Column("first", ColumnType.DOUBLE),
    Column("last", ColumnType.DOUBLE),
    Column("mean_tw", ColumnType.DOUBLE),
    Column("completeness", ColumnType.DOUBLE),
    Column("kind", ColumnType.STRING),  # null in files of before it was there
)
SET_ASIDE_COLUMNS = (
    Column("row_id", ColumnType.LONG, True),
    Column("thing_id", ColumnType.STRING, True),
    Column("name", ColumnType.STRING, True),
    Column("kind", ColumnType.STRING, True),
    Column("reason", ColumnType.STRING, True),
    Column("row", ColumnType.STRING, True),
)
# fmt: on
TABLES: Mapping[str, Sequence[Column]] = {
    READINGS: READINGS_COLUMNS,
    THINGS: THINGS_COLUMNS,
    PRESENCE: PRESENCE_COLUMNS,
    REQUESTS: REQUESTS_COLUMNS,
    ROLLUPS: ROLLUPS_COLUMNS,
    SET_ASIDE: SET_ASIDE_COLUMNS,
}
SORT_ORDER = ("thing_id", "name", "created", "row_id")
"""Of the rows in a file of readings: one series lies together, in time."""
VALUE_COLUMNS = ("value_double", "value_long", "value_bool", "value_string", "value_json")


_TYPE, _HUGE = int(Quality.TYPE), int(Quality.HUGE)


class Placed(NamedTuple):
    """A value spread over the value columns, and what is doubtful about it."""

    value_double: float | None = None
    value_long: int | None = None
    value_bool: bool | None = None
    value_string: str | None = None
    value_json: str | None = None
    quality: int = 0


def placed(value: JSONValue, declared: str | None = None) -> Placed:
    """Where `value` lands: by the `declared` JSON type of its data schema, else by its own.

    One column takes it; numbers are in `value_double` besides, so that one column holds every number. A value that is
    not of its declared type is kept under its own and flagged.
    """
    match value:
        case None:
            return Placed(value_json="null", quality=_mismatch(declared, "null"))
        case bool():
            return Placed(value_bool=value, quality=_mismatch(declared, "boolean"))
        case int():
            return _placed_int(value, declared)
        case float():
            return _placed_float(value, declared)
        case str():
            return Placed(value_string=value, quality=_mismatch(declared, "string"))
        case _:
            own = "array" if isinstance(value, list) else "object"
            return Placed(value_json=encode(value).decode(), quality=_mismatch(declared, own))


def agent_of(thing_id: str) -> str | None:
    """The agent that speaks for a twin; None for other directory entries."""
    if not is_twin(thing_id):
        return None
    try:
        return TwinID.parse(thing_id).account
    except BadAddress:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of a table; `path` is relative to the lake, `first` and `last` bound its row ids."""

    path: str
    rows: int
    sha256: str
    first: int
    last: int
    sums: str = ""
    """CRC-32 of its blocks (see `things.blocks`); empty for parts that were written before there were any."""

    @property
    def table(self) -> str:
        return self.path.partition("/")[0]

    @property
    def day(self) -> str:
        """`YYYY-MM-DD` for tables that are laid out by day, else empty."""
        for step in self.path.split("/"):
            if step.startswith("day="):
                return step[4:]
        return ""

    @property
    def gateway(self) -> str:
        for step in self.path.split("/"):
            if step.startswith("gateway="):
                return step[8:]
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One entry of a gateway's manifest: rows `first` to `last` are in `parts` from now on, `replaces` names the paths
    that are no longer part of any table. A commit that adds no rows has `first` = `last` + 1."""

    gateway: str
    seq: int
    first: int
    last: int
    parts: Sequence[Part] = ()
    replaces: Sequence[str] = ()
    at: int = 0
    """When it was made, µs UTC."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """How far the tables without row ids have come, by table, in the numbering of their writer."""
    before: str = ""
    """Digest of the commit before (see `things.manifest`), and in a checkpoint of the one it reaches to; empty in
    commits that were made before there were any."""


class Snapshot(NamedTuple):
    """What a gateway's manifest amounts to: the newest commit, the last sealed row, the live parts, and how far the
    tables without row ids have come."""

    gateway: str
    seq: int
    sealed: int
    parts: Sequence[Part]
    marks: Mapping[str, int]
    digest: str = ""
    """Of the newest commit; empty if there is none, or none that says."""


def part_document(part: Part) -> dict[str, Any]:
    """A part as commits name it."""
    return {
        "path": part.path,
        "rows": part.rows,
        "sha256": part.sha256,
        "first": part.first,
        "last": part.last,
        **({"sums": part.sums} if part.sums else {}),
    }


def part_of(document: Mapping[str, Any]) -> Part:
    """What `part_document` gives, read again. Raises KeyError, TypeError, ValueError."""
    return Part(
        path=_inside(document["path"]),
        rows=int(document["rows"]),
        sha256=str(document["sha256"]),
        first=int(document["first"]),
        last=int(document["last"]),
        sums=str(document.get("sums", "")),
    )


def commit_document(commit: Commit) -> dict[str, Any]:
    """A commit as it stands in the manifest."""
    return {
        SCHEMA_KEY: SCHEMA_VERSION,
        "gateway": commit.gateway,
        "seq": commit.seq,
        "first": commit.first,
        "last": commit.last,
        "at": commit.at,
        "parts": [part_document(part) for part in commit.parts],
        "replaces": list(commit.replaces),
        "marks": dict(commit.marks),
        **({"before": commit.before} if commit.before else {}),
    }


def commit_of(document: object, path: str) -> Commit:
    """The commit a manifest file holds; unknown members are ignored. Raises StorageDamaged, NewerSchema."""
    try:
        if not isinstance(document, dict):
            raise TypeError("not an object")
        version = document[SCHEMA_KEY]
        if not isinstance(version, int) or version > SCHEMA_VERSION:
            raise NewerSchema(path, version, SCHEMA_VERSION)
        return Commit(
            gateway=str(document["gateway"]),
            seq=int(document["seq"]),
            first=int(document["first"]),
            last=int(document["last"]),
            at=int(document.get("at", 0)),
            parts=tuple(part_of(part) for part in document["parts"]),
            replaces=tuple(str(item) for item in document["replaces"]),
            marks={str(table): int(mark) for table, mark in document.get("marks", {}).items()},
            before=str(document.get("before", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageDamaged(f"{path} is not a manifest commit: {error!r}") from error


def snapshot_of(gateway: str, commits: Iterable[Commit]) -> Snapshot:
    """Fold commits, in order of `seq`, into what is live. Raises StorageDamaged for a missing one: what it held is
    unknown, so nothing exact can be said of the lake."""
    live: dict[str, Part] = {}
    marks: dict[str, int] = {}
    seq = sealed = 0
    for commit in commits:
        if commit.gateway != gateway:
            raise StorageDamaged(f"the manifest of gateway {gateway!r} holds a commit of {commit.gateway!r}")
        if seq and commit.seq != seq + 1:
            raise StorageDamaged(f"the manifest of gateway {gateway!r} lacks commit {seq + 1}")
        seq = commit.seq
        for path in commit.replaces:
            live.pop(path, None)
        live.update((part.path, part) for part in commit.parts)
        marks.update(commit.marks)
        sealed = max(sealed, commit.last)
    return Snapshot(gateway, seq, sealed, tuple(live.values()), marks)


def day_of(micros: int) -> str:
    """The UTC day of a time, as the lake's folders are named."""
    # isoformat and not strftime, which writes the year 1 as "1".
    return datetime.fromtimestamp(micros // 1_000_000, UTC).date().isoformat()


def _placed_int(value: int, declared: str | None) -> Placed:
    quality = 0 if declared in (None, "integer", "number") else _TYPE
    if not INT64_MIN <= value <= INT64_MAX:
        try:
            return Placed(value_double=float(value), value_string=str(value), quality=quality | _HUGE)
        except OverflowError:
            return Placed(value_string=str(value), quality=quality | _HUGE)
    if declared == "number" and float(value) == value:
        return Placed(value_double=float(value), quality=quality)
    # Beyond 2^53 the nearest double is another number: the exact one is kept beside it.
    return Placed(value_double=float(value), value_long=value, quality=quality)


def _placed_float(value: float, declared: str | None) -> Placed:
    if not isfinite(value):
        return Placed(value_string=repr(value), quality=_HUGE)
    if declared == "integer":
        whole = value.is_integer() and INT64_MIN <= value <= INT64_MAX - 1024
        return Placed(
            value_double=value, value_long=int(value) if whole else None, quality=0 if whole else Quality.TYPE
        )
    return Placed(value_double=value, quality=_mismatch(declared, "number"))


def _mismatch(declared: str | None, own: str) -> int:
    return 0 if declared is None or declared == own else _TYPE


def _inside(path: object) -> str:
    if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/") or "\\" in path:
        raise ValueError(f"part {path!r} does not lie inside the lake")
    return path
