"""Methods of a built-in service: one table makes its Thing Description and checks its inputs."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from things.addresses import Address, Kind
from things.errors import Invalid, Problem, UnknownName
from things.identity import Principal
from things.messages import JSONValue, Operation

_ACRONYMS = {"Id": "ID", "Td": "TD"}


def wire_name(name: str) -> str:
    """A member's name on the wire: camelCase, with ID and TD in capitals."""
    text = to_camel(name)
    for ending, capitals in _ACRONYMS.items():
        if text.endswith(ending) and text != ending.lower():
            text = text.removesuffix(ending) + capitals
    return text


class Input(BaseModel):
    """The input of a method; unknown members are refused, since a misspelt one would silently do less."""

    model_config = ConfigDict(extra="forbid", alias_generator=wire_name, frozen=True)


class Nothing(Input):
    """No input, or an empty object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method: `run` gets the checked input and who calls."""

    name: str
    title: str
    input: type[Input]
    run: Callable[[Any, Principal], Coroutine[Any, Any, JSONValue]]
    safe: bool = False
    """It changes nothing."""


class Methods:
    """The methods of one service."""

    def __init__(self, thing_id: str, methods: Sequence[Method]) -> None:
        self._thing_id = thing_id
        self._by_name = {method.name: method for method in methods}

    def get(self, name: str) -> Method:
        """The method, or UnknownName."""
        method = self._by_name.get(name)
        if method is None:
            raise UnknownName(self._thing_id, Kind.ACTION, name[:128])
        return method

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Check the input and run the method. Raises UnknownName, Invalid, and what the method raises."""
        method = self.get(name)
        return await method.run(_checked(method.input, data), principal)

    def td(self, *, type_: str, title: str, description: str) -> dict[str, Any]:
        """The service as a Thing; forms and security are the directory's to add."""
        return {
            "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
            "@type": type_,
            "title": title,
            "description": description,
            "actions": {
                name: {"title": method.title, "safe": method.safe, "idempotent": method.safe}
                | ({} if method.input is Nothing else {"input": _schema(method.input)})
                for name, method in self._by_name.items()
            },
        }


class MethodService:
    """A built-in service made of methods that all amount to one operation on it: `thing_id`, its `td`, and calls."""

    def __init__(
        self,
        thing_id: str,
        operation: Operation,
        methods: Sequence[Method],
        *,
        type_: str,
        title: str,
        description: str,
    ) -> None:
        self.thing_id = thing_id
        self._operation = operation
        self._methods = Methods(thing_id, methods)
        self.td: dict[str, Any] = self._methods.td(type_=type_, title=title, description=description)

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method amounts to. Raises UnknownName."""
        return self._operation, Address(self.thing_id, Kind.ACTION, self._methods.get(name).name)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; the caller's right to has been decided. Raises SkepError."""
        return await self._methods.call(name, data, principal)


def _checked(model: type[Input], data: JSONValue) -> Input:
    try:
        return model.model_validate({} if data is None else data)
    except ValidationError as error:
        problems = [
            Problem(pointer="".join(f"/{part}" for part in one["loc"]), detail=one["msg"].removeprefix("Value error, "))
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise Invalid(f"{problems[0].pointer or 'input'}: {problems[0].detail}", problems) from error


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
        if key not in {"title", "description", "additionalProperties"}
    }
