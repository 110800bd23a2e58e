"""The vocabulary: one namespace, one meaning a name."""

import json
from collections import Counter

from things.context import CONTEXT
from things.schemas import DataSchema
from things.td import ThingDescription
from things.td_rules import TD_11
from things.vocabulary import (
    NAMESPACE,
    WORDS,
    DeviceType,
    PropertyType,
    Term,
    Unit,
)

NAMES = [*(str(word) for kind in WORDS for word in kind), *map(str, Unit), *map(str, Term)]


def test_every_name_stands_once_and_in_our_namespace() -> None:
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    assert all(name.startswith("skep:") for name in NAMES)


def test_every_term_is_explained_in_the_context_document() -> None:
    explained = {entry["@id"] for entry in CONTEXT["@graph"]}

    assert explained == set(NAMES)
    assert CONTEXT["@context"]["skep"] == NAMESPACE
    assert json.loads(json.dumps(CONTEXT)) == CONTEXT


def test_constants_are_plain_text_in_a_td() -> None:
    td = ThingDescription.of(
        {
            "@context": [TD_11, {"skep": NAMESPACE}],
            "@type": [DeviceType.THERMOMETER],
            "title": "Porch",
            "properties": {"t": {"@type": PropertyType.TEMPERATURE, "type": "number", "unit": Unit.CELSIUS}},
        },
        agent=True,
    )

    assert td.types == ("skep:Thermometer",)
    assert json.loads(td.text)["properties"]["t"]["unit"] == "skep:celsius"
    assert DataSchema({"type": "string"}).is_valid(str(Unit.CELSIUS))
