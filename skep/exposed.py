"""The Things an agent speaks for, and what it may therefore say and handle.

Whatever their descriptions rule out is refused here, where it is written, by the same checks as the runtime's; what
passes may still be refused later, for the runtime decides.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from pydantic_core import PydanticSerializationError

from things.addresses import Kind
from things.errors import Invalid, TooDeep, UnknownName, UnknownThing
from things.jsontext import decode, encode
from things.messages import JSONValue
from things.names import checked_name, checked_thing
from things.td import ThingDescription

_PLAIN = frozenset({int, str, bool, type(None)})


class Exposed:
    """Thing Descriptions by the agent's own Thing ids."""

    def __init__(self) -> None:
        self._tds: dict[str, ThingDescription] = {}

    def add(self, thing: str, td: Mapping[str, Any] | str | bytes) -> None:
        """Raises BadAddress, TDInvalid."""
        text = td if isinstance(td, str | bytes) else encode(dict(td))
        self._tds[checked_thing(thing)] = ThingDescription.parse(text, agent=True)

    def remove(self, thing: str) -> None:
        self._tds.pop(checked_thing(thing), None)

    def get(self, thing: str) -> ThingDescription | None:
        return self._tds.get(thing)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tds)

    def check_published(self, kind: Kind, thing: str, name: str, value: JSONValue, *, undeclared: bool) -> None:
        """Raises UnknownThing for a Thing that is not exposed, UnknownName for a property or event that its description
        lacks (unless `undeclared`), Invalid for a value that does not fit its data schema."""
        td = self._exposed(thing)
        self._declared(kind, td, thing, checked_name(name), undeclared=undeclared)
        try:
            # The schema judges what will be sent: NaN, dates and the like are something else in JSON.
            td.check_published(kind, name, value if _is_json(value) else decode(encode(value)))
        except TooDeep:
            raise
        except Invalid as error:
            raise Invalid(f"Thing {thing!r}: {error.detail}", error.problems) from error
        except PydanticSerializationError as error:
            raise Invalid(f"Thing {thing!r}: {kind} {name!r} has no JSON for its value: {error}") from error

    def check_handled(self, kind: Kind, thing: str, name: str) -> None:
        """Raises UnknownThing, UnknownName, or Invalid for writes to a property that is read-only."""
        td = self._exposed(thing)
        self._declared(kind, td, thing, name)
        if kind is Kind.PROPERTY and td.properties[name].is_read_only:
            raise Invalid(f"Thing {thing!r}: property {name!r} is read-only, so nobody may write it")

    def _exposed(self, thing: str) -> ThingDescription:
        td = self._tds.get(thing)
        if td is None:
            raise UnknownThing(checked_thing(thing), self._tds)
        return td

    def _declared(self, kind: Kind, td: ThingDescription, thing: str, name: str, *, undeclared: bool = False) -> None:
        if not undeclared and td.affordance(kind, name) is None:
            raise UnknownName(thing, kind, name, td.names(kind))


def _is_json(value: object) -> bool:
    """Whether it stays what it is in JSON, by a quick look."""
    return type(value) in _PLAIN or (type(value) is float and isfinite(value))
