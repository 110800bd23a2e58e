"""What a Thing said before: rows, or sums by windows of time, as typed records that become a data frame when asked."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from pydantic import JsonValue

from things.addresses import Kind
from things.durations import window_seconds
from things.errors import Invalid, Unavailable
from things.jsontext import encode
from things.times import from_datetime, parse_time, rfc3339, to_datetime

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from skep.http_client import HTTPClient

PAGE_ROWS = 5_000
AGGREGATES = ("avg", "min", "max", "count", "sum", "first", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One stored value or event. `created` is when it was so, `received` when the runtime had it."""

    row_id: int
    thing_id: str
    kind: Kind
    name: str
    value: JsonValue
    created: datetime
    received: datetime
    quality: int
    """What is doubtful about it, as bits of `things.lake.Quality`; 0 is good."""
    td_version: int
    source_time: datetime | None = None
    """The source's own time, where the runtime did not believe it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryWindow:
    """The values of one name from `start` up to `end`, summed up; what was not asked for is None."""

    kind: Kind
    name: str
    start: datetime
    end: datetime
    count: int | None = None
    avg: float | None = None
    min: float | None = None
    max: float | None = None
    sum: float | None = None
    first: JsonValue = None
    last: JsonValue = None


Record = TypeVar("Record", bound=HistoryRow | HistoryWindow)


class History(Sequence[Record], Generic[Record]):
    """Records in the order that was asked for. `is_complete` is False where `limit` cut them off."""

    def __init__(self, kind: type[Record], records: Sequence[Record], *, is_complete: bool = True) -> None:
        self._kind: type[Record] = kind
        self._records: tuple[Record, ...] = tuple(records)
        self.is_complete = is_complete

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Record]: ...
    def __getitem__(self, at: int | slice) -> Record | Sequence[Record]:
        return self._records[at]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def to_pandas(self) -> "pandas.DataFrame":
        """A data frame with the records' fields as columns, times in UTC. Raises Unavailable without pandas."""
        try:
            import pandas
        except ImportError as error:
            raise Unavailable("data frames need pandas: pip install pandas") from error
        frame = pandas.DataFrame(self._columns())
        for name in self._times():
            frame[name] = pandas.to_datetime(frame[name], utc=True)
        return frame

    def to_arrow(self) -> "pyarrow.Table":
        """An Arrow table with the records' fields as columns. A column of values is of numbers, booleans or texts where
        all of them are; else of JSON texts. Raises Unavailable without pyarrow."""
        try:
            import pyarrow
        except ImportError as error:
            raise Unavailable("Arrow tables need pyarrow: pip install pyarrow") from error
        at = pyarrow.timestamp("us", tz="UTC")
        types: dict[str, Any] = dict.fromkeys(self._times(), at)
        types |= dict.fromkeys(("row_id", "quality", "td_version", "count"), pyarrow.int64())
        types |= dict.fromkeys(("avg", "min", "max", "sum"), pyarrow.float64())
        types |= dict.fromkeys(("thing_id", "kind", "name"), pyarrow.string())
        columns = {}
        for name, column in self._columns().items():
            if name in types:
                columns[name] = pyarrow.array(column, types[name])
            else:
                columns[name] = _values(column, pyarrow)
        return pyarrow.table(columns)

    def _columns(self) -> dict[str, list[Any]]:
        names = [field.name for field in fields(self._kind)]
        columns = {name: [getattr(one, name) for one in self._records] for name in names}
        columns["kind"] = [kind.value for kind in columns["kind"]]
        return columns

    def _times(self) -> Sequence[str]:
        return ("created", "received", "source_time") if self._kind is HistoryRow else ("start", "end")

    def __repr__(self) -> str:
        return f"<History of {len(self)} {self._kind.__name__}{'' if self.is_complete else ', and there is more'}>"


async def read_rows(http: "HTTPClient", path: str, query: Mapping[str, str], limit: int | None) -> History[HistoryRow]:
    """Rows of one Thing, page by page, at most `limit` (None: all)."""
    if limit is not None and limit < 1:
        raise Invalid(f"limit must be at least 1, not {limit}")
    rows: list[HistoryRow] = []
    cursor: JsonValue = None
    while limit is None or len(rows) < limit:
        wanted = PAGE_ROWS if limit is None else min(PAGE_ROWS, limit - len(rows))
        pages = [*query.items(), ("limit", str(wanted)), *([("cursor", str(cursor))] if cursor is not None else [])]
        page = await http.json("GET", path, query=pages)
        rows += [_row(item) for item in _items(page)]
        cursor = page.get("cursor") if isinstance(page, dict) else None
        if cursor is None:
            break
    return History(HistoryRow, rows, is_complete=cursor is None)


async def read_windows(http: "HTTPClient", path: str, query: Mapping[str, str]) -> History[HistoryWindow]:
    """Sums of one Thing's values by windows."""
    return History(
        HistoryWindow, [_window(item) for item in _items(await http.json("GET", path, query=[*query.items()]))]
    )


def query_of(
    *,
    name: str | None,
    kind: str | None,
    start: datetime | None,
    end: datetime | None,
    newest_first: bool = False,
    window: str | timedelta | None = None,
    points: int | None = None,
    aggregates: Sequence[str] = (),
) -> dict[str, str]:
    """The query of a history as the HTTP API spells it. Raises Invalid."""
    unknown = [one for one in aggregates if one not in AGGREGATES]
    if unknown:
        raise Invalid(f"{unknown[0]!r} is no aggregate; there are {', '.join(AGGREGATES)}")
    query = {
        "name": name,
        "kind": kind,
        "from": None if start is None else rfc3339(from_datetime(start)),
        "to": None if end is None else rfc3339(from_datetime(end)),
        "order": "desc" if newest_first else None,
        "window": None if window is None else _window_text(window),
        "points": None if points is None else str(points),
        "agg": ",".join(aggregates) or None,
    }
    return {key: value for key, value in query.items() if value is not None}


def _window_text(window: str | timedelta) -> str:
    text = window if isinstance(window, str) else f"{window.total_seconds():.3f}".rstrip("0").rstrip(".") + "s"
    window_seconds(text)
    return text


def _items(page: JsonValue) -> list[dict[str, Any]]:
    items = page.get("items") if isinstance(page, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _row(item: Mapping[str, Any]) -> HistoryRow:
    source = item.get("sourceTime")
    return HistoryRow(
        row_id=item["rowID"],
        thing_id=item["thingID"],
        kind=Kind(item["kind"]),
        name=item["name"],
        value=item["value"],
        created=_time(item["created"]),
        received=_time(item["received"]),
        quality=item["quality"],
        td_version=item["tdVersion"],
        source_time=None if source is None else _time(source),
    )


def _window(item: Mapping[str, Any]) -> HistoryWindow:
    asked: dict[str, Any] = {name: item.get(name) for name in AGGREGATES}
    start, end = _time(item["from"]), _time(item["to"])
    return HistoryWindow(kind=Kind(item["kind"]), name=item["name"], start=start, end=end, **asked)


def _time(text: str) -> datetime:
    return to_datetime(parse_time(text))


def _values(column: Sequence[JsonValue], arrow: Any) -> Any:
    for arrow_type, types in ((arrow.bool_(), {bool}), (arrow.float64(), {int, float}), (arrow.string(), {str})):
        if all(value is None or type(value) in types for value in column):
            return arrow.array(column, arrow_type)
    return arrow.array([encode(value).decode() for value in column], arrow.string())
