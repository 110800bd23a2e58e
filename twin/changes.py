"""The directory's last changes in order, kept over restarts, for listeners that come back with the last id they heard.

They lie in a ring: a change overwrites the one of `MAX_CHANGES` ago, in the transaction of the write it tells of, so
that what was acknowledged can be reported and the ring never grows. Ids are times (µs UTC) that rise over restarts.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Connection, select

from things.addresses import is_twin
from things.merge_patch import difference
from things.records import DirectoryChange, Entry, EntryChange
from twin.database import Database
from twin.statements import upsert
from twin.tables import ChangeRow, table

MAX_CHANGES = 1_000
MAX_PATCH_BYTES = 16_384
"""Of a larger patch only the names of its members are kept, as null; their values are those of whoever reads it."""

_CHANGES = table(ChangeRow)
_DEVICES_OWN = frozenset({"forms", "base", "security", "securityDefinitions", "links", "uriVariables", "id"})
"""Members of an agent's TD that consumers never see, or see as this runtime's own."""
_AFFORDANCES = ("properties", "actions", "events")


class ChangeLog:
    """The ring; `record` is for the writer thread, everything else for the loop."""

    def __init__(self, database: Database, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._kept: deque[DirectoryChange] = deque(maxlen=MAX_CHANGES)
        self._put = upsert(_CHANGES, database.engine)
        self._slot = 0
        self._newest = 0

    @classmethod
    async def load(cls, database: Database, clock: Callable[[], int]) -> "ChangeLog":
        changes = cls(database, clock)
        rows = await database.read(_stored)
        for row in rows:
            changes.keep(
                DirectoryChange(id=row.id, what=EntryChange(row.what), thing_id=row.thing_id, patch=row.patch.encode())
            )
        if rows:
            changes._slot, changes._newest = rows[-1].slot, rows[-1].id
        return changes

    # ------------------------------------------------------------ in the writer thread

    def record(
        self, connection: Connection, what: EntryChange, before: Entry | None, after: Entry | None
    ) -> DirectoryChange:
        """Write one change beside what it tells of."""
        entry = after or before
        assert entry is not None
        # A group that is written once more takes further ids and slots, which are as good.
        self._slot = (self._slot + 1) % MAX_CHANGES
        self._newest = max(self._newest + 1, self._clock())
        patch = b"{}"
        if what is EntryChange.UPDATED and before is not None and after is not None:
            patch = _patch(before, after)
        self._put.run(
            connection,
            slot=self._slot,
            id=self._newest,
            what=what.value,
            thing_id=entry.thing_id,
            patch=patch.decode(),
        )
        return DirectoryChange(id=self._newest, what=what, thing_id=entry.thing_id, patch=patch)

    # ------------------------------------------------------------ in the loop

    @property
    def last(self) -> int:
        """The id of the newest committed change; 0 before the first."""
        return self._kept[-1].id if self._kept else 0

    def keep(self, change: DirectoryChange) -> None:
        """Take a committed change."""
        self._kept.append(change)

    def since(self, id_: int, limit: int) -> Sequence[DirectoryChange]:
        """Changes with a higher id, oldest first."""
        newer = 0
        for change in reversed(self._kept):
            if change.id <= id_:
                break
            newer += 1
        first = len(self._kept) - newer
        return [self._kept[index] for index in range(first, min(first + limit, len(self._kept)))]


def shown_patch(patch: Mapping[str, Any], thing_id: str, td: Mapping[str, Any]) -> dict[str, Any]:
    """What changed, as somebody sees it to whom the Thing now looks like `td`: of a twin, values come from the twin's
    TD, never from the device's."""
    if not is_twin(thing_id):
        return {**{name: td.get(name) if value is None else value for name, value in patch.items()}, "id": thing_id}
    shown: dict[str, Any] = {"id": thing_id}
    for name, value in patch.items():
        if name in _DEVICES_OWN:
            continue
        if name in _AFFORDANCES and isinstance(value, dict):
            seen = td.get(name, {})
            shown[name] = {one: seen.get(one) for one in value if one in seen or value[one] is None}
        elif name in td or value is None:
            shown[name] = td.get(name)
    return shown


def _stored(connection: Connection) -> Sequence[Any]:
    return connection.execute(select(*_CHANGES.c).order_by(_CHANGES.c.id)).all()


def _patch(before: Entry, after: Entry) -> bytes:
    found = difference(_shown(before), _shown(after))
    patch = to_json(found)
    return patch if len(patch) <= MAX_PATCH_BYTES else to_json(dict.fromkeys(found))


def _shown(entry: Entry) -> dict[str, Any]:
    # Read here rather than through the TD, whose documents are kept ready for the loop.
    try:
        return {**from_json(entry.td.text), **entry.overlay}
    except ValueError:  # damaged on disk, and now replaced
        return {**entry.overlay}
