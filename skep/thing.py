"""One Thing in a consumer's hands: read, observe, write, invoke, look back."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from pydantic import JsonValue

from things.addresses import encode_segment

if TYPE_CHECKING:
    from skep.consumer import Change, Consumer
    from skep.requested import Requested


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
        """The latest value of a property."""
        return await self._consumer.http.json("GET", self._path("properties", name))

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
        wait: float = 0.0,
        expires: float | None = None,
        reference: str | None = None,
        confirmation: str | None = None,
    ) -> "Requested":
        """Ask it to act; see `Consumer.invoke`."""
        return await self._consumer.invoke(
            self.id, action, data, wait=wait, expires=expires, reference=reference, confirmation=confirmation
        )

    async def write(
        self, name: str, value: JsonValue, *, wait: float = 5.0, confirmation: str | None = None
    ) -> "Requested":
        """Ask it to take a new value of a property; see `Consumer.write`."""
        return await self._consumer.write(self.id, name, value, wait=wait, confirmation=confirmation)

    async def call(
        self, method: str, data: JsonValue = None, *, timeout_s: float = 15.0, confirmation: str | None = None
    ) -> JsonValue:
        """Call a method now or not at all (RPC); see `Consumer.call`."""
        return await self._consumer.call(self.id, method, data, timeout_s=timeout_s, confirmation=confirmation)

    async def history(self, name: str | None = None, **query: str) -> list[dict[str, JsonValue]]:
        """What it said before: rows of one name, or of all. `query` as in the HTTP API: from, to, limit, order …"""
        wanted = {"name": name, **query} if name is not None else query
        found = await self._consumer.http.json("GET", self._path("history"), query=list(wanted.items()))
        items = found.get("items") if isinstance(found, dict) else None
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []

    def _affordances(self, kind: str) -> Mapping[str, JsonValue]:
        found = self.td.get(kind)
        return found if isinstance(found, dict) else {}

    def _path(self, *below: str) -> str:
        return "/".join(["/things", *map(encode_segment, (self.id, *below))])

    def __repr__(self) -> str:
        return f"<Thing {self.id}>"
