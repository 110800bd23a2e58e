"""The last changes of the directory, in order, and who listens to them."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.ports import Entry
from things.identity import Principal
from things.merge_patch import difference

CHANGES = ("created", "updated", "deleted")
MAX_KEPT = 1_000
"""Changes that can be replayed; what is older is found in the listing."""
MayRead = Callable[[Principal, str], bool]
"""Whether somebody may know of a Thing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One committed change; `patch` is what changed in the text, made when it happened."""

    id: int
    what: str
    thing_id: str
    patch: Mapping[str, Any]


class Listing:
    """What changed in the directory, in order, and who listens."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._last = clock()
        self._kept: deque[Change] = deque(maxlen=MAX_KEPT)
        self._listeners: set[Callable[[Change], None]] = set()

    @property
    def tag(self) -> str:
        """Changes whenever an entry comes, goes or changes."""
        return f"{self._last:x}"

    def changed(self, what: str, before: Entry | None, after: Entry | None) -> None:
        """Take one committed change and tell everyone who listens."""
        entry = after or before
        if entry is None or what not in CHANGES:
            return
        # Ids are times, so that they rise over restarts.
        self._last = max(self._last + 1, self._clock())
        patch = difference(_shown(before), _shown(after)) if before and after else {}
        change = Change(id=self._last, what=what, thing_id=entry.thing_id, patch=patch)
        self._kept.append(change)
        for listener in tuple(self._listeners):
            listener(change)

    def since(self, id_: int) -> list[Change]:
        return [change for change in self._kept if change.id > id_]

    def listen(self, listener: Callable[[Change], None]) -> None:
        self._listeners.add(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        self._listeners.discard(listener)


def _shown(entry: Entry) -> dict[str, Any]:
    return {**entry.td.document, **entry.overlay}
