"""The twin as of an instant: Thing Descriptions by when they were published, values by when they were created.

A value that arrived late counts at the time it tells of, so the answer for an instant gets better, never worse. A Thing
that was removed starts without values, as it did then. Rights, overlaid titles and addresses are today's.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from things.addresses import Address, Kind
from things.errors import UnknownThing
from things.identity import Principal
from things.merge_patch import difference
from things.messages import JSONValue, Operation
from things.records import Entry, HistoryQuery, Row
from things.times import rfc3339
from twin.directory import DirectoryStore
from twin.entries import NOT_KNOWN_THEN, TDVersion
from twin.readings import Readings
from twin.search import May

View = Callable[[Entry, Principal, str | None], dict[str, Any]]
"""What a principal who may know of an entry gets to see of it, for one protocol or all."""

Values = Mapping[str, Row]
"""The row that gave each property its value."""


class TimeTravel:
    """Reads what was."""

    def __init__(self, directory: DirectoryStore, readings: Readings, may: May, view: View) -> None:
        self._directory = directory
        self._readings = readings
        self._may = may
        self._view = view

    async def thing(self, thing_id: str, time: int, principal: Principal, protocol: str | None) -> dict[str, JSONValue]:
        """A Thing at an instant: its description (null before there was one) and the values of its properties. Raises
        UnknownThing where there was neither."""
        version = await self._directory.as_of(thing_id, time)
        values = (await self._values([thing_id], time, principal)).get(thing_id, {})
        td = self._td(version, principal, protocol)
        if td is None and not values:
            raise UnknownThing(thing_id)
        return {
            "thingID": thing_id,
            "time": rfc3339(time),
            "version": None if version is None or td is None else version.version,
            "published": None if version is None or td is None else rfc3339(version.published),
            "td": td,
            "properties": {name: value_document(row) for name, row in sorted(values.items())},
        }

    async def listing(
        self, time: int, principal: Principal, protocol: str | None, *, after: str, offset: int, limit: int
    ) -> dict[str, JSONValue]:
        """A page of the directory at an instant, in order of ids; the cursor is the last one."""
        items: list[JSONValue] = []
        while True:
            versions = await self._directory.all_as_of(time, after=after, limit=limit)
            for version in versions:
                td = self._td(version, principal, protocol)
                if td is None:
                    continue
                if offset:
                    offset -= 1
                elif len(items) == limit:
                    return {"items": items, "cursor": after}
                else:
                    items.append(td)
                    after = version.thing_id
            if len(versions) < limit:
                return {"items": items}
            if offset or len(items) < limit:
                after = versions[-1].thing_id
            await asyncio.sleep(0)

    async def difference(
        self, thing_id: str | None, start: int, end: int, principal: Principal, *, after: str, limit: int
    ) -> dict[str, JSONValue]:
        """What is different at `end` from what was at `start`, by Thing; Things that are the same are left out. A page
        looks at up to `limit` Things; the cursor is the last one looked at."""
        before, now, following = await self._both(thing_id, start, end, after, limit)
        ids = sorted({*before, *now} | ({thing_id} if thing_id is not None else set()))
        old_values = await self._values(ids, start, principal)
        new_values = await self._values(ids, end, principal)
        items: list[JSONValue] = []
        for one in ids:
            old_td = self._td(before.get(one), principal, None)
            new_td = self._td(now.get(one), principal, None)
            found = _changed(old_td, new_td, old_values.get(one, {}), new_values.get(one, {}))
            if found:
                items.append({"thingID": one, **found})
        return {"items": items} if following is None else {"items": items, "cursor": following}

    async def _both(
        self, thing_id: str | None, start: int, end: int, after: str, limit: int
    ) -> tuple[Mapping[str, TDVersion], Mapping[str, TDVersion], str | None]:
        """The TDs of both instants by Thing, and the id to go on from."""
        if thing_id is not None:
            old, new = await self._directory.as_of(thing_id, start), await self._directory.as_of(thing_id, end)
            return {} if old is None else {thing_id: old}, {} if new is None else {thing_id: new}, None
        pages = [await self._directory.all_as_of(time, after=after, limit=limit) for time in (start, end)]
        ends = [page[-1].thing_id for page in pages if len(page) == limit]
        last = min(ends) if ends else None
        before, now = ({one.thing_id: one for one in page if last is None or one.thing_id <= last} for page in pages)
        return before, now, last

    def _td(self, version: TDVersion | None, principal: Principal, protocol: str | None) -> dict[str, Any] | None:
        """A former TD as this principal may see it; None where there is none to see."""
        if version is None or (entry := version.entry) is None:
            return None
        if not self._may(principal, Operation.READ, Address(version.thing_id)):
            return None
        shown = self._view(entry, principal, protocol)
        return {name: value for name, value in shown.items() if name not in NOT_KNOWN_THEN}

    async def _values(self, thing_ids: Sequence[str], time: int, principal: Principal) -> Mapping[str, Values]:
        """Property values at an instant, by Thing and name, as far as the caller may see their history."""
        if not thing_ids:
            return {}
        # The bound is exclusive, and what was said at that very moment counts.
        rows = await self._readings.latest(HistoryQuery(things=thing_ids, kind=Kind.PROPERTY, end=time + 1))
        removals = await self._directory.removals(thing_ids, time)
        values: dict[str, dict[str, Row]] = {}
        for row in rows:
            address = Address(row.thing_id, Kind.PROPERTY, row.name)
            is_after = row.received > removals.get(row.thing_id, row.received - 1)
            if is_after and self._may(principal, Operation.HISTORY, address):
                values.setdefault(row.thing_id, {})[row.name] = row
        return values


def value_document(row: Row) -> dict[str, JSONValue]:
    """A stored value in the form of the latest ones."""
    return {
        "value": from_json(row.value),
        "created": rfc3339(row.created),
        "received": rfc3339(row.received),
        "rowID": row.row_id,
        "quality": row.quality,
    }


def _changed(
    old_td: dict[str, Any] | None, new_td: dict[str, Any] | None, old: Values, new: Values
) -> dict[str, JSONValue]:
    """What is different of one Thing; empty when nothing is."""
    found: dict[str, JSONValue] = {}
    if old_td is None and new_td is not None:
        found["change"] = "created"
    elif old_td is not None and new_td is None:
        found["change"] = "removed"
    elif old_td is not None and new_td is not None:
        patch = difference(old_td, new_td)
        if patch:
            found |= {"change": "updated", "patch": patch}
    properties: dict[str, JSONValue] = {}
    for name in sorted({*old, *new}):
        before, after = (value_document(row) if row is not None else None for row in (old.get(name), new.get(name)))
        if before is None or after is None or before["value"] != after["value"]:
            properties[name] = {"from": before, "to": after}
    return found | ({"properties": properties} if properties else {})
