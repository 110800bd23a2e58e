"""Latest values by series, in memory for reading, and how they come back after a restart.

The latest value is the one with the highest history row, unless its source says that it is older (`things.lateness`):
what the wall clock did in between does not matter. Values are written to the twin's database from time to time with the
history row up to which they are complete; at start the checkpoint is read and history after that row is replayed, so
nothing that was acknowledged is missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Connection, delete, select

from things.addresses import Kind
from things.lateness import is_late
from things.messages import JSONValue
from things.records import HistoryQuery, Row, Value
from twin.database import Database
from twin.statements import upsert
from twin.tables import LatestRow, MarkRow, table

MARK = "latest"
"""Its number is the history row up to which the checkpoint is complete."""
_LATEST = table(LatestRow)
_MARKS = table(MarkRow)
REPLAY_ROWS = 10_000
"""Rows read at a time when history is replayed."""

_Series = tuple[Kind, str]


class LatestValues:
    """The latest value of every series; made by `LatestValues.load`. Its synchronous methods are for the loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._things: dict[str, dict[_Series, Value]] = {}
        self._having: dict[str, dict[str, dict[_Series, Value]]] = {}
        """By the name of a property, the Things that have a value of it, with all their values."""
        self._changed: set[tuple[str, Kind, str]] = set()
        self._dropped: set[str] = set()
        self._checkpointed = 0
        self.unreadable = 0
        """Rows of history that were not JSON when they were replayed."""
        self._writing = asyncio.Lock()
        self._upsert = upsert(_LATEST, database.engine)
        self._mark = upsert(_MARKS, database.engine)

    @classmethod
    async def load(
        cls,
        database: Database,
        replay: Callable[[HistoryQuery], Awaitable[Sequence[Row]]],
        is_known: Callable[[str], bool],
    ) -> "LatestValues":
        """The checkpoint, and what history has after it of Things that are still known."""
        values = cls(database)
        rows, mark = await database.read(_checkpoint)
        values._checkpointed = mark
        kinds = {one.value: one for one in Kind}  # by a dictionary: a start reads tens of thousands
        for thing_id, kind, name, value, created, received, row_id, quality in rows:
            series = values._things.setdefault(thing_id, {})
            series[kinds[kind], name] = _value(value.encode(), created, received, row_id, quality)
            values._note(thing_id, kinds[kind], name)
        after = mark
        while True:
            page = await replay(HistoryQuery(after_row=after, limit=REPLAY_ROWS))
            for row in page:
                if not is_known(row.thing_id):
                    continue
                kind = Kind(row.kind)
                try:
                    value = _value(row.value, row.created, row.received, row.row_id, row.quality)
                except (ValueError, TypeError):  # a damaged row: the one before it stays the latest
                    values.unreadable += 1
                    continue
                values.put(row.thing_id, kind, row.name, value)
            if len(page) < REPLAY_ROWS:
                return values
            after = page[-1].row_id

    @property
    def checkpointed_row(self) -> int:
        """The history row up to which the checkpoint is complete."""
        return self._checkpointed

    @property
    def last_received(self) -> int:
        """The latest time (µs UTC) at which one of these values was received; 0 without any. Looks at all of them."""
        return max((value.received for series in self._things.values() for value in series.values()), default=0)

    def get(self, thing_id: str, kind: Kind, name: str) -> Value | None:
        """The latest value of a series."""
        series = self._things.get(thing_id)
        return None if series is None else series.get((kind, name))

    def of_thing(self, thing_id: str) -> Mapping[_Series, Value]:
        """All latest values of a Thing, as they are now."""
        return dict(self._things.get(thing_id, ()))

    def of_property(self, name: str) -> Iterator[tuple[str, JSONValue]]:
        """The Things that have a value of a property of this name, and the value."""
        key = (Kind.PROPERTY, name)
        return ((thing_id, series[key].value) for thing_id, series in self._having.get(name, {}).items())

    def put(self, thing_id: str, kind: Kind, name: str, value: Value) -> bool:
        """Take a value; False if a later one is already there."""
        series = self._things.setdefault(thing_id, {})
        standing = series.get((kind, name))
        if standing is None:
            self._note(thing_id, kind, name)
        elif standing.row_id >= value.row_id or (
            # Almost every value is created later than the one before.
            value.created < standing.created
            and is_late(value.created, value.received, standing.created, standing.received)
        ):
            return False
        series[kind, name] = value
        self._changed.add((thing_id, kind, name))
        return True

    def drop(self, thing_id: str) -> None:
        """Forget a Thing's values."""
        series = self._things.pop(thing_id, None)
        if series is not None:
            for kind, name in series:
                if kind is Kind.PROPERTY:
                    self._forget(name, thing_id)
            self._changed = {one for one in self._changed if one[0] != thing_id}
            self._dropped.add(thing_id)

    def _note(self, thing_id: str, kind: Kind, name: str) -> None:
        if kind is Kind.PROPERTY:
            self._having.setdefault(name, {})[thing_id] = self._things[thing_id]

    def _forget(self, name: str, thing_id: str) -> None:
        having = self._having[name]
        del having[thing_id]
        if not having:
            del self._having[name]

    async def checkpoint(self, applied: int) -> None:
        """Write what changed, complete up to history row `applied`: every value of a row up to it was `put`."""
        async with self._writing:
            dropped, self._dropped = self._dropped, set()
            changed, self._changed = self._changed, set()
            rows = [_stored(one, value) for one in changed if (value := self.get(*one)) is not None]
            try:
                await self._database.submit(lambda connection: self._write(connection, dropped, rows, applied))
            except BaseException:
                self._dropped |= dropped
                self._changed |= changed
                raise
            self._checkpointed = applied

    def _write(
        self, connection: Connection, dropped: set[str], rows: Sequence[Mapping[str, object]], applied: int
    ) -> None:
        for thing_id in dropped:
            connection.execute(delete(_LATEST).where(_LATEST.c.thing_id == thing_id))
        self._upsert.many(connection, rows)
        self._mark.run(connection, name=MARK, value=applied)


def _checkpoint(connection: Connection) -> tuple[Sequence[Any], int]:
    rows = connection.execute(select(*_LATEST.c)).all()
    mark = connection.execute(select(_MARKS.c.value).where(_MARKS.c.name == MARK)).scalar()
    return rows, int(mark or 0)


def _value(payload: bytes, created: int, received: int, row_id: int, quality: int) -> Value:
    return Value(
        value=from_json(payload),
        payload=payload,
        created=created,
        received=received,
        row_id=row_id,
        quality=quality,
    )


def _stored(series: tuple[str, Kind, str], value: Value) -> dict[str, object]:
    thing_id, kind, name = series
    return {
        "thing_id": thing_id,
        "kind": kind.value,
        "name": name,
        "value": value.payload.decode(),
        "created": value.created,
        "received": value.received,
        "row_id": value.row_id,
        "quality": value.quality,
    }
