"""Thing Descriptions: read once, kept verbatim, asked many times."""

import json
from typing import Any

import pytest

from things.addresses import Kind
from things.errors import Invalid, Malformed, TDInvalid, TooDeep, TooLarge, UnknownName
from things.td import MAX_TD_BYTES, ThingDescription

LAMP: dict[str, Any] = {
    "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#", "acme": "https://acme.example/#"}],
    "@type": ["acme:Lamp", "skep:Light"],
    "title": "Lamp \u202e <b>",
    "acme:unknown": {"z": 1, "a": [None, 1.50, "ü"]},
    "properties": {
        "level": {"type": "number", "minimum": 0, "maximum": 100, "unit": "percent", "skep:interval": "PT10S"},
        "serial": {"type": "string", "readOnly": True},
        "mode": {"enum": ["day", "night"]},
    },
    "actions": {
        "fade": {
            "title": "Fade",
            "input": {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]},
            "output": {"type": "boolean"},
            "skep:expires": "PT5M",
            "skep:deadline": 30,
        },
        "reset": {"skep:expires": 0},
        "blink": {"input": {"type": "object", "properties": {"times": {"type": "integer"}}}},
    },
    "events": {"hot": {"data": {"type": "number", "unit": "celsius"}}, "bell": {}},
}


@pytest.fixture
def lamp() -> ThingDescription:
    return ThingDescription.parse(json.dumps(LAMP), agent=True)


def test_document_is_kept_verbatim_with_unknown_terms_and_their_order() -> None:
    text = json.dumps(LAMP, ensure_ascii=False, indent=3)

    td = ThingDescription.parse(text, agent=True)

    assert td.text == text.encode()
    assert json.dumps(td.document) == json.dumps(LAMP)
    assert td.title == "Lamp \u202e <b>"
    assert td.types == ("acme:Lamp", "skep:Light")
    assert td.id is None


def test_affordances_are_found_by_kind_and_name(lamp: ThingDescription) -> None:
    fade = lamp.affordance(Kind.ACTION, "fade")

    assert fade is not None
    assert (fade.kind, fade.name, fade.title) == (Kind.ACTION, "fade", "Fade")
    assert lamp.affordance(Kind.EVENT, "fade") is None
    assert lamp.affordance(Kind.TD, "fade") is None
    assert list(lamp.properties) == ["level", "serial", "mode"]
    assert list(lamp.actions) == ["fade", "reset", "blink"]
    assert list(lamp.events) == ["hot", "bell"]


def test_value_that_fits_is_accepted_and_one_that_does_not_is_refused_with_a_pointer(lamp: ThingDescription) -> None:
    assert lamp.check_property("level", 50)
    assert lamp.check_event("hot", 81.5)

    with pytest.raises(Invalid) as refused:
        lamp.check_property("level", 101)
    assert refused.value.problems[0].pointer == ""
    with pytest.raises(Invalid, match="event 'hot'"):
        lamp.check_event("hot", "warm")
    with pytest.raises(Invalid):
        lamp.check_property("level", True)
    with pytest.raises(Invalid) as refused:
        lamp.check_action_input("fade", {"to": "high"}, True)
    assert [problem.pointer for problem in refused.value.problems] == ["/to"]


def test_publication_the_td_does_not_declare_is_told_apart_and_not_refused(lamp: ThingDescription) -> None:
    assert lamp.check_property("colour", "red") is False
    assert lamp.check_event("cold", 1) is False


def test_event_without_data_schema_takes_any_value(lamp: ThingDescription) -> None:
    assert lamp.check_event("bell", {"anything": [1]})


def test_write_is_refused_for_read_only_and_unknown_properties(lamp: ThingDescription) -> None:
    lamp.check_property_write("level", 3)

    with pytest.raises(Invalid, match="read-only"):
        lamp.check_property_write("serial", "x")
    with pytest.raises(Invalid):
        lamp.check_property_write("mode", "dusk")
    with pytest.raises(UnknownName):
        lamp.check_property_write("colour", "red")


def test_action_without_data_needs_a_schema_that_can_do_without(lamp: ThingDescription) -> None:
    lamp.check_action_input("reset", None, False)
    lamp.check_action_input("blink", None, False)

    with pytest.raises(Invalid, match="needs an input"):
        lamp.check_action_input("fade", None, False)
    with pytest.raises(Invalid):
        lamp.check_action_input("fade", None, True)
    with pytest.raises(UnknownName):
        lamp.check_action_input("explode", None, False)


def test_our_durations_units_and_types_are_read(lamp: ThingDescription) -> None:
    assert lamp.skep_expires_s("fade") == 300
    assert lamp.skep_expires_s("reset") == 0
    assert lamp.skep_expires_s("blink") is None
    assert lamp.skep_deadline_s("fade") == 30
    assert lamp.skep_interval_s("level") == 10
    assert lamp.unit(Kind.PROPERTY, "level") == "percent"
    assert lamp.unit(Kind.EVENT, "hot") == "celsius"
    assert lamp.unit(Kind.EVENT, "bell") is None
    assert lamp.value_type(Kind.PROPERTY, "level") == "number"
    assert lamp.value_type(Kind.PROPERTY, "mode") == "string"
    assert lamp.value_type(Kind.ACTION, "fade") == "object"
    assert lamp.value_type(Kind.EVENT, "bell") is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", Malformed),
        ("{", Malformed),
        (b"\xff", Malformed),
        ('{"title": "a", "title": "b"}', Malformed),
        ('{"title": "\\ud800"}', Malformed),
        ("\ud800", Malformed),
        ("[]", TDInvalid),
        ("null", TDInvalid),
        ("{}", TDInvalid),
        ("[" * 33 + "]" * 33, TooDeep),
        (" " * (MAX_TD_BYTES + 1), TooLarge),
    ],
)
def test_text_that_is_no_td_is_refused(text: bytes | str, error: type[Exception]) -> None:
    with pytest.raises(error):
        ThingDescription.parse(text)


def test_td_at_the_size_limit_passes_and_one_byte_more_does_not() -> None:
    text = json.dumps(LAMP).encode()
    text += b" " * (MAX_TD_BYTES - len(text))

    assert ThingDescription.parse(text, agent=True).title.startswith("Lamp")
    with pytest.raises(TooLarge):
        ThingDescription.parse(text + b" ", agent=True)
