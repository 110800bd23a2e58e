"""One Thing in a consumer's hands: read, observe, write, invoke, look back."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, overload

from pydantic import JsonValue

from skep.history import History, HistoryRow, HistoryWindow, query_of, read_rows, read_windows
from things.addresses import encode_segment
from things.names import checked_name

if TYPE_CHECKING:
    from skep.consumer import Change, Consumer
    from skep.requested import Requested

EventOrProperty = Literal["event", "property"]
Aggregate = Literal["avg", "min", "max", "count", "sum", "first", "last"]


class Thing:
    """A Thing by its id. `td` is its description where it is known already; `describe` fetches it."""

    def __init__(self, consumer: "Consumer", thing_id: str, td: Mapping[str, JsonValue] | None = None) -> None:
        self._consumer = consumer
        self.id = thing_id
        self.td: Mapping[str, JsonValue] = td or {}

    @property
    def title(self) -> str:
        """What the Thing is called, else its id."""
        return str(self.td.get("title") or self.id)

    @property
    def properties(self) -> Mapping[str, JsonValue]:
        return self._affordances("properties")

    @property
    def actions(self) -> Mapping[str, JsonValue]:
        return self._affordances("actions")

    @property
    def events(self) -> Mapping[str, JsonValue]:
        return self._affordances("events")

    async def describe(self) -> Mapping[str, JsonValue]:
        """Its Thing Description, fetched; raises UnknownThing."""
        found = await self._consumer.http.json("GET", self._path())
        self.td = found if isinstance(found, dict) else {}
        return self.td

    async def read(self, name: str) -> JsonValue:
        """The latest value of a property. Raises UnknownThing, UnknownName, NotFound while it has none."""
        return await self._consumer.http.json("GET", self._path("properties", checked_name(name)))

    async def read_all(self) -> dict[str, JsonValue]:
        """The latest values of all properties that have one."""
        found = await self._consumer.http.json("GET", self._path("properties"))
        return found if isinstance(found, dict) else {}

    async def observe(self, name: str = "*") -> "AsyncGenerator[Change, None]":
        """Changes of one property (or of all), as they come, for ever."""
        async with aclosing(self._consumer.watch(f"{self.id}/{name}", kind="property")) as changes:
            async for change in changes:
                yield change

    async def subscribe(self, name: str = "*") -> "AsyncGenerator[Change, None]":
        """Events of one name (or of all), as they come, for ever."""
        async with aclosing(self._consumer.watch(f"{self.id}/{name}", kind="event")) as changes:
            async for change in changes:
                yield change

    async def invoke(
        self,
        action: str,
        data: JsonValue = None,
        *,
        wait_s: float = 0.0,
        expires_s: float | None = None,
        reference: str | None = None,
        confirmation: str | None = None,
    ) -> "Requested":
        """Ask it to act; see `Consumer.invoke`."""
        return await self._consumer.invoke(
            self.id, action, data, wait_s=wait_s, expires_s=expires_s, reference=reference, confirmation=confirmation
        )

    async def write(
        self,
        name: str,
        value: JsonValue,
        *,
        wait_s: float = 5.0,
        expires_s: float | None = None,
        reference: str | None = None,
        confirmation: str | None = None,
    ) -> "Requested":
        """Ask it to take a new value of a property; see `Consumer.write`."""
        return await self._consumer.write(
            self.id, name, value, wait_s=wait_s, expires_s=expires_s, reference=reference, confirmation=confirmation
        )

    async def call(
        self, method: str, data: JsonValue = None, *, timeout_s: float = 15.0, confirmation: str | None = None
    ) -> JsonValue:
        """Call a method now or not at all (RPC); see `Consumer.call`."""
        return await self._consumer.call(self.id, method, data, timeout_s=timeout_s, confirmation=confirmation)

    @overload
    async def history(
        self,
        name: str | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        kind: EventOrProperty | None = None,
        limit: int | None = 1_000,
        newest_first: bool = False,
        window: None = None,
        points: None = None,
    ) -> History[HistoryRow]: ...
    @overload
    async def history(
        self,
        name: str | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        kind: EventOrProperty | None = None,
        window: str | timedelta,
        points: None = None,
        aggregates: Sequence[Aggregate] = (),
    ) -> History[HistoryWindow]: ...
    @overload
    async def history(
        self,
        name: str | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        kind: EventOrProperty | None = None,
        window: None = None,
        points: int,
        aggregates: Sequence[Aggregate] = (),
    ) -> History[HistoryWindow]: ...
    async def history(
        self,
        name: str | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        kind: EventOrProperty | None = None,
        limit: int | None = 1_000,
        newest_first: bool = False,
        window: str | timedelta | None = None,
        points: int | None = None,
        aggregates: Sequence[Aggregate] = (),
    ) -> History[HistoryRow] | History[HistoryWindow]:
        """What it said before, from `start` up to and without `end`: rows of one name or of all, oldest first, at most
        `limit` (None: all there are).

        With `window` (`"5m"`, or a timedelta), or with as many `points` as shall do, sums by windows of time instead:
        `aggregates` are avg, min, max and count unless others are named. `to_pandas()` and `to_arrow()` make tables of
        the result. Raises UnknownThing, Forbidden, and Invalid for times without a zone.
        """
        if window is None and points is None:
            query = query_of(name=name, kind=kind, start=start, end=end, newest_first=newest_first)
            return await read_rows(self._consumer.http, self._path("history"), query, limit)
        query = query_of(
            name=name, kind=kind, start=start, end=end, window=window, points=points, aggregates=aggregates
        )
        return await read_windows(self._consumer.http, self._path("history"), query)

    def _affordances(self, kind: str) -> Mapping[str, JsonValue]:
        found = self.td.get(kind)
        return found if isinstance(found, dict) else {}

    def _path(self, *below: str) -> str:
        return "/".join(["/things", *map(encode_segment, (self.id, *below))])

    def __repr__(self) -> str:
        return f"<Thing {self.id}>"
