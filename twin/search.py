"""Finding Things by filter: indexes that narrow the search, then every comparison checked.

The indexes follow the directory by type, title and agent, and the latest values by the names of properties; whether an
agent is online is asked when a search runs. What the caller may not read is null to its filter, so that nothing hidden
can be guessed from what is found.
"""

import asyncio
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, assert_never

from things.addresses import Address, Kind
from things.filters import And, Comparison, Field, Filter, Not, Operator, Or, Subject, holds, matches
from things.identity import RESERVED_ACCOUNTS, Principal
from things.messages import JSONValue, Operation
from things.records import DirectoryChange, Entry
from things.times import rfc3339
from twin.directory import DirectoryStore
from twin.titles import Titles
from twin.values import LatestValues

May = Callable[[Principal, Operation, Address], bool]
"""The decision function, as far as trimming needs it."""


class Seen(Protocol):
    """Whether an agent is reachable, and since when (µs UTC)."""

    @property
    def is_online(self) -> bool: ...
    @property
    def since(self) -> int: ...


_NUMBERS = frozenset({int, float})
_ORDERS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.IS: operator.eq,
    Operator.BELOW: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.ABOVE: operator.gt,
    Operator.AT_LEAST: operator.ge,
}

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
        self._all_titles: Titles | None = None
        for thing_id in directory.ids():
            self._add(directory.get(thing_id))
        directory.on_changed(self._changed)

    async def candidates(self, filter_: Filter, after: str = "") -> Sequence[str]:
        """The ids above `after` among which everything that passes is found, in order."""
        narrowed = await self._narrowed(filter_)
        if narrowed is None:
            return self._directory.ids(after)
        return sorted(thing_id for thing_id in narrowed if thing_id > after)

    def passes(self, filter_: Filter, entry: Entry, principal: Principal) -> bool:
        """Whether a Thing passes, as far as this caller may read it."""
        return matches(filter_, lambda field: self._look_up(field, entry, principal))

    # ------------------------------------------------------------ indexes

    async def _narrowed(self, filter_: Filter) -> Collection[str] | None:
        """The ids that pass, or more; None where no index tells."""
        match filter_:
            case Comparison():
                # Each is a matter of a millisecond or two; others have a turn in between.
                await asyncio.sleep(0)
                return self._indexed(filter_)
            case And(operands):
                narrowed = [found for operand in operands if (found := await self._narrowed(operand)) is not None]
                return min(narrowed, key=len, default=None)
            case Or(operands):
                united: set[str] = set()
                for operand in operands:
                    found = await self._narrowed(operand)
                    if found is None:
                        return None
                    united.update(found)
                return united
            case Not():
                return None
            case _:
                assert_never(filter_)

    def _indexed(self, comparison: Comparison) -> Collection[str] | None:
        wanted, sign = comparison.value, comparison.operator
        if wanted is None or sign is Operator.IS_NOT:
            return None  # true of what has no value at all
        match comparison.field.subject:
            case Subject.AGENT | Subject.ONLINE | Subject.LAST_SEEN:
                return self._of_agents(comparison)
            case Subject.PROPERTY:
                return self._of_values(comparison)
            case Subject.TYPE if isinstance(wanted, str) and sign is Operator.IS:
                return self._types.get(wanted, {})
            case Subject.TYPE if isinstance(wanted, str) and sign is Operator.CONTAINS:
                part = wanted.casefold()
                return set(chain.from_iterable(held for type_, held in self._types.items() if part in type_.casefold()))
            case Subject.TITLE if isinstance(wanted, str) and sign is Operator.IS:
                return self._titles.get(wanted, {})
            case Subject.TITLE if isinstance(wanted, str) and sign is Operator.CONTAINS:
                return list(self._read_titles().containing(wanted))
            case Subject.ID if isinstance(wanted, str) and sign is Operator.IS:
                return (wanted,)
            case _:
                return None

    def _of_agents(self, comparison: Comparison) -> Collection[str]:
        """Things by what is true of their agents."""
        ask: dict[Subject, Callable[[str], JSONValue]] = {
            Subject.AGENT: str,
            Subject.ONLINE: self._is_online,
            Subject.LAST_SEEN: self._last_seen,
        }
        of = ask[comparison.field.subject]
        agents = [agent for agent in self._directory.agents() if holds(comparison, of(agent))]
        return [thing_id for agent in agents for thing_id in self._directory.things_of(agent)]

    def _of_values(self, comparison: Comparison) -> Collection[str]:
        """Things by the latest value of a property, whether the caller may read it or not."""
        found = self._values.of_property(comparison.field.name)
        wanted, order = comparison.value, _ORDERS.get(comparison.operator)
        if isinstance(wanted, int | float) and not isinstance(wanted, bool) and order is not None:
            # Of thousands of numbers, each is one comparison.
            return [thing_id for thing_id, value in found if value.__class__ in _NUMBERS and order(value, wanted)]
        return [thing_id for thing_id, value in found if holds(comparison, value)]

    def _read_titles(self) -> Titles:
        if self._all_titles is None:
            entries = (self._directory.get(thing_id) for thing_id in self._directory.ids())
            self._all_titles = Titles((entry.thing_id, _title(entry)) for entry in entries if entry is not None)
        return self._all_titles

    def _is_online(self, agent: str) -> bool:
        seen = self._presence(agent)
        return agent in RESERVED_ACCOUNTS or (seen is not None and seen.is_online)

    def _changed(self, change: DirectoryChange, before: Entry | None, after: Entry | None) -> None:
        self._drop(before)
        self._add(after)
        self._all_titles = None

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
            yield self._types, _word(type_)

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


@lru_cache(maxsize=1024)
def _word(type_: str) -> str:
    """The type without its prefix. Thousands of Things share a few types."""
    return re.split(r"[:#/]", type_)[-1]


def _title(entry: Entry) -> str:
    return str(entry.overlay.get("title", entry.td.title))
