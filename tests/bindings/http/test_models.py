"""Thing Models over HTTP: stored by version, composed of each other, and made into Thing Descriptions."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.bindings.http.support import House, house, lamp_house
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

TM = {"content-type": "application/tm+json"}
DIMMER = "urn:models:dimmer"


def model(**members: Any) -> dict[str, Any]:
    return {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "@type": "tm:ThingModel",
        "title": "Light {{SERIAL}}",
        "properties": {"on": {"type": "boolean"}, "level": {"type": "integer", "maximum": "{{MOST}}"}},
        "actions": {"toggle": {}},
        "tm:optional": ["/actions/toggle"],
        **members,
    }


def extending(address: str, **members: Any) -> dict[str, Any]:
    return model(title="More", properties={}, actions={}, **{"tm:optional": []}, **members) | {
        "links": [{"rel": "tm:extends", "href": address}]
    }


def composed(*parts: tuple[str, str]) -> dict[str, Any]:
    links = [{"rel": "tm:submodel", "href": href, "instanceName": name} for name, href in parts]
    return model(links=links)


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def put(client: httpx.AsyncClient, model_id: str, document: dict[str, Any], **headers: str) -> httpx.Response:
    return await client.put(f"/models/{model_id}", json=document, headers={**TM, **headers})


async def instance(client: httpx.AsyncClient, model_id: str, **given: Any) -> httpx.Response:
    values = {"placeholders": {"SERIAL": "17", "MOST": 80}, "agent": True, **given}
    return await client.post(f"/models/{model_id}/instances", json=values)


async def test_a_model_is_stored_read_replaced_and_removed(lamps: House) -> None:
    path = f"/models/{DIMMER}"
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        created = await put(manager, DIMMER, model())
        assert (created.status_code, created.headers["location"]) == (201, path)
        read = await viewer.get(path)
        assert (read.headers["content-type"], read.json()) == ("application/tm+json", model())

        again = await put(manager, DIMMER, model(title="Other"), **{"if-match": read.headers["etag"]})
        assert (again.status_code, again.headers["etag"]) == (204, '"2"')
        stale = await put(manager, DIMMER, model(), **{"if-match": read.headers["etag"]})
        there = await put(manager, DIMMER, model(), **{"if-none-match": "*"})
        assert [reply.status_code for reply in (stale, there)] == [412, 412]
        assert (await viewer.get(path)).json()["title"] == "Other"
        assert (await viewer.get(path, params={"version": 1})).json() == model()
        assert (await viewer.get(path, params={"version": 7})).status_code == 404

        (found,) = (await viewer.get("/models", params={"text": "OTH"})).json()
        assert (found["modelID"], found["version"], found["href"]) == (DIMMER, 2, path)
        assert (await viewer.get("/models", params={"text": "none"})).json() == []

        assert (await manager.delete(path)).status_code == 204
        assert {(await viewer.get(path)).status_code, (await manager.delete(path)).status_code} == {404}
        versions = (await viewer.get(f"{path}/versions")).json()["items"]
        assert [(each["version"], each["isRemoved"]) for each in versions] == [(1, False), (2, False), (3, True)]
        assert (await put(manager, DIMMER, model())).status_code == 201


async def test_models_outlive_a_restart(tmp_path: Path) -> None:
    async with lamp_house(tmp_path / "home") as lamps, lamps.client("manager1") as manager:
        await put(manager, DIMMER, model())
        tokens = lamps.tokens
    async with house(tmp_path / "home") as again:
        again.tokens |= tokens
        async with again.client("viewer1") as viewer:
            assert (await viewer.get(f"/models/{DIMMER}")).json() == model()


async def test_pages_of_models_lead_to_each_other(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        for number in range(5):
            await put(manager, f"urn:models:{number}", model())
        found, path = [], "/models?limit=2"
        while path:
            page = await manager.get(path)
            found += [item["modelID"] for item in page.json()]
            path = page.links.get("next", {}).get("url", "")

    assert found == [f"urn:models:{number}" for number in range(5)]


async def test_a_model_without_an_id_gets_one(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        reply = await manager.post("/models", json=model(), headers=TM)
        read = await manager.get(reply.headers["location"])

    assert reply.status_code == 201
    assert reply.headers["location"].startswith("/models/urn:uuid:")
    assert read.json() == model()


async def test_only_who_writes_entries_of_the_directory_writes_models(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client() as stranger:
        await put(manager, DIMMER, model())
        for name in ("viewer1", "operator1", "lights"):
            async with lamps.client(name) as client:
                assert (await put(client, DIMMER, model(title="x"))).status_code == 403
                assert (await put(client, "urn:models:new", model())).status_code == 403
                assert (await client.delete(f"/models/{DIMMER}")).status_code == 403
        assert (await stranger.get("/models")).status_code == 401


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"title": "x"}, "#/@type"),
        (model(**{"tm:optional": ["toggle"]}), "#/tm:optional/0"),
        (model(links=[{"rel": "tm:submodel"}]), "#/links/0/href"),
        (model(links=[{"rel": "tm:extends", "href": "a"}, {"rel": "tm:extends", "href": "b"}]), "#/links/1/rel"),
        (model(properties={"a": {"tm:ref": "nowhere"}}), "#/properties/a/tm:ref"),
        (model(properties={"a": {"type": "colour"}}), "#/properties/a/type"),
    ],
)
async def test_what_is_no_model_is_refused_with_pointers(lamps: House, body: dict[str, Any], pointer: str) -> None:
    async with lamps.client("manager1") as manager:
        reply = await put(manager, DIMMER, body)
        assert (reply.status_code, reply.json()["code"]) == (400, "td-invalid"), reply.text
        assert pointer in [error["pointer"] for error in reply.json()["errors"]]
        assert (await manager.get(f"/models/{DIMMER}")).status_code == 404


async def test_ids_of_models_are_uris_and_no_twins(lamps: House) -> None:
    async with lamps.client("admin1") as admin:
        for model_id in ("dimmer", "dtw:lights:lamp"):
            assert (await put(admin, model_id, model())).status_code in (400, 403), model_id


async def test_a_thing_is_made_with_placeholders_options_and_additions(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        await put(manager, DIMMER, model())

        whole = (await instance(viewer, DIMMER)).json()
        chosen = (await instance(viewer, DIMMER, id="urn:x:1", options=[], additions={"description": "d"})).json()

    assert whole["parts"] == []
    td = whole["td"]
    ThingDescription.of(td, agent=True)
    assert (td["title"], td["properties"]["level"]["maximum"], list(td["actions"])) == ("Light 17", 80, ["toggle"])
    assert {"rel": "type", "href": DIMMER, "type": "application/tm+json"} in td["links"]
    assert (chosen["td"]["id"], chosen["td"]["description"], chosen["td"].get("actions")) in [
        ("urn:x:1", "d", {}),
        ("urn:x:1", "d", None),
    ]


@pytest.mark.parametrize(
    ("given", "pointer"),
    [
        ({"placeholders": {"SERIAL": "17"}}, "#/placeholders/MOST"),
        ({"options": ["/actions/none"]}, "#/options/0"),
        ({"option": []}, "#/option"),
        ({"agent": "yes"}, "#/agent"),
        ({"agent": False}, "#/security"),
    ],
)
async def test_what_a_thing_lacks_is_said_by_pointers(lamps: House, given: dict[str, Any], pointer: str) -> None:
    async with lamps.client("manager1") as manager:
        await put(manager, DIMMER, model())
        reply = await instance(manager, DIMMER, **given)

    assert reply.status_code == 400, reply.text
    assert pointer in [error["pointer"] for error in reply.json()["errors"]]


async def test_partial_models_are_composed_by_id_and_by_address(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        await put(manager, "urn:models:more", extending(DIMMER))
        await put(manager, "urn:models:far", extending(f"{lamps.url}/models/{DIMMER.replace(':', '%3A')}"))
        early = await instance(manager, "urn:models:more")
        await put(manager, DIMMER, model())
        part = model(properties={"copy": {"tm:ref": f"{DIMMER}#/properties/on", "title": "Copy"}}, actions={})
        await put(manager, "urn:models:part", part | {"tm:optional": []})

        made = [(await instance(manager, name)).json()["td"] for name in ("urn:models:more", "urn:models:far")]
        copied = (await instance(manager, "urn:models:part")).json()["td"]
        composed_ = await manager.get("/models/urn:models:more", params={"composed": "true"})

    assert (early.status_code, early.json()["code"]) == (400, "invalid")
    assert [set(td["properties"]) for td in made] == [{"on", "level"}] * 2
    assert copied["properties"]["copy"] == {"type": "boolean", "title": "Copy"}
    assert set(composed_.json()["properties"]) == {"on", "level"}


async def test_a_composed_thing_has_its_parts_as_things_of_their_own(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        await put(manager, DIMMER, model())
        await put(manager, "urn:models:floor", composed(("one", DIMMER), ("two", DIMMER)))
        await put(manager, "urn:models:room", composed(("floor lamp", "urn:models:floor")))

        found = (await instance(manager, "urn:models:room", id="urn:room")).json()
        lacking = await instance(manager, "urn:models:room")

    ids = [part["id"] for part in found["parts"]]
    assert ids == ["urn:room:floor%20lamp", "urn:room:floor%20lamp:one", "urn:room:floor%20lamp:two"]
    assert [link["href"] for link in found["td"]["links"] if link["rel"] == "item"] == ids[:1]
    assert [link["href"] for link in found["parts"][1]["links"] if link["rel"] == "collection"] == ids[:1]
    assert (lacking.status_code, lacking.json()["errors"][0]["pointer"]) == (400, "#/id")


async def test_models_that_include_each_other_are_refused_when_the_circle_closes(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        itself = await put(manager, "urn:models:a", extending("urn:models:a"))
        first = await put(manager, "urn:models:b", extending("urn:models:c"))
        second = await put(manager, "urn:models:c", extending("urn:models:b"))
        whole = await put(manager, "urn:models:d", composed(("e", "urn:models:e")))
        part = await put(manager, "urn:models:e", composed(("d", "urn:models:d")))
        left = [item["modelID"] for item in (await manager.get("/models")).json()]

    assert [reply.status_code for reply in (first, whole)] == [201, 201]
    for reply in (itself, second, part):
        assert (reply.status_code, reply.json()["code"]) == (400, "invalid"), reply.text
    assert left == ["urn:models:b", "urn:models:d"]


async def test_what_a_hundred_models_make_together_is_bounded(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        await put(manager, "urn:m:0", model(links=[]))
        for level in range(1, 8):
            parts = [(str(number), f"urn:m:{level - 1}") for number in range(4)]
            reply = await put(manager, f"urn:m:{level}", composed(*parts))
            if reply.status_code != 201:
                break
        made = await instance(manager, f"urn:m:{level - 1}", id="urn:big")

    assert (reply.status_code, reply.json()["code"]) == (400, "invalid")
    assert "includes more than" in reply.json()["detail"]
    assert made.status_code == 200
    assert len(made.json()["parts"]) < 100


async def test_what_a_caller_may_not_see_is_not_composed_for_it(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client("admin1") as admin:
        await put(manager, DIMMER, model())
        await put(manager, "urn:models:more", extending(DIMMER))
        rule = {"id": "hidden", "effect": "deny", "thing": DIMMER, "roles": ["viewer"]}
        reply = await admin.post("/rpc/dtw:authz:admin/putRule", json={"rule": rule})
        assert reply.status_code == 200, reply.text
    async with lamps.client("viewer1") as viewer:
        made = await instance(viewer, "urn:models:more")
        listed = [item["modelID"] for item in (await viewer.get("/models")).json()]
        read = await viewer.get(f"/models/{DIMMER}")

    assert (made.status_code, read.status_code, listed) == (400, 404, ["urn:models:more"])
