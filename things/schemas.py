"""Data schemas: the part of JSON Schema that Thing Descriptions use, compiled and safe to run on anybody's behalf.

Only the keywords listed here count; other terms (`unit`, `forms`, a vendor's) say nothing about validity. Nothing is
ever fetched: a schema stands alone, so references are refused. Patterns run on an engine that takes linear time and
are bounded in length and compiled size, so no pattern and no value can hold the loop.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

from things.errors import Invalid, Problem
from things.messages import JSONValue
from things.pointers import pointer

MAX_PATTERN_CHARS = 1_024
MAX_PATTERN_BYTES = 131_072
"""Memory one compiled pattern may take: `(x{1000}){1000}` is refused, `[A-Za-z0-9._-]{1,255}` is not."""
PATTERN_SCHEMAS = 128
"""Schemas with patterns that are kept compiled; the others are compiled again when asked."""
MAX_PATTERNS = 50
"""Patterns in one Thing Description."""
MAX_PROBLEMS = 50
"""Problems listed for one value; no reader wants more."""

REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

# fmt: off
_PLAIN = frozenset({
    "type", "const", "enum", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "contentEncoding", "contentMediaType", "minItems", "maxItems", "uniqueItems",
    "minProperties", "maxProperties", "required",
})
# fmt: on
_SCHEMA = frozenset({"not", "additionalProperties", "propertyNames", "contains"})
_SCHEMAS = frozenset({"oneOf", "anyOf", "allOf"})
_NAMED = frozenset({"properties", "patternProperties"})

_PATTERNS = jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES)


class DataSchema:
    """One data schema of a Thing Description; compiled when first used.

    A schema that does not compile never gets this far: `things.td_rules` refuses its Thing Description.
    """

    __slots__ = ("__weakref__", "_has_pattern", "_validator", "definition")

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self.definition = definition
        self._validator: jsonschema_rs.Validator | None = None
        self._has_pattern = False

    def is_valid(self, value: JSONValue) -> bool:
        """Whether `value` fits."""
        return (self._validator or self._compiled()).is_valid(value)

    def check(self, value: JSONValue, what: str = "value") -> None:
        """Raises Invalid with every problem, pointers being relative to `value`; `what` names it in the sentence."""
        # The native validator answers a plain number in about 0.1 µs, less than any check written in Python.
        if (self._validator or self._compiled()).is_valid(value):
            return
        problems = self.problems(value)
        first = problems[0]
        raise Invalid(f"{what}{' at ' + first.pointer if first.pointer else ''}: {first.detail}", problems)

    def problems(self, value: JSONValue) -> list[Problem]:
        """Everything that is wrong with `value`, at most MAX_PROBLEMS."""
        found = []
        for error in (self._validator or self._compiled()).iter_errors(value):
            found.append(Problem(pointer=pointer(*error.instance_path), detail=_shortened(error.message)))
            if len(found) == MAX_PROBLEMS:
                break
        return found

    def _compiled(self) -> jsonschema_rs.Validator:
        if self._has_pattern:
            return _with_pattern(self)
        if _holds_pattern(self.definition):
            # A compiled pattern may be large, and an agent may send thousands: only so many are kept.
            self._has_pattern = True
            return _with_pattern(self)
        self._validator = compiled(self.definition)
        return self._validator


@lru_cache(maxsize=PATTERN_SCHEMAS)
def _with_pattern(schema: DataSchema) -> jsonschema_rs.Validator:
    return compiled(schema.definition)


def compiled(definition: Mapping[str, Any]) -> jsonschema_rs.Validator:
    """A validator for the keywords that count in `definition`; raises Invalid if they make no schema."""
    try:
        return jsonschema_rs.Draft7Validator(_projected(definition), pattern_options=_PATTERNS, offline=True)
    except ValueError as error:
        raise Invalid(_shortened(str(getattr(error, "message", error)))) from error


@lru_cache(maxsize=256)
def pattern_fault(text: str) -> str | None:
    """Why `text` cannot be a pattern here, or None if it can."""
    if len(text) > MAX_PATTERN_CHARS:
        return f"is longer than {MAX_PATTERN_CHARS} characters"
    try:
        jsonschema_rs.Draft7Validator({"pattern": text}, pattern_options=_PATTERNS, offline=True)
    except ValueError:
        return (
            "is not a pattern this runtime can run in linear time (no look-around, no back-references, bounded repeats)"
        )
    return None


def value_type(definition: Mapping[str, Any]) -> str | None:
    """The JSON type of the values of a schema: declared, or evident from `const` or `enum`; None if it is open."""
    declared = definition.get("type")
    if isinstance(declared, str):
        return declared
    values = [definition["const"]] if "const" in definition else definition.get("enum")
    kinds = {_json_type(value) for value in values} if isinstance(values, list) else set()
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else None


def _holds_pattern(value: Any) -> bool:
    if isinstance(value, dict):
        return not value.keys().isdisjoint(("pattern", "patternProperties")) or any(map(_holds_pattern, value.values()))
    return isinstance(value, list) and any(map(_holds_pattern, value))


def _projected(schema: Any) -> Any:
    return dict(_kept(schema)) if isinstance(schema, Mapping) else schema


def _kept(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _PLAIN:
            yield key, value
        elif key in _SCHEMA:
            yield key, _projected(value)
        elif key in _SCHEMAS:
            yield key, [_projected(item) for item in value] if isinstance(value, list) else value
        elif key in _NAMED:
            yield key, {name: _projected(item) for name, item in value.items()} if isinstance(value, dict) else value
        elif key == "items":
            yield key, [_projected(item) for item in value] if isinstance(value, list) else _projected(value)
        elif key in REFERENCES:
            raise Invalid(f"{key} is refused: a data schema stands alone")


def _json_type(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _shortened(text: str, limit: int = 200) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
