"""Stand-ins for what the twin asks of others."""

from collections.abc import Mapping, Sequence
from typing import Any

from things.addresses import Address
from things.errors import Unavailable
from things.identity import Principal
from things.jsontext import encode
from things.messages import Operation
from things.records import Entry, HistoryQuery, Row


class NoLake:
    """A lake that cannot be asked: everything is hot here."""

    async def read(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        raise Unavailable("no lake")

    async def latest(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        raise Unavailable("no lake")

    async def windows(self, query: HistoryQuery, window_us: int) -> Sequence[Mapping[str, Any]]:
        raise Unavailable("no lake")


class All:
    """Rights of everybody to everything, but for what is `hidden`: names, and ids of Things."""

    version = 0
    is_conditional = False
    allowed = True

    def __init__(self, *hidden: str) -> None:
        self.hidden = hidden

    def is_uniform(self, principal: Principal, thing_id: str) -> bool:
        return not self.hidden

    def decide(self, principal: Principal, operation: Operation, address: Address) -> "All | Nothing":
        return Nothing() if address.thing_id in self.hidden or address.name in self.hidden else self


class Nothing:
    allowed = False


class Plain:
    """Entries as they were registered or published, for everybody."""

    def of(self, entry: Entry, principal: Principal, protocol: str | None = None) -> dict[str, Any]:
        return {**entry.td.document, **entry.overlay}

    def text(self, entry: Entry, principal: Principal, protocol: str | None = None) -> bytes:
        return encode(self.of(entry, principal, protocol))
