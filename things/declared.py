"""What a Thing Description declares of each series of values: the JSON type and the unit."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic_core import from_json

from things.schemas import value_type


class Declared(NamedTuple):
    """The JSON type of a series' values, and their unit."""

    value_type: str | None = None
    unit: str | None = None


UNKNOWN = Declared()


def series_of(td: str | bytes) -> Mapping[tuple[str, str], Declared]:
    """The series by (kind, name) that the text of a Thing Description declares. What cannot be read declares nothing:
    the values are kept anyway."""
    try:
        document = from_json(td)
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    found: dict[tuple[str, str], Declared] = {}
    for kind, plural in (("property", "properties"), ("event", "events")):
        affordances = document.get(plural)
        for name, definition in affordances.items() if isinstance(affordances, dict) else ():
            schema = definition.get("data") if kind == "event" and isinstance(definition, dict) else definition
            if isinstance(schema, dict):
                unit = schema.get("unit")
                found[kind, name] = Declared(value_type(schema), unit if isinstance(unit, str) else None)
    return found
