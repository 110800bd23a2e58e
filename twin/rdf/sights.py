"""What a caller sees of each Thing, by the rights that trim the descriptions it gets; remembered until they change."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

from things.addresses import Address, is_twin
from things.bounded import Bounded
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.records import DirectoryChange, Entry
from things.twin_td import SHOWN_BY, shows
from twin.directory import DirectoryStore
from twin.rdf.parts import Share, spelled

MAX_CALLERS = 16
"""Whose sights are remembered."""
_TURN_S = 0.002
"""Of deciding before others have a turn in the loop."""

_Sight = Share | tuple[str, ...]


class Decision(Protocol):
    @property
    def allowed(self) -> bool: ...


class Rights(Protocol):
    """The decision function, as far as it is asked here; `runtime.ports.Authorizer` has it all."""

    version: int

    @property
    def is_conditional(self) -> bool: ...
    def is_uniform(self, principal: Principal, thing_id: str) -> bool: ...
    def decide(self, principal: Principal, operation: Operation, address: Address) -> Decision: ...


@dataclass(slots=True)
class _Remembered:
    version: int
    """Of the rights."""
    of_things: dict[str, _Sight] = field(default_factory=dict)
    told: dict[str, JSONValue] | None = None
    """All of them together, until the directory changes."""


class Sights:
    """Sights of all Things, caller by caller."""

    def __init__(self, directory: DirectoryStore, rights: Rights) -> None:
        self._directory = directory
        self._rights = rights
        self._remembered = Bounded[Principal, _Remembered](MAX_CALLERS)
        directory.on_changed(self._changed)

    async def of(self, principal: Principal) -> dict[str, JSONValue]:
        """What the caller sees now, as `twin.rdf.store.IndexStore.seen_by` takes it; Things that are gone or expired
        are seen by nobody."""
        remembered = self._remembered.get(principal)
        if remembered is None or remembered.version != self._rights.version or self._rights.is_conditional:
            remembered = _Remembered(self._rights.version)
            self._remembered[principal] = remembered
        if remembered.told is not None and not self._directory.ending():
            return remembered.told
        change = self._directory.last_change
        begun, found = perf_counter(), remembered.of_things
        twins, entries = dict[str, _Sight](), dict[str, _Sight]()
        for thing_id in self._directory.ids():
            if perf_counter() - begun > _TURN_S:
                await asyncio.sleep(0)
                begun = perf_counter()
            entry = self._directory.get(thing_id)
            if entry is None:
                continue
            sight = found.get(thing_id)
            if sight is None:
                sight = found[thing_id] = self._sight(principal, entry)
            (entries if entry.agent is None else twins)[thing_id] = sight
        told = _told(twins, entries)
        if change == self._directory.last_change:
            remembered.told = told
        return told

    def _changed(self, change: DirectoryChange, before: Entry | None, after: Entry | None) -> None:
        for remembered in self._remembered.values():
            remembered.of_things.pop(change.thing_id, None)
            remembered.told = None

    def _sight(self, principal: Principal, entry: Entry) -> _Sight:
        thing_id = entry.thing_id
        whole = Address(thing_id)
        if not self._may(principal, Operation.READ, whole):
            return Share.NOTHING
        if entry.agent is None or not is_twin(thing_id):
            return Share.WHOLE
        if self._rights.is_uniform(principal, thing_id):
            seen = Share.THING
            if any(self._may(principal, operation, whole) for operation in (Operation.READ, Operation.OBSERVE)):
                seen |= Share.PROPERTIES | Share.READ_ONLY
            if self._may(principal, Operation.WRITE_PROPERTY, whole):
                seen |= Share.PROPERTIES | Share.WRITE_ONLY
            if self._may(principal, Operation.INVOKE_ACTION, whole):
                seen |= Share.ACTIONS
            if self._may(principal, Operation.SUBSCRIBE, whole):
                seen |= Share.EVENTS
            return seen
        return self._listed(principal, entry)

    def _listed(self, principal: Principal, entry: Entry) -> tuple[str, ...]:
        td, names = entry.td, [spelled(None)]
        for affordance in (*td.properties.values(), *td.actions.values(), *td.events.values()):
            kind, name = affordance.kind, affordance.name
            address = Address(entry.thing_id, kind, name)
            if shows(affordance.definition, {each for each in SHOWN_BY[kind] if self._may(principal, each, address)}):
                names.append(spelled((kind, name)))
        return tuple(names)

    def _may(self, principal: Principal, operation: Operation, address: Address) -> bool:
        return self._rights.decide(principal, operation, address).allowed


def _told(twins: Mapping[str, _Sight], entries: Mapping[str, _Sight]) -> dict[str, JSONValue]:
    """What most Things show, and what others do."""
    usual = _most(twins, Share.NOTHING)
    usual_entry = _most(entries, Share.WHOLE)
    others: dict[str, JSONValue] = {}
    for thing_id, sight in (*twins.items(), *entries.items()):
        if sight != (usual if thing_id in twins else usual_entry):
            others[thing_id] = sight.value if isinstance(sight, Share) else list(sight)
    return {"usual": usual.value, "entries": usual_entry is not Share.NOTHING, "others": others}


def _most(sights: Mapping[str, _Sight], default: Share) -> Share:
    counted = Counter(sight for sight in sights.values() if isinstance(sight, Share))
    return counted.most_common(1)[0][0] if counted else default
