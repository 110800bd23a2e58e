"""How the twin's services are made: methods with a schema each, from which the service's own TD follows.

A caller needs for a method what its `requirement` says, which is asked before anything is carried out.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from things.addresses import Address, Kind
from things.errors import UnknownName
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.schemas import DataSchema
from things.vocabulary import ServiceType

TEXT = {"type": "string", "minLength": 1, "maxLength": 512}
TEXTS = {"type": "array", "items": TEXT, "maxItems": 10_000}
TIME = {"type": "string", "format": "date-time"}
OBJECT = {"type": "object"}

Given = Mapping[str, Any]
Carry = Callable[[Any, Given, Principal], Awaitable[JSONValue]]
Need = Callable[[Given], tuple[Operation, Address]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: what it needs, what carries it out, and what its input may be."""

    title: str
    needs: Need
    carry: Carry
    schema: DataSchema
    is_safe: bool

    @property
    def action(self) -> dict[str, Any]:
        """The method as its TD describes it."""
        action = {"title": self.title, "input": self.schema.definition, "output": OBJECT}
        return action | ({"safe": True, "idempotent": True} if self.is_safe else {})


def method(
    title: str, needs: Need, carry: Carry, members: Given, required: Sequence[str] = (), *, is_safe: bool = True
) -> Method:
    """A method whose input has these members; unknown ones are refused."""
    definition = {
        "type": "object",
        "properties": dict(members),
        "required": list(required),
        "additionalProperties": False,
    }
    return Method(title=title, needs=needs, carry=carry, schema=DataSchema(definition), is_safe=is_safe)


class Service:
    """What the services share: their methods make their TD, and a method's schema guards its input."""

    thing_id: ClassVar[str]
    service_type: ClassVar[ServiceType]
    title: ClassVar[str]
    methods: ClassVar[Mapping[str, Method]]

    def __init__(self) -> None:
        self.td: dict[str, Any] = {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
            "@type": [ServiceType.SERVICE.value, self.service_type.value],
            "title": self.title,
            "actions": {name: method.action for name, method in self.methods.items()},
        }

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method with this input amounts to, for the decision. Raises UnknownName, Invalid."""
        given = {} if data is None else data
        method = self._method(name)
        method.schema.check(given, f"input of {name}")
        assert isinstance(given, dict)
        return method.needs(given)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; the input is what `requirement` was asked about. Raises SkepError."""
        given = {} if data is None else data
        assert isinstance(given, dict)
        return await self._method(name).carry(self, given, principal)

    def _method(self, name: str) -> Method:
        method = self.methods.get(name)
        if method is None:
            raise UnknownName(self.thing_id, Kind.ACTION, name)
        return method


def on_thing(operation: Operation) -> Need:
    """The method amounts to this operation on the Thing it names."""
    return lambda given: (operation, Address(given["thingID"]))
