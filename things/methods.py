"""Built-in services: one table of methods makes a service's Thing Description and checks its input.

An input is a model: its JSON schema stands in the TD, and what does not fit is refused with a pointer to each fault.
Nothing is converted but what JSON cannot say (times, members of an enum).
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

from things.addresses import Address, Kind
from things.errors import Invalid, UnknownName
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.parsing import invalid
from things.records import MAX_COUNTER
from things.times import parse_time
from things.vocabulary import ServiceType

_ACRONYMS = {"Id": "ID", "Td": "TD"}


def wire_name(name: str) -> str:
    """A member's name on the wire: camelCase, with ID and TD in capitals."""
    text = to_camel(name)
    for ending, capitals in _ACRONYMS.items():
        if text.endswith(ending) and text != ending.lower():
            text = text.removesuffix(ending) + capitals
    return text


class Input(BaseModel):
    """The input of a method; unknown members are refused, since a misspelt one would silently do less, and nothing is
    taken for what it resembles: `"5"` is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=wire_name, frozen=True)


class Nothing(Input):
    """No input, or an empty object."""


def _instant(text: Any) -> int:
    if not isinstance(text, str):
        raise ValueError("a time is text such as 2026-01-31T12:00:00Z")
    try:
        return parse_time(text)
    except Invalid as error:
        raise ValueError(error.detail) from error


Text = Annotated[str, Field(min_length=1, max_length=512)]
Counter = Annotated[int, Field(ge=0, le=MAX_COUNTER)]
Instant = Annotated[int, BeforeValidator(_instant), WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339 on the wire, µs UTC inside."""

Needs = Callable[[Any], tuple[Operation, Address]]
"""What a call with this input amounts to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: `run` gets the checked input and who calls."""

    name: str
    title: str
    input: type[Input]
    run: Callable[[Any, Principal], Coroutine[Any, Any, JSONValue]]
    safe: bool = False
    """It changes nothing."""
    output: bool = True
    """It answers with an object."""
    needs: Needs | None = None
    """The right that a caller needs, if it depends on the input; otherwise it is that to the service's operation."""

    @property
    def action(self) -> dict[str, Any]:
        """The method as the TD of its service describes it."""
        action: dict[str, Any] = {"title": self.title, "safe": self.safe, "idempotent": self.safe}
        if self.input is not Nothing:
            action["input"] = _schema(self.input)
        return action | ({"output": {"type": "object"}} if self.output else {})


class MethodService:
    """A built-in service: a Thing whose actions are methods."""

    def __init__(
        self,
        thing_id: str,
        operation: Operation,
        methods: Sequence[Method],
        *,
        type_: ServiceType,
        title: str,
        description: str,
    ) -> None:
        """`operation` is what a call amounts to, unless its method says otherwise."""
        self.thing_id = thing_id
        self.td: dict[str, Any] = {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
            "@type": [ServiceType.SERVICE.value, type_.value],
            "title": title,
            "description": description,
            "actions": {method.name: method.action for method in methods},
        }
        self._operation = operation
        # The validator itself: `model_validate` takes twice as long for a small input.
        self._methods = {one.name: (one, TypeAdapter(one.input).validator.validate_python) for one in methods}
        self._judged: tuple[str, JSONValue, Input] | None = None
        """The input about which `requirement` was asked last: it is checked once, and carried out as it was judged."""

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method with this input amounts to. Raises UnknownName, and Invalid where that depends on
        the input."""
        method, validate = self._method(name)
        if method.needs is None:
            return self._operation, Address(self.thing_id, Kind.ACTION, name)
        given = _checked(validate, data)
        self._judged = name, data, given
        return method.needs(given)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; the caller's right to has been decided. Raises UnknownName, Invalid, and what the method
        raises."""
        method, validate = self._method(name)
        judged, self._judged = self._judged, None
        if judged is not None and judged[0] == name and judged[1] is data:
            return await method.run(judged[2], principal)
        return await method.run(_checked(validate, data), principal)

    def _method(self, name: str) -> tuple[Method, Callable[[Any], Any]]:
        found = self._methods.get(name)
        if found is None:
            raise UnknownName(self.thing_id, Kind.ACTION, name[:128])
        return found


def on_thing(operation: Operation) -> Needs:
    """The method amounts to this operation on the Thing it names."""
    return lambda given: (operation, Address(given.thing_id))


def on_service(operation: Operation, thing_id: str) -> Needs:
    """The method amounts to this operation on its service as a whole."""
    needed = operation, Address(thing_id)
    return lambda _given: needed


def _checked(validate: Callable[[Any], Any], data: JSONValue) -> Input:
    given = {} if data is None else data
    try:
        checked: Input = validate(given)
    except ValidationError as error:
        raise invalid(error, given) from error
    return checked


@cache
def _schema(model: type[Input]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True)
    # A TD's data schema stands alone: what pydantic keeps under $defs goes where it is named.
    whole = _inlined(schema, schema.pop("$defs", {}))
    plain: dict[str, Any] = _without_titles(whole)
    return plain | {"type": "object"}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inlined(member, definitions) for member in schema]
    if not isinstance(schema, dict):
        return schema
    named = schema.get("$ref")
    if isinstance(named, str):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined({**definitions[named.rpartition("/")[2]], **rest}, definitions)
    return {key: _inlined(value, definitions) for key, value in schema.items()}


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(member) for name, member in value.items()}
        if key == "properties"
        else _without_titles(value)
        for key, value in schema.items()
        if key not in {"title", "description"}
    }
