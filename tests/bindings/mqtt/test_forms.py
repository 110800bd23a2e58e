"""Forms of twin TDs over MQTT, in the shape that published clients accept."""

import json
from pathlib import Path

import pytest

from bindings.mqtt.engines.amqtt.engine import AmqttEngine
from bindings.mqtt.forms import forms_of
from tests.bindings.mqtt.support import lamp_house
from things.addresses import TwinID
from things.td import ThingDescription

TD = ThingDescription.of(
    {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": "Lamp",
        "properties": {"le vel": {"type": "integer"}, "t": {"readOnly": True}, "pin": {"writeOnly": True}},
        "actions": {"fade": {}},
        "events": {"hot": {}},
    },
    agent=True,
)
URLS = ("mqtt://127.0.0.1:1883", "mqtts://gateway:8883")


def test_every_affordance_has_a_complete_set_of_forms_for_every_address() -> None:
    forms = forms_of(TD, TwinID.of("hub", "lamp"), URLS)

    operations = {key: [op for form in value for op in form["op"]] for key, value in forms.items()}  # type: ignore[union-attr]
    reads = ["readproperty", "observeproperty", "unobserveproperty"]
    assert operations == {
        ("property", "le vel"): [*reads, "writeproperty"] * 2,
        ("property", "t"): reads * 2,
        ("property", "pin"): ["writeproperty"] * 2,
        ("action", "fade"): ["invokeaction", "queryaction", "cancelaction"] * 2,
        ("event", "hot"): ["subscribeevent", "unsubscribeevent"] * 2,
    }


def test_the_topic_stands_in_the_path_and_in_the_vocabularys_terms() -> None:
    forms = forms_of(TD, TwinID.of("hub", "lamp"), URLS[:1])

    read, write = forms["property", "le vel"]
    assert read["href"] == "mqtt://127.0.0.1:1883/things/hub/lamp/property/le%20vel"
    assert (read["mqv:controlPacket"], read["mqv:filter"]) == ("subscribe", "things/hub/lamp/property/le%20vel")
    assert (read["mqv:qos"], read["mqv:retain"]) == ("1", True)
    assert write["mqv:topic"] == "req/{client}/property/hub/lamp/le%20vel/{callerRef}"
    assert write["mqv:controlPacket"] == "publish"
    for each in (form for value in forms.values() for form in value):
        assert not {"#", "+", "?"} & set(str(each["href"]))
        assert isinstance(each["op"], list)


@pytest.mark.anyio
async def test_a_twins_td_over_mqtt_carries_forms_with_the_address_listened_on(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home", AmqttEngine) as lamp, lamp.client("operator1") as operator:
        await operator.subscribe("things/lights/lamp/td")
        td = json.loads((await operator.receive()).payload)

    port = lamp.binding.addresses[0][1]
    (form,) = td["events"]["touched"]["forms"]
    assert form["href"] == f"mqtt://127.0.0.1:{port}/things/lights/lamp/event/touched"
    assert {"client", "callerRef"} == set(td["actions"]["fade"]["uriVariables"])
    assert "uriVariables" not in td
    assert td["actions"]["fade"]["forms"][0]["op"] == ["invokeaction"]
