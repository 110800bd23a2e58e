"""Every built-in service describes itself and checks its input alike."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runtime.ports import Service
from tests.bindings.http.support import House, lamp_house
from things import service_ids
from things.errors import Invalid
from things.identity import AccountType, Principal, Role
from things.messages import JSONValue, Origin
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

ADMIN = Principal(account="admin1", type=AccountType.CONSUMER, role=Role.ADMIN)
HERE = Origin(binding="http", source="127.0.0.1")

SERVICES = {
    service_ids.ACCOUNTS: "skep:AccountAdministration",
    service_ids.OWN_ACCOUNT: "skep:OwnAccount",
    service_ids.RIGHTS: "skep:RightsAdministration",
    service_ids.OWN_RIGHTS: "skep:OwnRights",
    service_ids.REQUESTS: "skep:RequestLedger",
    service_ids.NODE: "skep:MessagingNode",
    service_ids.LAKE: "skep:Lake",
    service_ids.DIRECTORY: "skep:DirectoryService",
    service_ids.VALUES: "skep:ValuesService",
    service_ids.MODELS: "skep:ModelService",
    service_ids.HISTORY: "skep:HistoryService",
}


async def refusal(house: House, service: str, method: str, given: JSONValue) -> Invalid:
    with pytest.raises(Invalid) as refused:
        await house.runtime.call(ADMIN, service, method, given, HERE)
    return refused.value


def methods(service: Service) -> Mapping[str, Any]:
    actions: Mapping[str, Any] = service.td["actions"]
    return actions


async def test_every_service_is_a_valid_thing_found_by_its_type_and_as_a_service(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home") as house, house.client("admin1") as admin:
        found = {one["id"]: one for one in (await admin.get("/things", params={"type": "skep:Service"})).json()}
        of_type = {
            type_: [one["id"] for one in (await admin.get("/things", params={"type": type_})).json()]
            for type_ in SERVICES.values()
        }
        for service in house.runtime.services:
            ThingDescription.of(service.td, agent=True)
            assert service.td["@type"] == ["skep:Service", SERVICES[service.thing_id]]
            assert service.td["title"]
            assert service.td["description"]

    assert set(found) == set(SERVICES)
    assert of_type == {type_: [thing_id] for thing_id, type_ in SERVICES.items()}


async def test_every_method_refuses_an_unknown_member_and_names_it(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home") as house:
        for service in house.runtime.services:
            for name, action in methods(service).items():
                refused = await refusal(house, service.thing_id, name, {"~sttae/": "completed"})

                assert "/~0sttae~1" in [one.pointer for one in refused.problems], (service.thing_id, name)
                assert action.get("input", {"additionalProperties": False})["additionalProperties"] is False


async def test_every_method_refuses_an_input_that_is_no_object(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home") as house:
        for service in house.runtime.services:
            for name in methods(service):
                wrong: list[JSONValue] = [[], "x", 7, False]
                for given in wrong:
                    refused = await refusal(house, service.thing_id, name, given)

                    assert [one.pointer for one in refused.problems] == [""], (service.thing_id, name)


async def test_every_member_refuses_a_value_of_another_type_and_is_named(tmp_path: Path) -> None:
    """A number or text is never taken for what it resembles: `"5"` is no number, 1 is no boolean."""
    async with lamp_house(tmp_path / "home") as house:
        for service in house.runtime.services:
            for name, action in methods(service).items():
                for member, definition in action.get("input", {}).get("properties", {}).items():
                    for wrong in _others(definition):
                        refused = await refusal(house, service.thing_id, name, {member: wrong})

                        found = [one.pointer for one in refused.problems if one.pointer.startswith(f"/{member}")]
                        assert found, (service.thing_id, name, member, wrong)


def _others(definition: Mapping[str, Any]) -> list[JSONValue]:
    choices = definition.get("anyOf") or definition.get("oneOf") or [definition]
    types = {choice.get("type", "string" if "enum" in choice or "const" in choice else "any") for choice in choices}
    if "any" in types:
        return []
    examples: dict[str, JSONValue] = {"string": "5", "integer": 5, "boolean": True, "array": [[]], "object": {"x": 1}}
    alike = {"number": {"integer"}}
    taken = types.union(*(alike.get(type_, set()) for type_ in types))
    return [example for type_, example in examples.items() if type_ not in taken]


@pytest.mark.parametrize(
    ("service", "method", "given", "pointer"),
    [
        (service_ids.REQUESTS, "listRequests", {"sttae": "completed"}, "/sttae"),
        (service_ids.REQUESTS, "listRequests", {"state": ["completed", "done"]}, "/state/1"),
        (service_ids.REQUESTS, "listRequests", {"state": "done"}, "/state"),
        (service_ids.REQUESTS, "listRequests", {"operation": "read"}, "/operation"),
        (service_ids.REQUESTS, "listRequests", {"from": "yesterday"}, "/from"),
        (service_ids.REQUESTS, "readInbox", {"limit": "5"}, "/limit"),
        (service_ids.REQUESTS, "readInbox", {"limit": True}, "/limit"),
        (service_ids.DIRECTORY, "readTD", {"thingID": ""}, "/thingID"),
        (service_ids.DIRECTORY, "readTD", {}, "/thingID"),
        (service_ids.HISTORY, "readHistory", {"names": ["a", 7]}, "/names/1"),
        (service_ids.HISTORY, "readAsOf", {"thingID": "dtw:lights:lamp", "time": 7}, "/time"),
        (service_ids.ACCOUNTS, "addClient", {"clientID": "x", "type": "robot"}, "/type"),
        (service_ids.ACCOUNTS, "issueToken", {"clientID": "x", "expiresIn": "60"}, "/expiresIn"),
        (service_ids.RIGHTS, "explain", {"sender": "ann", "operation": "read", "kind": "thing"}, "/kind"),
        (service_ids.LAKE, "retain", {"rules": [{"days": 1, "nmae": "flow"}]}, "/rules/0/nmae"),
    ],
)
async def test_what_is_wrong_is_named_where_it_stands(
    tmp_path: Path, service: str, method: str, given: JSONValue, pointer: str
) -> None:
    async with lamp_house(tmp_path / "home") as house:
        refused = await refusal(house, service, method, given)

    assert [one.pointer for one in refused.problems] == [pointer]


async def test_a_call_is_carried_out_as_it_was_judged(tmp_path: Path) -> None:
    """The same object with another content is another call."""
    async with lamp_house(tmp_path / "home") as house:
        given: dict[str, JSONValue] = {"thingID": "dtw:lights:lamp"}
        lamp = await house.runtime.call(ADMIN, service_ids.DIRECTORY, "readTD", given, HERE)
        given["thingID"] = service_ids.VALUES
        values = await house.runtime.call(ADMIN, service_ids.DIRECTORY, "readTD", given, HERE)

    assert isinstance(lamp, dict)
    assert isinstance(values, dict)
    assert (lamp["id"], values["id"]) == ("dtw:lights:lamp", service_ids.VALUES)
