"""The built-in service of latest values: one implementation behind every binding.

What is hidden from the caller looks unknown; a Thing's presence is shown like properties of its own.
"""

from collections.abc import Callable, Mapping

from things.addresses import Address, Kind, is_twin
from things.errors import NotFound, UnknownName, UnknownThing
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Method, MethodService, on_thing
from things.records import Value
from things.service_ids import VALUES
from things.times import rfc3339
from things.vocabulary import ServiceType
from twin.directory import DirectoryStore
from twin.inputs import OneThing, ReadValue
from twin.search import May
from twin.values import LatestValues

PresenceValues = Callable[[str], Mapping[str, JSONValue]]
"""`online` and `lastSeen` of a Thing, by the property names under which they are shown."""


class ValuesService(MethodService):
    """Latest values of properties and events."""

    def __init__(
        self,
        directory: DirectoryStore,
        values: LatestValues,
        may: May,
        *,
        presence: PresenceValues = lambda thing_id: {},
        clock: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._values = values
        self._may = may
        self._presence = presence
        self._clock = clock
        reads = on_thing(Operation.READ)
        super().__init__(
            VALUES,
            Operation.READ,
            [
                Method(
                    name="readProperty",
                    title="Read the latest value of a property",
                    input=ReadValue,
                    run=self._property,
                    needs=lambda given: (Operation.READ, Address(given.thing_id, Kind.PROPERTY, given.name)),
                    safe=True,
                ),
                Method(
                    name="readProperties",
                    title="Read the latest values of all properties of a Thing",
                    input=OneThing,
                    run=self._properties,
                    needs=reads,
                    safe=True,
                ),
                Method(
                    name="readEvent",
                    title="Read the latest event of a name",
                    input=ReadValue,
                    run=self._event,
                    needs=lambda given: (Operation.READ, Address(given.thing_id, Kind.EVENT, given.name)),
                    safe=True,
                ),
                Method(
                    name="readEvents",
                    title="Read the latest event of every name of a Thing",
                    input=OneThing,
                    run=self._events,
                    needs=reads,
                    safe=True,
                ),
            ],
            type_=ServiceType.VALUES_SERVICE,
            title="Latest values",
            description="The latest value of every property and event, as far as the caller may see.",
        )

    async def _one(self, kind: Kind, given: ReadValue) -> JSONValue:
        thing_id, name = given.thing_id, given.name
        entry = self._directory.get(thing_id)
        if entry is None:
            raise UnknownThing(thing_id)
        value = self._values.get(thing_id, kind, name)
        if kind is Kind.PROPERTY and name in entry.td.write_only:
            value = None  # published before it became write-only, and as good as never
        if value is None and kind is Kind.PROPERTY and name in (told := self._presence(thing_id)):
            return self._shown(told[name])
        if value is None:
            if entry.td.affordance(kind, name) is None:
                raise UnknownName(thing_id, kind, name)
            raise NotFound(f"{kind.value} {name!r} has no value yet")
        return _value_document(value)

    async def _all(self, kind: Kind, given: OneThing, principal: Principal) -> JSONValue:
        thing_id = given.thing_id
        if self._directory.get(thing_id) is None:
            raise UnknownThing(thing_id)
        if not is_twin(thing_id):
            raise NotFound(f"{thing_id} is described here and lives elsewhere: see the forms of its description")
        found = {
            name: _value_document(value)
            for (of_kind, name), value in self._values.of_thing(thing_id).items()
            if of_kind is kind
        }
        if kind is Kind.PROPERTY:
            found = {name: self._shown(value) for name, value in self._presence(thing_id).items()} | found
        return {
            name: document
            for name, document in found.items()
            if self._may(principal, Operation.READ, Address(thing_id, kind, name))
        }

    def _shown(self, value: JSONValue) -> dict[str, JSONValue]:
        """A value that is worked out when it is read, and so has no row."""
        now = rfc3339(self._clock())
        return {"value": value, "created": now, "received": now, "rowID": 0, "quality": 0}

    async def _property(self, given: ReadValue, principal: Principal) -> JSONValue:
        return await self._one(Kind.PROPERTY, given)

    async def _properties(self, given: OneThing, principal: Principal) -> JSONValue:
        return await self._all(Kind.PROPERTY, given, principal)

    async def _event(self, given: ReadValue, principal: Principal) -> JSONValue:
        return await self._one(Kind.EVENT, given)

    async def _events(self, given: OneThing, principal: Principal) -> JSONValue:
        return await self._all(Kind.EVENT, given, principal)


def _value_document(value: Value) -> dict[str, JSONValue]:
    return {
        "value": value.value,
        "created": rfc3339(value.created),
        "received": rfc3339(value.received),
        "rowID": value.row_id,
        "quality": value.quality,
    }
