"""The rules for data schemas within Thing Descriptions and Thing Models."""

from typing import Any

from things.errors import Invalid
from things.findings import Findings, Path, json_key
from things.schemas import MAX_PATTERNS, REFERENCES, compiled, pattern_fault

JSON_TYPES = ("boolean", "integer", "number", "string", "object", "array", "null")

_TEXTS = ("title", "description", "unit", "format", "contentEncoding", "contentMediaType")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_ORDERED = (("minimum", "maximum"), ("minItems", "maxItems"), ("minLength", "maxLength"))
_FOREIGN_SCHEMAS = frozenset({"not", "anyOf", "allOf", "additionalProperties", "propertyNames", "contains"})
_UNCHECKED = _FOREIGN_SCHEMAS | {"patternProperties", "uniqueItems", "minProperties", "maxProperties"}
"""JSON Schema's keywords that Thing Descriptions do not define but people use: the compiler judges these."""


def check_schema(found: Findings, at: Path, schema: Any) -> None:
    """Note everything wrong with `schema` as a data schema."""
    before = len(found.problems)
    foreign = _check(found, at, schema)
    if foreign and len(found.problems) == before:
        try:
            compiled(schema)
        except Invalid as error:
            found.add(at, f"is no JSON Schema: {error.detail}", "schema")


def check_types(found: Findings, at: Path, members: dict[str, Any]) -> None:
    """`@type`, if there, is text or a list of texts and makes no Thing Model of a Thing Description."""
    if "@type" not in members:
        return
    value = members["@type"]
    if "tm:ThingModel" in found.text_or_texts((*at, "@type"), value):
        found.add((*at, "@type"), "a Thing Description must not be of type tm:ThingModel", "thing-model")


def _check(found: Findings, at: Path, schema: Any, *, is_foreign: bool = False) -> bool:
    """Whether keywords were met that only the compiler can judge. Below such a keyword (`is_foreign`) a schema may be
    true or false, as in JSON Schema."""
    if is_foreign and isinstance(schema, bool):
        return True
    if not isinstance(schema, dict):
        found.add(at, "must be a data schema (an object)", "shape")
        return False
    _check_terms(found, at, schema)
    _check_values(found, at, schema)
    foreign = not _UNCHECKED.isdisjoint(schema)
    for name in ("oneOf", "items", "properties"):
        if name in schema:
            foreign |= _check_nested(found, (*at, name), name, schema[name], is_foreign=is_foreign)
    for name in _FOREIGN_SCHEMAS.intersection(schema) if foreign else ():
        if isinstance(schema[name], dict | list):
            _check_nested(found, (*at, name), name, schema[name], is_foreign=True)
    return foreign


def _check_terms(found: Findings, at: Path, schema: dict[str, Any]) -> None:
    check_types(found, at, schema)
    found.texts(at, schema, _TEXTS)
    found.languages(at, schema, ("titles", "descriptions"))
    found.flags(at, schema, ("readOnly", "writeOnly"))
    if schema.get("readOnly") is True and schema.get("writeOnly") is True:
        found.add(at, "readOnly and writeOnly exclude each other", "contradiction")
    for name in schema:
        if name in REFERENCES:
            found.add((*at, name), "references are refused: a data schema stands alone", "reference")
        elif name.startswith("tm:"):
            found.add((*at, name), "is a Thing Model term; a Thing Description has none", "thing-model")


def _check_values(found: Findings, at: Path, schema: dict[str, Any]) -> None:
    if "type" in schema and schema["type"] not in JSON_TYPES:
        found.add((*at, "type"), f"must be one of {', '.join(JSON_TYPES)}", "type")
    for name in _COUNTS:
        if name in schema and not (_is_number(schema[name]) and schema[name] >= 0 and schema[name] % 1 == 0):
            found.add((*at, name), "must be a whole number that is not negative", "type")
    for name in _NUMBERS:
        if name in schema and not _is_number(schema[name]):
            found.add((*at, name), "must be a number", "type")
    if "multipleOf" in schema and not (_is_number(schema["multipleOf"]) and schema["multipleOf"] > 0):
        found.add((*at, "multipleOf"), "must be a number above zero", "type")
    for low, high in _ORDERED:
        if low in schema and high in schema and _is_number(schema[low]) and _is_number(schema[high]):  # noqa: SIM102
            if schema[low] > schema[high]:
                found.add((*at, low), f"is above {high}: no value could fit", "contradiction")
    if "enum" in schema:
        _check_enum(found, at, schema)
    if "required" in schema:
        if isinstance(schema["required"], list):
            found.text_or_texts((*at, "required"), schema["required"])
        else:
            found.add((*at, "required"), "must be a list of member names", "shape")
    if "pattern" in schema:
        _check_pattern(found, (*at, "pattern"), schema["pattern"])
    if isinstance(schema.get("patternProperties"), dict):
        for pattern, nested in schema["patternProperties"].items():
            _check_pattern(found, (*at, "patternProperties", pattern), pattern)
            _check(found, (*at, "patternProperties", pattern), nested, is_foreign=True)


def _check_pattern(found: Findings, at: Path, pattern: Any) -> None:
    found.patterns += 1
    if found.patterns > MAX_PATTERNS:
        found.add(at, f"is one pattern too many: a Thing Description may hold {MAX_PATTERNS}", "pattern")
        return
    fault = pattern_fault(pattern) if isinstance(pattern, str) else "must be text"
    if fault is not None:
        found.add(at, fault, "pattern")


def _check_enum(found: Findings, at: Path, schema: dict[str, Any]) -> None:
    values = schema["enum"]
    if not isinstance(values, list):
        found.add((*at, "enum"), "must be a list of values", "shape")
    elif not values:
        found.add((*at, "enum"), "must hold at least one value", "empty")
    elif len({json_key(value) for value in values}) != len(values):
        found.add((*at, "enum"), "holds a value twice", "repeated")
    if "const" in schema:
        found.add((*at, "enum"), "enum and const exclude each other", "contradiction")


def _check_nested(found: Findings, at: Path, name: str, value: Any, *, is_foreign: bool) -> bool:
    foreign = False
    if name == "oneOf" and not isinstance(value, list):
        found.add(at, "must be a list of data schemas", "shape")
    elif name == "properties":
        if not isinstance(value, dict):
            found.add(at, "must be an object of data schemas by member name", "shape")
            return False
        for member, schema in value.items():
            foreign |= _check(found, (*at, member), schema, is_foreign=is_foreign)
    elif isinstance(value, list):
        for index, schema in enumerate(value):
            foreign |= _check(found, (*at, index), schema, is_foreign=is_foreign)
    else:
        foreign = _check(found, at, value, is_foreign=is_foreign)
    return foreign


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
