"""Finding Things by filter: indexes that narrow the search, then every comparison checked.

The indexes follow the directory by type, title and agent; whether an agent is online is asked when a search runs. What
the caller may not read is null to its filter, so that nothing hidden can be guessed from what is found.
"""

import re
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from things.addresses import Address, Kind
from things.filters import Comparison, Field, Filter, Operator, Subject, matches, required
from things.identity import RESERVED_ACCOUNTS, Principal
from things.messages import JSONValue, Operation
from things.records import Entry
from things.times import rfc3339
from twin.directory import Change, DirectoryStore
from twin.values import LatestValues

May = Callable[[Principal, Operation, Address], bool]
"""The decision function, as far as trimming needs it."""


class Seen(Protocol):
    """Whether an agent is reachable, and since when (µs UTC)."""

    @property
    def is_online(self) -> bool: ...
    @property
    def since(self) -> int: ...


PresenceOf = Callable[[str], Seen | None]
"""Presence of an agent; None if it has never been here."""


class Search:
    """Things that pass a filter, in order of their ids."""

    def __init__(
        self,
        directory: DirectoryStore,
        values: LatestValues,
        may: May,
        *,
        presence: PresenceOf = lambda agent: None,
        clock: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._values = values
        self._may = may
        self._presence = presence
        self._clock = clock
        self._types: dict[str, dict[str, None]] = {}
        self._titles: dict[str, dict[str, None]] = {}
        for thing_id in directory.ids():
            self._add(directory.get(thing_id))
        directory.on_changed(self._changed)

    def candidates(self, filter_: Filter, after: str = "") -> Collection[str]:
        """The ids above `after` among which everything that passes is found, in order."""
        narrowed = [found for comparison in required(filter_) if (found := self._indexed(comparison)) is not None]
        if not narrowed:
            ids = self._directory.ids()
            return ids if not after else [thing_id for thing_id in ids if thing_id > after]
        return sorted(thing_id for thing_id in min(narrowed, key=len) if thing_id > after)

    def passes(self, filter_: Filter, entry: Entry, principal: Principal) -> bool:
        """Whether a Thing passes, as far as this caller may read it."""
        return matches(filter_, lambda field: self._look_up(field, entry, principal))

    # ------------------------------------------------------------ indexes

    def _indexed(self, comparison: Comparison) -> Collection[str] | None:
        """The ids that pass one comparison, or a few more; None where no index tells."""
        wanted = comparison.value
        match comparison.field.subject, comparison.operator, wanted:
            case Subject.TYPE, Operator.IS, str():
                return self._types.get(wanted, {})
            case Subject.TITLE, Operator.IS, str():
                return self._titles.get(wanted, {})
            case Subject.AGENT, Operator.IS, str():
                return self._directory.things_of(wanted)
            case Subject.ID, Operator.IS, str():
                return (wanted,) if self._directory.get(wanted) is not None else ()
            case Subject.ONLINE, Operator.IS, True:
                return [thing_id for agent in self._online() for thing_id in self._directory.things_of(agent)]
            case _:
                return None

    def _online(self) -> Iterator[str]:
        return (agent for agent in self._directory.agents() if self._is_online(agent))

    def _is_online(self, agent: str) -> bool:
        seen = self._presence(agent)
        return agent in RESERVED_ACCOUNTS or (seen is not None and seen.is_online)

    def _changed(self, change: Change, before: Entry | None, after: Entry | None) -> None:
        self._drop(before)
        self._add(after)

    def _add(self, entry: Entry | None) -> None:
        if entry is not None:
            for index, key in self._keys(entry):
                index.setdefault(key, {})[entry.thing_id] = None

    def _drop(self, entry: Entry | None) -> None:
        if entry is None:
            return
        for index, key in self._keys(entry):
            held = index.get(key, {})
            held.pop(entry.thing_id, None)
            if not held:
                index.pop(key, None)

    def _keys(self, entry: Entry) -> Iterator[tuple[dict[str, dict[str, None]], str]]:
        yield self._titles, _title(entry)
        for type_ in entry.td.types:
            yield self._types, type_
            # A word alone finds the type behind any prefix, as the filter language says.
            yield self._types, re.split(r"[:#/]", type_)[-1]

    # ------------------------------------------------------------ values

    def _look_up(self, field: Field, entry: Entry, principal: Principal) -> JSONValue:
        match field.subject:
            case Subject.ID:
                return entry.thing_id
            case Subject.TITLE:
                return _title(entry)
            case Subject.AGENT:
                return entry.agent
            case Subject.TYPE:
                return list(entry.td.types)
            case Subject.ONLINE:
                return None if entry.agent is None else self._is_online(entry.agent)
            case Subject.LAST_SEEN:
                return self._last_seen(entry.agent)
            case Subject.PROPERTY:
                value = self._values.get(entry.thing_id, Kind.PROPERTY, field.name)
                address = Address(entry.thing_id, Kind.PROPERTY, field.name)
                return value.value if value is not None and self._may(principal, Operation.READ, address) else None

    def _last_seen(self, agent: str | None) -> str | None:
        seen = None if agent is None else self._presence(agent)
        return None if seen is None else rfc3339(self._clock() if seen.is_online else seen.since)


def _title(entry: Entry) -> str:
    return str(entry.overlay.get("title", entry.td.title))
