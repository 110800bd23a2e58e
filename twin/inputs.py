"""What the methods of `dtw:directory:things`, `dtw:values:latest` and `dtw:history:readings` take."""

from typing import Annotated, Literal

from pydantic import Field

from things.addresses import Kind
from things.filters import MAX_FILTER_CHARS
from things.messages import JSONValue
from things.methods import Counter, Input, Instant, Text

MAX_PAGE = 1_000
MAX_QUERY_CHARS = 16_384
MAX_HISTORY_PAGE = 10_000
MAX_WINDOWS = 10_000

Page = Annotated[int, Field(ge=1, le=MAX_PAGE)]
Document = dict[str, JSONValue]
Names = Annotated[list[Text], Field(max_length=10_000)]
SeriesKind = Literal["event", "property"]
Sum = Literal["avg", "min", "max", "count", "sum", "first", "last"]


def _usual_sums() -> list[Sum]:
    return ["avg", "min", "max", "count"]


class OneThing(Input):
    thing_id: Text


class ReadTD(OneThing):
    protocol: Text | None = None
    """The forms of one protocol only."""


class ReadEntry(ReadTD):
    encoded: bool = False
    """A twin's TD as JSON text: whoever passes it on as it is spares reading and writing it."""


class ListTDs(Input):
    limit: Page = 100
    offset: Counter = 0
    cursor: Text | None = None
    agent: Text | None = None
    type: Text | None = None
    text: Text | None = None
    filter: Annotated[str, Field(min_length=1, max_length=MAX_FILTER_CHARS)] | None = None
    protocol: Text | None = None
    count: bool = False
    entries: bool = False
    encoded: bool = False


class QuerySPARQL(Input):
    query: Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)]
    accepted: Annotated[list[Text], Field(default_factory=list, max_length=32)]
    """Media types, the most wanted first; the usual one of the query's form without any."""


class ListChanges(Input):
    after: Counter | None = None
    limit: Page = 100
    diff: bool = False


class ThingAsOf(OneThing):
    time: Instant
    protocol: Text | None = None


class RegisterTD(OneThing):
    td: Document
    expires: Instant | None = None
    if_match: Text | None = None
    if_none_match: Text | None = None


class UpdateTD(OneThing):
    patch: Document
    if_match: Text | None = None


class RemoveTD(OneThing):
    if_match: Text | None = None


class Overlay(OneThing):
    """Members that are not given stay as they are; null takes one away."""

    title: Text | None = None
    description: Annotated[str, Field(max_length=8_192)] | None = None


class ReadValue(OneThing):
    name: Text


class Series(Input):
    """Which stored values: of a Thing, of a kind, of one name or several, in a time."""

    thing_id: Text | None = None
    kind: SeriesKind | None = None
    name: Text | None = None
    names: Names = Field(default_factory=list)
    start: Annotated[Instant | None, Field(alias="from")] = None
    end: Annotated[Instant | None, Field(alias="to")] = None

    @property
    def all_names(self) -> list[str]:
        return self.names if self.name is None else [*self.names, self.name]

    @property
    def series_kind(self) -> Kind | None:
        return None if self.kind is None else Kind(self.kind)


class ReadHistory(Series):
    things: Names | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_HISTORY_PAGE)] = 1_000
    cursor: Text | None = None
    after_row: Counter | None = None
    order: Literal["asc", "desc"] = "asc"


class ReadWindows(Series):
    thing_id: Text
    window: Text | None = None
    points: Annotated[int, Field(ge=1, le=MAX_WINDOWS)] | None = None
    agg: Annotated[list[Sum], Field(default_factory=_usual_sums, min_length=1, max_length=7)]


class ListAsOf(Input):
    time: Instant
    limit: Page = 100
    offset: Counter = 0
    cursor: Text | None = None
    protocol: Text | None = None


class Difference(Input):
    thing_id: Text | None = None
    start: Annotated[Instant, Field(alias="from")]
    end: Annotated[Instant | None, Field(alias="to")] = None
    limit: Page = 100
    cursor: Text | None = None
