"""The directory API: registration, paging, patches, notifications and searches, for twins and other entries."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest

from tests.bindings.http.support import LAMP, Events, House, eventually, house, lamp_house
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

TD_JSON = {"content-type": "application/td+json"}
PATCH = {"content-type": "application/merge-patch+json"}


def gate(**members: Any) -> dict[str, Any]:
    """A TD of a neighbour's Thing."""
    return {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": "Gate",
        "securityDefinitions": {"nosec_sc": {"scheme": "nosec"}},
        "security": "nosec_sc",
        "vendor:colour": "grün",
        **members,
    }


@pytest.fixture
async def lamps(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home") as opened:
        yield opened


async def test_entry_is_created_read_replaced_and_deleted(lamps: House) -> None:
    path = "/things/urn:example:gate"
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        created = await manager.put(path, content=json.dumps(gate(id="urn:example:gate")), headers=TD_JSON)
        assert (created.status_code, created.headers["location"]) == (201, path)
        read = await viewer.get(path)
        td = read.json()
        assert read.headers["content-type"] == "application/td+json"
        assert (td["id"], td["vendor:colour"]) == ("urn:example:gate", "grün")
        assert set(td["registration"]) == {"created", "modified", "retrieved"}
        assert "https://www.w3.org/2022/wot/discovery" in td["@context"]
        assert (await viewer.head(path)).status_code == 200
        unchanged = await viewer.get(path, headers={"if-none-match": read.headers["etag"]})
        assert unchanged.status_code == 304
        for tags in ("*", f'"other", W/{read.headers["etag"]}'):
            assert (await viewer.get(path, headers={"if-none-match": tags})).status_code == 304
        assert (await viewer.get(path, headers={"if-none-match": '"other"'})).status_code == 200

        again = await manager.put(path, json=gate(title="Big gate", registration={"created": "1999-01-01T00:00:00Z"}))
        assert again.status_code == 204
        replaced = (await viewer.get(path)).json()
        assert (replaced["title"], replaced["registration"]["created"]) == ("Big gate", td["registration"]["created"])
        assert (await manager.delete(path)).status_code == 204
        assert (await viewer.get(path)).status_code == 404
        assert (await manager.delete(path)).status_code == 404


async def test_anonymous_thing_gets_an_id_that_its_location_leads_to(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        reply = await manager.post("/things", json=gate())
        location = reply.headers["location"]
        assert reply.status_code == 201
        assert location.startswith("/things/urn:uuid:")
        assert (await manager.get(location)).json()["id"] == location.removeprefix("/things/")
        # Clients that take the location for the id find the Thing as well.
        assert (await manager.get("/things/" + quote(lamps.url + location, safe=""))).status_code == 200
        assert (await manager.post("/things", json=gate(id="urn:x:1"))).status_code == 400
        assert (await manager.put("/things", json=gate())).status_code == 405


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b"{}", TD_JSON, 400, "td-invalid"),
        (b"{", TD_JSON, 400, "malformed"),
        (b"[]", TD_JSON, 400, "malformed"),
        (b'{"title": "a", "title": "b"}', TD_JSON, 400, "malformed"),
        (json.dumps(gate(id="urn:other")).encode(), TD_JSON, 400, "invalid"),
        (json.dumps(gate(registration=5)).encode(), TD_JSON, 400, "invalid"),
        (json.dumps(gate(registration={"ttl": -1})).encode(), TD_JSON, 400, "invalid"),
        (json.dumps(gate(registration={"expires": "soon"})).encode(), TD_JSON, 400, "invalid"),
        (b"<td/>", {"content-type": "application/xml"}, 415, "unsupported-media-type"),
        (json.dumps(gate(x="y" * 262_144)).encode(), TD_JSON, 413, "too-large"),
    ],
)
async def test_what_is_no_td_is_refused_and_leaves_nothing(
    lamps: House, body: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    async with lamps.client("manager1") as manager:
        reply = await manager.put("/things/urn:example:gate", content=body, headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (status, code), reply.text
        assert (await manager.get("/things/urn:example:gate")).status_code == 404
    if code == "td-invalid":
        assert reply.json()["title"] == "Bad Request"
        assert all(error["field"] and error["description"] for error in reply.json()["validationErrors"])


async def test_a_repeated_key_is_named_where_it_stands(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        body = b'{"title": "a", "properties": {"x": {"type": "string", "type": "number"}}}'
        reply = await manager.put("/things/urn:example:gate", content=body, headers=TD_JSON)

    assert (reply.status_code, reply.json()["code"]) == (400, "malformed")
    assert [error["pointer"] for error in reply.json()["errors"]] == ["#/properties/x/type"]
    assert [error["field"] for error in reply.json()["validationErrors"]] == ["/properties/x/type"]


async def test_only_managers_write_and_nobody_writes_twins(lamps: House) -> None:
    async with lamps.client("viewer1") as viewer, lamps.client("admin1") as admin, lamps.client("lights") as lights:
        assert (await viewer.put("/things/urn:x:1", json=gate())).status_code == 403
        assert (await lights.put("/things/urn:x:1", json=gate())).status_code == 403
        for client in (viewer, admin, lights):
            assert (await client.put("/things/dtw:lights:lamp", json=gate())).status_code == 403
            assert (await client.delete("/things/dtw:lights:lamp")).status_code == 403
        assert (await viewer.patch("/things/dtw:lights:lamp", json={"title": "x"}, headers=PATCH)).status_code == 403


async def test_lost_updates_are_prevented_by_tags(lamps: House) -> None:
    path = "/things/urn:example:gate"
    async with lamps.client("manager1") as manager:
        assert (await manager.put(path, json=gate(), headers={"if-match": '"1-x"'})).status_code == 412
        assert (await manager.put(path, json=gate(), headers={"if-none-match": "*"})).status_code == 201
        assert (await manager.put(path, json=gate(), headers={"if-none-match": "*"})).status_code == 412
        tag = (await manager.get(path)).headers["etag"]
        assert (await manager.put(path, json=gate(title="B"), headers={"if-match": tag})).status_code == 204
        assert (await manager.put(path, json=gate(title="C"), headers={"if-match": tag})).status_code == 412
        stale = await manager.patch(path, json={"title": "D"}, headers={**PATCH, "if-match": tag})
        assert stale.status_code == 412
        assert (await manager.delete(path, headers={"if-match": tag})).status_code == 412
        assert (await manager.get(path)).json()["title"] == "B"


async def test_patch_merges_and_an_invalid_result_changes_nothing(lamps: House) -> None:
    path = "/things/urn:example:gate"
    async with lamps.client("manager1") as manager:
        await manager.put(path, json=gate(description="old"))
        patch = {"title": "Portal", "description": None, "vendor:size": {"w": 2}}
        assert (await manager.patch(path, json=patch, headers=PATCH)).status_code == 204
        td = (await manager.get(path)).json()
        assert (td["title"], td["vendor:size"], td["vendor:colour"]) == ("Portal", {"w": 2}, "grün")
        assert "description" not in td

        assert (await manager.patch(path, json={"title": None}, headers=PATCH)).status_code == 400
        assert (await manager.patch(path, json={"id": "urn:other"}, headers=PATCH)).status_code == 400
        assert (await manager.patch(path, content=b"[]", headers=PATCH)).status_code == 400
        assert (await manager.patch(path, json={"title": "X"})).status_code == 415
        assert (await manager.patch("/things/urn:none", json={"title": "X"}, headers=PATCH)).status_code == 404
        assert (await manager.get(path)).json()["title"] == "Portal"


async def test_managers_lay_titles_over_twins_that_outlive_the_next_publish(lamps: House) -> None:
    path = "/things/dtw:lights:lamp"
    async with lamps.client("manager1") as manager, lamps.client("lights") as lights:
        assert (await manager.patch(path, json={"title": "Leselampe"}, headers=PATCH)).status_code == 204
        await lights.put("/agent/things/lamp", json=LAMP | {"description": "new"})
        td = (await manager.get(path)).json()
        assert (td["title"], td["description"]) == ("Leselampe", "new")
        assert (await manager.patch(path, json={"title": None}, headers=PATCH)).status_code == 204
        assert (await manager.get(path)).json()["title"] == "Lamp"
        assert (await manager.patch(path, json={"actions": {}}, headers=PATCH)).status_code == 403
        assert (await manager.patch(path, json={"id": "dtw:x:y"}, headers=PATCH)).status_code == 400


async def test_time_to_live_counts_from_each_write_and_hides_at_once(lamps: House) -> None:
    path = "/things/urn:example:gate"
    async with lamps.client("manager1") as manager:
        await manager.put(path, json=gate(registration={"ttl": 3_600, "expires": "2000-01-01T00:00:00Z"}))
        registration = (await manager.get(path)).json()["registration"]
        assert registration["ttl"] == 3_600
        assert registration["expires"] > registration["modified"]
        await manager.patch(path, json={"title": "Patched"}, headers=PATCH)
        patched = (await manager.get(path)).json()["registration"]
        assert patched["expires"] > registration["expires"]

        await manager.put(path, json=gate(registration={"expires": "2999-01-01T00:00:00Z"}))
        await manager.patch(path, json={"title": "Again"}, headers=PATCH)
        assert (await manager.get(path)).json()["registration"]["expires"] == "2999-01-01T00:00:00Z"
        await manager.put(path, json=gate(registration={"ttl": 0.001}))
        await eventually(lambda: _is_gone(manager, path))
        assert path.removeprefix("/things/") not in [td["id"] for td in (await manager.get("/things")).json()]


async def _is_gone(client: httpx.AsyncClient, path: str) -> bool:
    return (await client.get(path)).status_code == 404


async def test_registration_that_has_ended_already_is_refused_and_changes_nothing(lamps: House) -> None:
    path = "/things/urn:example:gate"
    async with lamps.client("manager1") as manager:
        await manager.put(path, json=gate(title="Before"))
        refused = await manager.put(path, json=gate(registration={"expires": "2000-01-01T00:00:00Z"}))
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
        assert "in the past" in refused.json()["detail"]
        assert (await manager.get(path)).json()["title"] == "Before"


async def test_location_of_an_entry_finds_it_however_it_is_joined(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        location = (await manager.post("/things", content=json.dumps(gate()), headers=TD_JSON)).headers["location"]
        absolute = f"{lamps.url}{location}"
        for joined in (location, absolute, quote(location, safe=""), quote(absolute, safe="")):
            found = await manager.get(f"{lamps.url}/things/{joined}")
            assert (found.status_code, f"/things/{quote(found.json()['id'], safe=':-')}") == (200, location), joined
        assert (await manager.get(f"{lamps.url}/things/https://elsewhere.example{location}")).status_code == 404
        assert (await manager.delete(f"{lamps.url}/things/{location}")).status_code == 204


async def test_page_longer_than_the_longest_is_the_longest_and_next_counts_what_came_before(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        for index in range(5):
            await manager.put(f"/things/urn:x:{index}", json=gate())
        whole = [td["id"] for td in (await manager.get("/things?limit=100000")).json()]
        seen, offset, target = [], 0, "/things?limit=2"
        while target:
            page = await manager.get(target)
            seen += [td["id"] for td in page.json()]
            offset += len(page.json())
            target = page.links.get("next", {}).get("url", "")
            assert not target or f"offset={offset}" in target
        assert seen == whole


async def test_values_of_an_entry_that_lives_elsewhere_are_not_here(lamps: House) -> None:
    async with lamps.client("manager1") as manager:
        await manager.put(
            "/things/urn:x:1", json=gate(properties={"count": {"type": "integer", "forms": [{"href": "/c"}]}})
        )
        for path in ("properties", "properties/count"):
            assert (await manager.get(f"/things/urn:x:1/{path}")).status_code == 404


async def test_directory_asks_for_what_every_client_knows(lamps: House) -> None:
    async with lamps.client() as nobody:
        td = (await nobody.get("/.well-known/wot")).json()
    assert [td["securityDefinitions"][name]["scheme"] for name in td["security"]] == ["bearer"]


@pytest.mark.parametrize("path", ["/events", "/stream?thing=dtw:lights:lamp"])
async def test_event_stream_begins_with_no_empty_event(lamps: House, path: str) -> None:
    accept = {"accept": "text/event-stream"}
    async with lamps.client("manager1") as manager, manager.stream("GET", path, headers=accept) as reply:
        first = await anext(reply.aiter_raw())
    assert first.startswith(b":")
    assert b"\n\n" not in first


async def test_listing_is_sorted_and_paged_with_links(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        for index in range(5):
            await manager.put(f"/things/urn:x:{index}", json=gate())
        reply = await viewer.get("/things")
        ids = [td["id"] for td in reply.json()]
        assert ids == sorted(ids)
        assert set(ids) >= {"dtw:lights:lamp", *(f"urn:x:{index}" for index in range(5))}
        assert reply.headers["content-type"] == "application/ld+json"
        assert "link" not in reply.headers

        collected: list[str] = []
        path = "/things?limit=4"
        while path:
            page = await viewer.get(path)
            collected += [td["id"] for td in page.json()]
            assert 'rel="canonical"; etag="' in page.headers["link"]
            path = page.links.get("next", {}).get("url", "")
        assert collected == ids
        tag = page.headers["link"]
        await manager.delete("/things/urn:x:0")
        assert (await viewer.get("/things?limit=4&offset=4")).headers["link"] != tag

        collection = (await viewer.get("/things?format=collection&limit=2")).json()
        assert (collection["@type"], len(collection["members"])) == ("ThingCollection", 2)
        assert collection["total"] == len(ids) - 1
        assert "cursor=" in collection["next"]
        assert "format=collection" in collection["next"]
        assert [td["id"] for td in (await viewer.get("/things?text=lamp")).json()] == ["dtw:lights:lamp"]
        filtered = await viewer.get("/things", params={"filter": "agent = lights and not title = Pump"})
        assert [td["id"] for td in filtered.json()] == ["dtw:lights:lamp"]
        assert (await viewer.get("/things", params={"filter": "agent ="})).status_code == 400
        for query in ("limit=0", "limit=-1", "limit=x", "offset=-1", "format=odd", "limit=1&limit=2"):
            assert (await viewer.get(f"/things?{query}")).status_code == 400, query
        unacceptable = await viewer.get("/things", headers={"accept": "text/html"})
        assert unacceptable.status_code == 406
        assert (await viewer.get("/things/urn:x:1", headers={"accept": "text/html"})).status_code == 406


async def test_pages_join_without_holes_while_entries_come_and_go(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        for index in range(6):
            await manager.put(f"/things/urn:x:{index}", json=gate())
        first = await viewer.get("/things?limit=2&text=gate")
        await manager.delete("/things/urn:x:0")
        await manager.put("/things/urn:x:00", json=gate())
        await manager.put("/things/urn:x:9", json=gate())
        rest = []
        page = first
        while "next" in page.links:
            page = await viewer.get(page.links["next"]["url"])
            rest += [td["id"] for td in page.json()]

    assert [td["id"] for td in first.json()] == ["urn:x:0", "urn:x:1"]
    assert rest == ["urn:x:2", "urn:x:3", "urn:x:4", "urn:x:5", "urn:x:9"]


async def test_listings_and_searches_tell_of_registration_as_reading_does(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        await manager.put("/things/urn:x:1", json=gate(registration={"ttl": 60}))
        read = (await viewer.get("/things/urn:x:1")).json()
        listed = (await viewer.get("/things?text=gate")).json()
        collected = (await viewer.get("/things?text=gate&format=collection")).json()["members"]
        found = (await viewer.get("/search/jsonpath", params={"query": "$[?@.title=='Gate']"})).json()
        twin = (await viewer.get("/things?agent=lights")).json()[0]

    registration = read.pop("registration")
    assert set(registration) == {"ttl", "created", "modified", "expires", "retrieved"}
    for entry in (*listed, *collected, *found):
        there = entry.pop("registration")
        assert entry == read
        assert there | {"retrieved": ""} == registration | {"retrieved": ""}
    assert len([*listed, *collected, *found]) == 3
    assert set(twin["registration"]) == {"created", "modified", "retrieved"}


async def test_missed_changes_are_told_after_a_restart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with lamp_house(home) as lamps, lamps.client("manager1") as manager:
        async with manager.stream("GET", "/events") as response:
            events = Events(response)
            await manager.put("/things/urn:x:1", json=gate())
            seen = await events.next()
        await manager.patch("/things/urn:x:1", json={"title": "Portal"}, headers=PATCH)
        await manager.put("/things/urn:x:2", json=gate())
        await manager.delete("/things/urn:x:2")
        tokens, tag = lamps.tokens, (await manager.get("/things?limit=1")).links["canonical"]["etag"]
    async with house(home) as again:
        again.tokens |= tokens
        async with (
            again.client("viewer1") as viewer,
            viewer.stream("GET", "/events?diff=true", headers={"last-event-id": seen["id"]}) as response,
        ):
            events = Events(response)
            told = [await events.next() for _ in range(3)]
            unchanged = (await viewer.get("/things?limit=1")).links["canonical"]["etag"]

    assert [one["event"] for one in told] == ["thing_updated", "thing_created", "thing_deleted"]
    assert json.loads(told[0]["data"])["title"] == "Portal"
    assert [json.loads(one["data"]) for one in told[1:]] == [{"id": "urn:x:2"}] * 2
    assert seen["id"] < told[0]["id"] < told[1]["id"] < told[2]["id"]
    assert unchanged == tag


async def test_directory_describes_itself_to_everyone(lamps: House) -> None:
    async with lamps.client() as nobody:
        reply = await nobody.get("/.well-known/wot")
        assert (await nobody.get("/things")).status_code == 401

    td = reply.json()
    assert reply.headers["content-type"] == "application/td+json"
    assert td["@type"] == "ThingDirectory"
    writes = {"createThing", "createAnonymousThing", "updateThing", "partiallyUpdateThing", "deleteThing"}
    assert set(td["actions"]) == {*writes, "retrieveThing", "searchJSONPath", "searchXPath", "searchSPARQL"}
    assert set(td["events"]) == {"thingCreated", "thingUpdated", "thingDeleted"}
    ThingDescription.of(td)


async def test_notifications_tell_what_changed_to_those_who_may_know(lamps: House) -> None:
    async with (
        lamps.client("manager1") as manager,
        lamps.client("viewer1") as viewer,
        viewer.stream("GET", "/events?diff=true") as every,
        viewer.stream("GET", "/events/thing_deleted") as deleted,
    ):
        events = Events(every)
        await manager.put("/things/urn:x:1", json=gate(id="urn:x:1"))
        first = await events.next()
        assert first["event"] == "thing_created"
        assert json.loads(first["data"])["title"] == "Gate"
        assert json.loads(first["data"])["registration"]["created"]
        await manager.patch("/things/urn:x:1", json={"title": "Portal"}, headers=PATCH)
        second = await events.next()
        assert second["event"] == "thing_updated"
        changed = json.loads(second["data"])
        modified = (await viewer.get("/things/urn:x:1")).json()["registration"]["modified"]
        assert changed == {"id": "urn:x:1", "title": "Portal", "registration": {"modified": modified}}
        await manager.delete("/things/urn:x:1")
        third = await events.next()
        assert (third["event"], json.loads(third["data"])) == ("thing_deleted", {"id": "urn:x:1"})
        assert json.loads((await Events(deleted).next())["data"]) == {"id": "urn:x:1"}

        headers = {"last-event-id": first["id"]}
        async with viewer.stream("GET", "/events", headers=headers) as missed:
            again = Events(missed)
            assert [(await again.next())["id"] for _ in range(2)] == [second["id"], third["id"]]
        assert (await viewer.get("/events/thing_burnt")).status_code == 404
        assert (await viewer.get("/events?diff=odd")).status_code == 400
        with anyio.fail_after(30):
            assert (await viewer.head("/events/thing_created")).status_code == 200


async def test_a_twins_changes_never_show_the_devices_forms(lamps: House) -> None:
    async with (
        lamps.client("lights") as lights,
        lamps.client("viewer1") as viewer,
        viewer.stream("GET", "/events/thing_updated?diff=true") as response,
    ):
        events = Events(response)
        secret = [{"href": "http://10.0.0.9/secret"}]
        changed = json.loads(json.dumps(LAMP))
        changed["properties"]["level"] |= {"title": "Brightness", "forms": secret}
        changed |= {"base": "http://10.0.0.9/", "forms": [{"op": ["readallproperties"], "href": "http://10.0.0.9/all"}]}
        changed |= {"securityDefinitions": {"n": {"scheme": "nosec"}}, "security": "n"}
        del changed["events"]["touched"]
        assert (await lights.put("/agent/things/lamp", json=changed)).status_code == 204
        found = await events.next()

    patch = json.loads(found["data"])
    assert "10.0.0.9" not in found["data"]
    assert patch["id"] == "dtw:lights:lamp"
    assert patch["properties"]["level"]["title"] == "Brightness"
    assert patch["events"] == {"touched": None}


async def test_searches_answer_with_what_the_caller_may_see(lamps: House) -> None:
    async with lamps.client("manager1") as manager, lamps.client("viewer1") as viewer:
        await manager.put("/things/urn:x:1", json=gate(id="urn:x:1"))
        for query in ("$[?(@.title=='Gate')].id", '$[?@.title == "Gate"]["id"]', quote("$[?@.title=='Gate'].id")):
            reply = await _get_raw(viewer, f"/search/jsonpath?query={query}")
            assert (reply.status_code, reply.json()) == (200, ["urn:x:1"]), query
        reply = await viewer.get("/search/xpath", params={"query": "//thing[title='Gate']/id"})
        assert (reply.status_code, reply.json()) == (200, ["urn:x:1"])
        assert (await viewer.head("/search/jsonpath", params={"query": "$"})).status_code == 200
        for path in (
            "/search/jsonpath",
            "/search/jsonpath?query=$[",
            "/search/xpath?query=//[[",
            "/search/jsonpath?query=",
        ):
            assert (await _get_raw(viewer, path)).status_code == 400, path


async def _get_raw(client: httpx.AsyncClient, target: str) -> httpx.Response:
    """GET with the target as it is: clients of the directory do not escape their queries."""
    path, _, query = target.partition("?")
    request = client.build_request("GET", path)
    raw = (path + (f"?{query}" if query else "")).replace(" ", "%20").encode()
    request.extensions["target"] = raw
    return await client.send(request)
