"""Twin TDs: what consumers get is derived, trimmed, and never the device's own."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.things.test_td_rules import sample
from things.addresses import Kind, TwinID, encode_segment
from things.messages import JSONValue, Operation
from things.td import ThingDescription
from things.td_rules import TD_10, TD_11, problems_of
from things.twin_td import DISCOVERY, Allowed, Forms, FormsOf, TwinSecurity, presence_names, twin_td

TWIN = TwinID.of("plant", "pump-1")
BASE = "https://127.0.0.1:8443"
BEARER = TwinSecurity(definitions={"bearer": {"scheme": "bearer", "in": "header"}}, names=["bearer"])
BASIC = TwinSecurity(definitions={"basic": {"scheme": "basic", "in": "header"}}, names=["basic"])


def https_forms(td: ThingDescription, twin: TwinID) -> Forms:
    root = f"{BASE}/things/{encode_segment(str(twin))}"
    forms: dict[tuple[str, str], list[dict[str, JSONValue]]] = {
        ("thing", ""): [
            {"href": f"{root}/properties", "op": ["readallproperties", "writemultipleproperties"]},
            {"href": f"{root}/actions", "op": ["queryallactions"]},
        ]
    }
    for name in td.properties:
        href = f"{root}/properties/{encode_segment(name)}"
        forms["property", name] = [
            {"href": href, "op": ["readproperty", "writeproperty"], "contentType": "application/json"},
            {"href": href + "{?ticket}", "op": ["observeproperty", "unobserveproperty"], "subprotocol": "sse"},
        ]
    for name in td.actions:
        forms["action", name] = [{"href": f"{root}/actions/{name}", "op": ["invokeaction"], "htv:methodName": "POST"}]
    for name in td.events:
        href = f"{root}/events/{name}{{?ticket}}"
        forms["event", name] = [{"href": href, "op": ["subscribeevent", "unsubscribeevent"], "subprotocol": "sse"}]
    return forms


def mqtt_forms(td: ThingDescription, twin: TwinID) -> Forms:
    topic = f"things/{twin.account}/{twin.thing}"
    return {
        ("property", name): [
            {
                "href": f"mqtt://127.0.0.1:1883/{topic}/property/{encode_segment(name)}",
                "op": ["readproperty", "observeproperty", "unobserveproperty"],
                "mqv:qos": "1",
            }
        ]
        for name in td.properties
    }


def everything(_kind: Kind, _name: str, _operation: Operation) -> bool:
    return True


def only(*operations: Operation) -> Allowed:
    return lambda _kind, _name, operation: operation in operations


def derived(
    document: dict[str, Any],
    *,
    allowed: Callable[[Kind, str, Operation], bool] = everything,
    forms: dict[str, FormsOf] | None = None,
    security: TwinSecurity = BEARER,
    overlay: dict[str, JSONValue] | None = None,
    last_seen: int | None = 1_770_000_000_000_000,
) -> dict[str, Any]:
    return twin_td(
        ThingDescription.of(document, agent=True),
        TWIN,
        {"https": https_forms} if forms is None else forms,
        security,
        allowed=allowed,
        online=True,
        last_seen=last_seen,
        overlay=overlay or {},
        http_base=BASE,
    )


@pytest.mark.parametrize("name", ["pump", "lamp", "thermometer"])
def test_twin_td_is_a_complete_valid_td(name: str) -> None:
    assert problems_of(derived(sample(name))) == []


def test_variant_for_one_protocol_is_a_valid_td_of_what_the_protocol_can_do() -> None:
    variant = derived(sample("pump"), forms={"mqtt": mqtt_forms}, security=BASIC)

    assert problems_of(variant) == []
    assert list(variant["properties"]) == ["flow", "speed", "mode", "online", "lastSeen"]
    assert "actions" not in variant
    assert "events" not in variant


def test_nothing_that_leads_to_the_device_is_left() -> None:
    pump = sample("pump")
    pump["properties"]["flow"]["uriVariables"] = {"devicevariable": {"type": "string"}}

    text = json.dumps(derived(pump))

    for trace in ("pump.plant.example", "auth.plant.example", "oauth2", "manual.pdf", "pump.png", "devicevariable"):
        assert trace not in text
    assert "https://plant.example/models/pump.tm.json" in text  # an absolute link, about the type


def test_links_to_the_devices_own_host_go_with_its_forms() -> None:
    pump = sample("pump")
    pump["base"] = "https://pump.example:8443/"
    pump["properties"]["flow"]["forms"] = [{"href": "coap://[2001:db8::1]/flow"}]
    kept = [{"rel": "type", "href": "https://models.example/pump"}, {"rel": "item", "href": "urn:example:impeller"}]
    gone = ["wss://pump.example/ws", "HTTPS://PUMP.EXAMPLE/ui", "http://[2001:db8::1]/", "/manual.pdf"]
    pump["links"] = [*kept, *({"rel": "alternate", "href": href} for href in gone)]

    links = derived(pump)["links"]

    assert [link for link in links if link["rel"] in ("type", "item")] == kept
    assert not [link for link in links if link["href"] in gone]


def test_twin_has_its_own_id_and_keeps_the_devices_as_a_link() -> None:
    twin = derived(sample("pump"))

    assert twin["id"] == "dtw:plant:pump-1"
    assert {"rel": "skep:sourceID", "href": sample("pump")["id"]} in twin["links"]
    assert twin["skep:agent"] == "plant"


def test_unknown_terms_and_contexts_are_kept() -> None:
    pump = sample("pump")
    pump["properties"]["flow"]["plant:note"] = {"deep": [1, None]}

    twin = derived(pump)

    assert twin["plant:serialPlate"] == pump["plant:serialPlate"]
    assert twin["properties"]["flow"]["plant:note"] == {"deep": [1, None]}
    assert twin["@context"][:3] == [TD_10, TD_11, DISCOVERY]
    assert twin["@context"][3] == {"skep": "urn:skep:v1#", "htv": "http://www.w3.org/2011/http#"}
    assert twin["@context"][4] == {
        name: value for name, value in pump["@context"][1].items() if name not in ("skep", "htv")
    }
    assert twin["titles"] == pump["titles"]
    assert twin["actions"]["rinse"]["skep:expires"] == "PT15M"


def test_viewer_sees_values_but_neither_actions_nor_a_way_to_write() -> None:
    twin = derived(sample("pump"), allowed=only(Operation.READ, Operation.OBSERVE, Operation.SUBSCRIBE))

    assert "actions" not in twin
    speed = twin["properties"]["speed"]
    assert speed["readOnly"] is True
    assert [form["op"] for form in speed["forms"]] == [["readproperty"], ["observeproperty", "unobserveproperty"]]
    assert twin["forms"] == [{"href": f"{BASE}/things/dtw:plant:pump-1/properties", "op": ["readallproperties"]}]
    assert [link["rel"] for link in twin["links"]] == ["type", "skep:sourceID", "alternate"]


def test_operator_may_invoke_and_manager_may_write() -> None:
    reading = (Operation.READ, Operation.OBSERVE, Operation.SUBSCRIBE, Operation.HISTORY)

    operator = derived(sample("pump"), allowed=only(*reading, Operation.INVOKE_ACTION))
    manager = derived(sample("pump"), allowed=only(*reading, Operation.INVOKE_ACTION, Operation.WRITE_PROPERTY))

    assert list(operator["actions"]) == ["rinse", "stop"]
    assert operator["actions"]["rinse"]["synchronous"] is False
    assert operator["properties"]["speed"]["readOnly"] is True
    assert "readOnly" not in manager["properties"]["speed"]
    assert manager["properties"]["speed"]["forms"][0]["op"] == ["readproperty", "writeproperty"]
    assert manager["properties"]["flow"]["forms"][0]["op"] == ["readproperty"]  # the device's own readOnly stands
    relations = {link["rel"]: link["href"] for link in operator["links"]}
    assert relations["skep:history"] == f"{BASE}/things/dtw:plant:pump-1/history"
    assert relations["alternate"] == f"{BASE}/things/dtw:plant:pump-1?forms=profile"
    assert relations["skep:requests"] == f"{BASE}/requests?thing=dtw:plant:pump-1"


def test_rights_may_differ_from_one_affordance_to_the_next() -> None:
    def speed_only(kind: Kind, name: str, operation: Operation) -> bool:
        return (kind, name) == (Kind.PROPERTY, "speed") and operation is Operation.WRITE_PROPERTY

    twin = derived(sample("pump"), allowed=speed_only)

    assert list(twin["properties"]) == ["speed"]
    assert twin["properties"]["speed"]["writeOnly"] is True
    assert [form["op"] for form in twin["properties"]["speed"]["forms"]] == [["writeproperty"]]
    assert "events" not in twin


def test_variables_of_our_addresses_are_declared() -> None:
    twin = derived(sample("pump"))
    held = [one for plural in ("properties", "actions", "events") for one in twin.get(plural, {}).values()]

    assert "uriVariables" not in twin
    for affordance in held:
        uses_ticket = any("{?ticket}" in form["href"] for form in affordance["forms"])
        assert affordance.get("uriVariables", {}) == ({"ticket": {"type": "string"}} if uses_ticket else {})
    assert any("uriVariables" in affordance for affordance in held)


def test_a_prefix_that_the_device_defines_as_we_do_stands_once() -> None:
    lamp = {**sample("lamp"), "@context": [TD_11, {"skep": "urn:skep:v1#"}, {"skep": "urn:skep:v1#", "ex": "urn:ex#"}]}

    assert derived(lamp)["@context"][3:] == [
        {"skep": "urn:skep:v1#", "htv": "http://www.w3.org/2011/http#"},
        {"ex": "urn:ex#"},
    ]


def test_a_prefix_that_the_device_defines_otherwise_keeps_its_meaning_there() -> None:
    lamp = {**sample("lamp"), "@context": [TD_11, {"htv": "urn:other#"}]}

    assert derived(lamp)["@context"][4:] == [{"htv": "urn:other#"}]


def test_presence_is_told_as_members_and_as_properties() -> None:
    twin = derived(sample("lamp"))

    assert twin["skep:online"] is True
    assert twin["skep:lastSeen"] == "2026-02-02T02:40:00Z"
    assert twin["properties"]["online"]["type"] == "boolean"
    assert twin["properties"]["lastSeen"]["readOnly"] is True
    assert twin["properties"]["online"]["forms"][0]["op"] == ["readproperty"]
    assert "skep:lastSeen" not in derived(sample("lamp"), last_seen=None)


def test_own_properties_named_like_presence_keep_their_name_and_ours_give_way() -> None:
    lamp = sample("lamp")
    lamp["properties"]["online"] = {"type": "string", "title": "Sold online"}

    twin = derived(lamp)

    assert twin["properties"]["online"]["type"] == "string"
    assert twin["properties"]["skep:online"]["type"] == "boolean"
    assert "lastSeen" in twin["properties"]
    assert twin["properties"]["skep:online"]["forms"][0]["href"].endswith("/properties/skep:online")
    assert presence_names(ThingDescription.of(lamp, agent=True)) == ("skep:online", "lastSeen")


def test_device_cannot_forge_presence_agent_or_registration() -> None:
    forged = {"skep:online": "maybe", "skep:agent": "root", "skep:lastSeen": "x", "registration": {"ttl": 1}}

    twin = derived(sample("lamp") | forged, last_seen=None)

    assert twin["skep:online"] is True
    assert twin["skep:agent"] == "plant"
    assert "skep:lastSeen" not in twin
    assert "registration" not in twin


def test_overlay_replaces_title_and_description_in_every_language() -> None:
    twin = derived(sample("pump"), overlay={"title": "Pump by the door", "description": "Ours."})

    assert (twin["title"], twin["description"]) == ("Pump by the door", "Ours.")
    assert "titles" not in twin
    assert derived(sample("pump"), overlay={"description": "Ours."})["titles"] == sample("pump")["titles"]
    assert derived(sample("lamp"), overlay={})["title"] == "Desk lamp"


def test_protocols_forms_stand_in_the_order_given_and_a_variant_has_its_own_only() -> None:
    both = derived(sample("lamp"), forms={"mqtt": mqtt_forms, "https": https_forms})
    variant = derived(sample("lamp"), forms={"mqtt": mqtt_forms}, security=BASIC)

    hrefs = [form["href"].partition(":")[0] for form in both["properties"]["on"]["forms"]]
    assert hrefs == ["mqtt", "https", "https"]
    assert "mqv" in both["@context"][3]
    assert "https://127" not in json.dumps(variant["properties"])
    assert variant["security"] == ["basic"]


def test_stored_td_is_not_changed_by_deriving() -> None:
    td = ThingDescription.of(sample("pump"))
    before = json.dumps(td.document)

    for operations in ((Operation.READ,), (Operation.WRITE_PROPERTY,), tuple(Operation)):
        twin_td(td, TWIN, {"https": https_forms}, BEARER, allowed=only(*operations), online=False, last_seen=None)

    assert json.dumps(td.document) == before
