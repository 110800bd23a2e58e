"""Thing Models: checked, composed of others, and made into Thing Descriptions."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from things.errors import Invalid, Malformed, TDInvalid
from things.td import ThingDescription
from things.td_rules import TD_11, problems_of
from things.thing_model import MAX_CHAIN, ThingModel, problems_of_model

SWITCHABLE: dict[str, Any] = {
    "@context": [TD_11],
    "@type": "tm:ThingModel",
    "title": "Switchable",
    "description": "Something with a switch.",
    "version": {"model": "1.0.0"},
    "properties": {"on": {"type": "boolean", "title": "On"}, "since": {"type": "string", "readOnly": True}},
    "events": {"tripped": {"data": {"type": "string"}}},
    "tm:optional": ["/events/tripped"],
}
LAMP: dict[str, Any] = {
    "@context": [TD_11, {"skep": "urn:skep:v1#"}],
    "@type": ["tm:ThingModel", "skep:Light"],
    "title": "Lamp {{SERIAL}} of {{MAKER}}",
    "version": {"model": "2.0.0"},
    "base": "https://{{HOST}}/",
    "links": [
        {"rel": "tm:extends", "href": "https://models.example/switchable.tm.json", "type": "application/tm+json"},
        {"rel": "license", "href": "https://models.example/license"},
    ],
    "properties": {
        "on": {"title": "Light on"},
        "level": {
            "tm:ref": "https://models.example/units.tm.json#/properties/percentage",
            "title": "Level",
            "maximum": "{{MAX_LEVEL}}",
            "description": None,
        },
        "low": {"tm:ref": "#/properties/level", "title": "Lowest level", "maximum": 10},
    },
    "actions": {"blink": {"input": {"type": "integer"}}},
    "tm:optional": ["/actions/blink"],
}
UNITS: dict[str, Any] = {
    "@context": TD_11,
    "@type": "tm:ThingModel",
    "properties": {
        "percentage": {"type": "integer", "minimum": 0, "maximum": 100, "unit": "percent", "description": "0 to 100"}
    },
}
MODELS = {"https://models.example/switchable.tm.json": SWITCHABLE, "https://models.example/units.tm.json": UNITS}
VALUES: dict[str, Any] = {"SERIAL": 17, "MAKER": "Voorbeeld", "HOST": "lamp.example", "MAX_LEVEL": 80}


def resolve(address: str) -> Mapping[str, Any] | None:
    return MODELS.get(address)


def test_models_are_valid_models_and_no_thing_descriptions() -> None:
    for document in (SWITCHABLE, LAMP, UNITS):
        assert problems_of_model(document) == []
        assert problems_of(document, agent=True) != []
    assert ThingModel.parse(json.dumps(LAMP)).document == LAMP


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"@type": "Thing"}, "/@type"),
        ({"@type": None}, "/@type"),
        ({"@context": "https://example.org"}, "/@context"),
        ({"title": 7}, "/title"),
        ({"version": {"instance": "1"}}, "/version"),
        ({"version": {"model": 1}}, "/version"),
        ({"tm:optional": "/events/tripped"}, "/tm:optional"),
        ({"tm:optional": ["/events"]}, "/tm:optional/0"),
        ({"tm:optional": ["/events/a/data"]}, "/tm:optional/0"),
        ({"links": [{"rel": "tm:parent", "href": "x"}]}, "/links/0/rel"),
        ({"links": [{"rel": "tm:extends"}]}, "/links/0/href"),
        ({"links": [{"rel": "{{R}}", "href": "x"}]}, "/links/0/rel"),
        ({"links": [{"rel": "tm:extends", "href": "a"}, {"rel": "tm:extends", "href": "b"}]}, "/links/1/rel"),
        ({"properties": {"p{{X}}": {}}}, "/properties/p{{X}}"),
        ({"properties": {"p": {"tm:ref": "elsewhere"}}}, "/properties/p/tm:ref"),
        ({"properties": {"p": {"tm:ref": 7}}}, "/properties/p/tm:ref"),
        ({"properties": {"p": {"type": "float"}}}, "/properties/p/type"),
        ({"properties": {"p": {"forms": []}}}, "/properties/p/forms"),
        ({"properties": {"p": "{{P}}"}}, "/properties/p"),
        ({"actions": "{{P}}"}, "/actions"),
        ({"id": ["{{P}}"]}, "/id"),
        ({"@context": "{{P}}"}, "/@context"),
        ({"securityDefinitions": {"a": {"scheme": 7}}}, "/securityDefinitions/a/scheme"),
        ({"properties": {"p": {"minimum": "low"}}}, "/properties/p/minimum"),
        ({"properties": {"p": {"unit": None}}}, "/properties/p/unit"),
        ({"properties": {"p": {"$ref": "https://x.example"}}}, "/properties/p/$ref"),
        ({"properties": {"p": {"forms": [{"href": "p", "op": "invokeaction"}]}}}, "/properties/p/forms/0/op"),
        ({"securityDefinitions": {"a": {"scheme": "basic", "password": "x"}}}, "/securityDefinitions/a/password"),
    ],
)
def test_broken_model_is_reported_where_it_is_broken(changes: dict[str, Any], pointer: str) -> None:
    problems = problems_of_model(copy.deepcopy(SWITCHABLE) | changes)

    assert pointer in [problem.pointer for problem in problems]


@pytest.mark.parametrize(
    "changes",
    [
        {"title": "{{TITLE}}"},
        {"version": "{{VERSION}}"},
        {"properties": {"p": {"minimum": "{{LOW}}", "readOnly": "{{FLAG}}", "type": "{{TYPE}}"}}},
        {"properties": {"p": {"tm:ref": "https://m.example/x.tm.json#/properties/q", "unit": None}}},
        {"properties": {"p": {"forms": [{"op": "readproperty", "href": "{{PATH}}"}]}}},
        {"security": "later"},
        {"links": [{"rel": "tm:submodel", "href": "https://m.example/x.tm.json"}]},
        {
            "links": [
                {"rel": "tm:submodel", "href": "https://m.example/spot.tm.json", "instanceName": name}
                for name in ("left", "right")
            ]
        },
    ],
)
def test_what_models_may_leave_open_is_allowed(changes: dict[str, Any]) -> None:
    assert problems_of_model(SWITCHABLE | changes) == []


def test_model_that_is_no_json_or_no_object_is_refused() -> None:
    with pytest.raises(Malformed):
        ThingModel.parse('{"@type": "a", "@type": "b"}')
    with pytest.raises(TDInvalid):
        ThingModel.parse("[]")


def test_composition_takes_in_what_is_extended_and_referred_to() -> None:
    composed = ThingModel.of(LAMP).composed(resolve)

    properties = composed.document["properties"]
    assert properties["on"] == {"type": "boolean", "title": "Light on"}
    assert properties["since"] == SWITCHABLE["properties"]["since"]
    assert properties["level"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": "{{MAX_LEVEL}}",
        "unit": "percent",
        "title": "Level",
    }
    assert properties["low"] == properties["level"] | {"title": "Lowest level", "maximum": 10}
    assert composed.document["title"] == LAMP["title"]
    assert composed.document["description"] == SWITCHABLE["description"]
    assert composed.document["links"] == [LAMP["links"][1]]
    assert composed.optional == {"/events/tripped", "/actions/blink"}
    assert composed.required == {"/properties/on", "/properties/since", "/properties/level", "/properties/low"}
    assert "tm:ref" not in json.dumps(composed.document)


def test_composition_changes_none_of_the_models() -> None:
    before = json.dumps([LAMP, SWITCHABLE, UNITS])

    ThingModel.of(LAMP).composed(resolve)

    assert json.dumps([LAMP, SWITCHABLE, UNITS]) == before


def test_unknown_models_and_parts_are_refused() -> None:
    with pytest.raises(Invalid, match="not known"):
        ThingModel.of(LAMP).composed(lambda _address: None)
    units = UNITS | {"properties": {}}
    with pytest.raises(Invalid, match="nothing at"):
        ThingModel.of(LAMP).composed({**MODELS, "https://models.example/units.tm.json": units}.get)


def test_models_that_include_themselves_are_refused() -> None:
    def extends(address: str) -> dict[str, Any]:
        return {"@context": TD_11, "@type": "tm:ThingModel", "links": [{"rel": "tm:extends", "href": address}]}

    with pytest.raises(Invalid, match="includes itself"):
        ThingModel.of(extends("b")).composed({"a": extends("b"), "b": extends("a")}.get)
    with pytest.raises(Invalid, match="includes"):
        ThingModel.of(SWITCHABLE | {"properties": {"p": {"tm:ref": "#/properties/p"}}}).composed(resolve)
    with pytest.raises(Invalid, match="too much"):
        ThingModel.of(extends("0")).composed(lambda address: extends(str(int(address) + 1)))
    assert MAX_CHAIN < 20


def test_model_that_multiplies_itself_is_refused() -> None:
    def doubling(level: int) -> dict[str, Any]:
        ref = {"tm:ref": f"{level + 1}#/properties/p"}
        return UNITS | {"properties": {"p": {"type": "object", "properties": {"a": ref, "b": ref}}}}

    leaf = {"9": UNITS | {"properties": {"p": {"type": "integer"}}}}

    with pytest.raises(Invalid, match="too much"):
        ThingModel.of(doubling(0)).composed(
            lambda address: doubling(int(address)) if int(address) < 9 else leaf.get(address)
        )


def test_thing_of_a_model_has_values_for_placeholders_with_their_type() -> None:
    td = (
        ThingModel.of(LAMP)
        .composed(resolve)
        .instantiate(
            placeholders=VALUES,
            model_href="https://models.example/lamp.tm.json",
            additions={"id": "urn:example:lamp:17", "version": {"instance": "2.0.1"}},
            agent=True,
        )
    )

    assert td.title == "Lamp 17 of Voorbeeld"
    assert td.types == ("Thing", "skep:Light")
    assert td.document["properties"]["level"]["maximum"] == 80
    assert td.document["base"] == "https://lamp.example/"
    assert td.document["version"] == {"model": "2.0.0", "instance": "2.0.1"}
    assert td.document["links"][-1] == {
        "rel": "type",
        "href": "https://models.example/lamp.tm.json",
        "type": "application/tm+json",
    }
    assert "tm:" not in td.text.decode().replace("lamp.tm.json", "")
    assert list(td.actions) == ["blink"]


def test_optional_affordances_are_chosen() -> None:
    model = ThingModel.of(LAMP).composed(resolve)

    td = model.instantiate(placeholders=VALUES, options=["/actions/blink"], agent=True)

    assert list(td.actions) == ["blink"]
    assert list(td.events) == []
    with pytest.raises(Invalid, match="/properties/on"):
        model.instantiate(placeholders=VALUES, options=["/properties/on"], agent=True)


def test_thing_needs_all_placeholders_and_what_a_thing_description_needs() -> None:
    model = ThingModel.of(LAMP).composed(resolve)

    with pytest.raises(Invalid, match="needs values for HOST, MAX_LEVEL"):
        model.instantiate(placeholders={"SERIAL": 1, "MAKER": "x"}, agent=True)
    with pytest.raises(TDInvalid) as refused:
        model.instantiate(placeholders=VALUES)
    assert "/securityDefinitions" in {problem.pointer for problem in refused.value.problems}
    with pytest.raises(TDInvalid, match="maximum"):
        model.instantiate(placeholders=VALUES | {"MAX_LEVEL": "high"}, agent=True)


def test_thing_can_be_held_against_its_model() -> None:
    model = ThingModel.of(SWITCHABLE)
    whole = model.instantiate(agent=True)
    part = ThingDescription.of({"@context": TD_11, "title": "Bare", "properties": {"on": {}}}, agent=True)

    assert model.lacking(whole) == frozenset()
    assert model.lacking(part) == {"/properties/since"}


_MEMBERS = (
    "@context @type title properties actions forms href op security tm:ref links securityDefinitions scheme oneOf type "
    "enum required pattern input rel version"
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["", "x", "{{X}}", TD_11]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_MEMBERS.split()), inner, max_size=5),
    max_leaves=30,
)


@given(_json)
def test_any_json_is_judged_without_breaking(document: Any) -> None:
    assert isinstance(problems_of(document), list)
    assert isinstance(problems_of(document, agent=True), list)
    assert isinstance(problems_of_model(document), list)
