"""The Thing Description as the runtime uses it: read once, kept verbatim, asked many times.

A `ThingDescription` holds the text it was made from; unknown terms, their order and every string survive. What is
derived from the text (the document, affordances, compiled validators) is made when asked for and kept for the Things
used most recently, so that a directory of many thousands costs little more than their text.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pydantic_core import from_json

from things.addresses import Kind
from things.durations import td_seconds
from things.errors import Invalid, Malformed, Problem, TDInvalid, UnknownName
from things.jsontext import decode, decode_unique, encode
from things.messages import JSONValue
from things.schemas import DataSchema, value_type
from things.td_rules import problems_of

MAX_TD_BYTES = 262_144
MAX_TD_DEPTH = 32
OPEN_TDS = 3_072
"""How many Things' documents and validators are kept ready; the others are read again from their text when asked."""

RANGED_TYPES = frozenset({"number", "integer", "string"})
"""A published value of these types may lie outside its bounds: it is stored and flagged. Booleans have no range, and
what is wrong inside an object or array is a matter of its shape, for which it is refused."""

_PLURALS = {Kind.PROPERTY: "properties", Kind.ACTION: "actions", Kind.EVENT: "events"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Affordance:
    """One property, action or event. `schema_validator` checks what is published, written or given as input: the
    property's value, the event's data, the action's input; None where the TD declares none."""

    kind: Kind
    name: str
    definition: Mapping[str, Any]
    schema_validator: DataSchema | None
    output_validator: DataSchema | None = None
    """Of an action's output."""

    @property
    def title(self) -> str:
        """The title, else the name."""
        title = self.definition.get("title")
        return title if isinstance(title, str) else self.name

    @property
    def is_read_only(self) -> bool:
        return self.definition.get("readOnly") is True

    @property
    def is_write_only(self) -> bool:
        return self.definition.get("writeOnly") is True


class ThingDescription:
    """A valid Thing Description. Immutable: never change what `document` returns."""

    __slots__ = ("__weakref__", "_write_only", "text", "title", "types")

    text: bytes
    """The JSON text, as it came."""
    title: str
    types: tuple[str, ...]
    """The `@type` terms of the Thing."""

    def __init__(self, text: bytes, document: Mapping[str, Any]) -> None:
        """Use `parse` or `of`; this trusts that `document` is valid and what `text` says."""
        self.text = text
        self.title = document["title"]
        self.types = _types(document.get("@type"))
        self._write_only: frozenset[str] | None = None

    @classmethod
    def parse(cls, text: bytes | str, *, agent: bool = False) -> "ThingDescription":
        """Read a TD 1.1 or 1.0. Raises TooLarge, TooDeep, Malformed (also for repeated keys), or TDInvalid with every
        problem.

        The standard's mandatory members are `@context`, `title`, `security`, `securityDefinitions` and forms on every
        affordance. With `agent=True` forms and security may be missing: an agent that publishes to this runtime runs
        no server of its own, and its consumers get the runtime's forms and security in any case. What is there must be
        right nevertheless. Directory registrations are read strictly (`agent=False`).
        """
        raw = text if isinstance(text, bytes) else _encoded(text)
        return cls._checked(raw, decode_unique(raw, max_bytes=MAX_TD_BYTES, max_depth=MAX_TD_DEPTH), agent)

    @classmethod
    def of(cls, document: Mapping[str, Any], *, agent: bool = False) -> "ThingDescription":
        """The TD that `document` is; checked like `parse`."""
        raw = encode(document)  # in which no key is repeated
        return cls._checked(raw, decode(raw, max_bytes=MAX_TD_BYTES, max_depth=MAX_TD_DEPTH), agent)

    @classmethod
    def _checked(cls, raw: bytes, document: object, agent: bool) -> "ThingDescription":
        problems = problems_of(document, agent=agent)
        if problems or not isinstance(document, dict):
            raise TDInvalid(problems)
        return cls(raw, document)

    @property
    def document(self) -> dict[str, Any]:
        """The TD as it was written, order and unknown terms kept. Read only."""
        return _opened(self).document

    @property
    def id(self) -> str | None:
        """The TD's own id; agents' Things are known by another one."""
        id_ = self.document.get("id")
        return id_ if isinstance(id_, str) else None

    @property
    def properties(self) -> Mapping[str, Affordance]:
        return _opened(self).affordances[Kind.PROPERTY]

    @property
    def actions(self) -> Mapping[str, Affordance]:
        return _opened(self).affordances[Kind.ACTION]

    @property
    def events(self) -> Mapping[str, Affordance]:
        return _opened(self).affordances[Kind.EVENT]

    def affordance(self, kind: Kind, name: str) -> Affordance | None:
        """The affordance, or None if the Thing has none of that kind and name."""
        of_kind = _opened(self).affordances.get(kind)
        return of_kind.get(name) if of_kind is not None else None

    def names(self, kind: Kind) -> Collection[str]:
        """The names of all its affordances of a kind."""
        return _opened(self).affordances[kind].keys()

    @property
    def write_only(self) -> frozenset[str]:
        """The names of the properties of which no value is read (TD 1.1, 5.3.2.1)."""
        if self._write_only is None:
            # Most have none and need not be opened for that; the word could only be spelled otherwise by escapes.
            may_have = b"writeOnly" in self.text or b"\\u" in self.text
            affordances = self.properties.items() if may_have else ()
            self._write_only = frozenset(name for name, affordance in affordances if affordance.is_write_only)
        return self._write_only

    def check_event(self, name: str, value: JSONValue) -> bool:
        """Raises Invalid if `value` is not what the event's `data` says. False: the TD does not declare the event, so
        nothing could be checked."""
        return self._check_published(Kind.EVENT, name, value)

    def check_property(self, name: str, value: JSONValue) -> bool:
        """Raises Invalid if a published `value` breaks the property's schema. False: the TD does not declare it."""
        return self._check_published(Kind.PROPERTY, name, value)

    def check_published(self, kind: Kind, name: str, value: JSONValue) -> bool:
        """Raises Invalid if `value` is not of the type, or not of the shape, that the TD declares, or the property is
        write-only (TD 1.1, 5.3.2.1: no value of it is read). A number or text outside its bounds passes: it is true all
        the same, and whoever stores it flags it. False as above."""
        affordance = self.affordance(kind, name)
        if affordance is not None and affordance.is_write_only:
            problem = Problem(pointer="", detail="the property is write-only", code="write-only")
            raise Invalid(f"property {name!r} is write-only: its values are not published", (problem,))
        try:
            return self._check_published(kind, name, value)
        except Invalid:
            if not _fits_type(value, self.value_type(kind, name)):
                raise
            return True

    def check_property_write(self, name: str, value: JSONValue) -> None:
        """Raises UnknownName, or Invalid if the property is read-only or `value` breaks its schema."""
        affordance = self._known(Kind.PROPERTY, name)
        if affordance.is_read_only:
            problem = Problem(pointer="", detail="the property is read-only", code="read-only")
            raise Invalid(f"property {name!r} is read-only", (problem,))
        if affordance.schema_validator is not None:
            affordance.schema_validator.check(value, f"property {name!r}")

    def check_action_input(self, name: str, value: JSONValue, has_data: bool = True) -> None:
        """Raises UnknownName, or Invalid if the input breaks the action's `input` schema.

        Without data (`has_data` False) the schema must be one that can do without: none at all, one with a default, one
        that takes null, or an object that requires nothing. An action without `input` takes any.
        """
        schema = self._known(Kind.ACTION, name).schema_validator
        if schema is None:
            return
        if has_data:
            schema.check(value, f"input of action {name!r}")
        elif not ("default" in schema.definition or schema.is_valid(None) or schema.is_valid({})):
            raise Invalid(
                f"action {name!r} needs an input", (Problem(pointer="", detail="an input is needed", code="missing"),)
            )

    def skep_expires_s(self, name: str, kind: Kind = Kind.ACTION) -> float | None:
        """How long a request for the action (or a write of the property) may wait for its agent (`skep:expires`):
        None leaves it to configuration, 0 means that it is never queued."""
        return self._seconds(kind, name, "skep:expires")

    def skep_deadline_s(self, name: str, kind: Kind = Kind.ACTION) -> float | None:
        """How long the agent may take from delivery or from its last word (`skep:deadline`); None if not said."""
        return self._seconds(kind, name, "skep:deadline")

    def skep_interval_s(self, name: str, kind: Kind = Kind.PROPERTY) -> float | None:
        """How often the agent means to publish (`skep:interval`); None if not said."""
        return self._seconds(kind, name, "skep:interval")

    def unit(self, kind: Kind, name: str) -> str | None:
        """The unit of the property's value, event's data or action's input."""
        unit = self._schema(kind, name).get("unit")
        return unit if isinstance(unit, str) else None

    def value_type(self, kind: Kind, name: str) -> str | None:
        """The JSON type of the property's value, event's data or action's input; None if it is left open."""
        return value_type(self._schema(kind, name))

    def __repr__(self) -> str:
        return f"<ThingDescription {self.title!r}>"

    def _known(self, kind: Kind, name: str) -> Affordance:
        affordance = self.affordance(kind, name)
        if affordance is None:
            raise UnknownName(self.title, kind, name)
        return affordance

    def _check_published(self, kind: Kind, name: str, value: JSONValue) -> bool:
        affordance = self.affordance(kind, name)
        if affordance is None:
            return False
        if affordance.schema_validator is not None:
            affordance.schema_validator.check(value, f"{kind} {name!r}")
        return True

    def _seconds(self, kind: Kind, name: str, term: str) -> float | None:
        affordance = self.affordance(kind, name)
        if affordance is None or term not in affordance.definition:
            return None
        return td_seconds(affordance.definition[term])

    def _schema(self, kind: Kind, name: str) -> Mapping[str, Any]:
        affordance = self.affordance(kind, name)
        if affordance is None or affordance.schema_validator is None:
            return {}
        return affordance.schema_validator.definition


@dataclass(frozen=True, slots=True)
class _Opened:
    document: dict[str, Any]
    affordances: Mapping[Kind, Mapping[str, Affordance]]


@lru_cache(maxsize=OPEN_TDS)
def _opened(td: ThingDescription) -> _Opened:
    document = from_json(td.text)
    return _Opened(
        document,
        {
            kind: MappingProxyType(
                {name: _affordance(kind, name, definition) for name, definition in document.get(plural, {}).items()}
            )
            for kind, plural in _PLURALS.items()
        },
    )


def _affordance(kind: Kind, name: str, definition: dict[str, Any]) -> Affordance:
    schema: DataSchema | None
    output: DataSchema | None = None
    match kind:
        case Kind.PROPERTY:
            schema = DataSchema(definition)
        case Kind.ACTION:
            schema = DataSchema(definition["input"]) if "input" in definition else None
            output = DataSchema(definition["output"]) if "output" in definition else None
        case _:
            schema = DataSchema(definition["data"]) if "data" in definition else None
    return Affordance(kind=kind, name=name, definition=definition, schema_validator=schema, output_validator=output)


def _types(term: object) -> tuple[str, ...]:
    if isinstance(term, str):
        return (term,)
    return tuple(item for item in term if isinstance(item, str)) if isinstance(term, list) else ()


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Malformed("not valid Unicode text: half of a surrogate pair") from error


def _fits_type(value: object, type_: str | None) -> bool:
    match type_:
        case "number" | "integer":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case _:
            return False  # not one of RANGED_TYPES
