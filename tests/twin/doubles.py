"""Stand-ins for what the twin asks of others."""

from collections.abc import Mapping, Sequence
from typing import Any

from things.errors import Unavailable
from things.identity import Principal
from things.jsontext import encode
from things.records import Entry, HistoryQuery, Row


class NoLake:
    """A lake that cannot be asked: everything is hot here."""

    async def read(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        raise Unavailable("no lake")

    async def latest(self, query: HistoryQuery, *, before_row: int | None = None) -> Sequence[Row]:
        raise Unavailable("no lake")

    async def windows(self, query: HistoryQuery, window_us: int) -> Sequence[Mapping[str, Any]]:
        raise Unavailable("no lake")


class Plain:
    """Entries as they were registered or published, for everybody."""

    def of(self, entry: Entry, principal: Principal, protocol: str | None = None) -> dict[str, Any]:
        return {**entry.td.document, **entry.overlay}

    def text(self, entry: Entry, principal: Principal, protocol: str | None = None) -> bytes:
        return encode(self.of(entry, principal, protocol))
