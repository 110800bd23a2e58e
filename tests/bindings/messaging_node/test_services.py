"""The services behind the node: registry, identities, policies, REST, and the listing of routes."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import httpx
import pytest

from skep import Consumer
from tests.bindings.messaging_node.support import ALLOCATION, NODE, REGISTRY, SM, client
from tests.support import PUMP, Skep, skep

pytestmark = pytest.mark.anyio

CHAT = "hyperty://localhost/chat"
USER = "user://example.org/ann"


def registration(url: str = CHAT, **members: Any) -> dict[str, Any]:
    value = {"url": url, "user": USER, "guid": "user-guid://1", "resources": ["chat", "video"], "dataSchemes": ["comm"]}
    return {"value": value | members}


async def test_registered_is_found_by_user_guid_url_and_criteria(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        assert (await a.ask("create", REGISTRY, registration()))["body"] == {"code": 200}
        assert (await a.ask("create", f"{REGISTRY}/", registration()))["body"] == {"code": 200}

        for resource in (USER, f"/hyperty/user/{USER}", "user-guid://1", "/hyperty/guid/user-guid://1"):
            for criteria in (None, {}, {"resources": ["chat"]}, {"resources": ["chat"], "dataSchemes": ["comm"]}):
                body: dict[str, Any] = {"resource": resource} | ({} if criteria is None else {"criteria": criteria})
                answer = await b.ask("read", REGISTRY, body)
                assert (answer["body"]["code"], list(answer["body"]["value"])) == (200, [CHAT])
        found = (await b.ask("read", REGISTRY, {"resource": CHAT}))["body"]["value"]
        assert (found["user"], found["status"]) == (USER, "live")
        assert not [name for name in found if name.startswith("_")]
        unknown: list[dict[str, Any]] = [
            {"resource": USER, "criteria": {"resources": ["fax"]}},
            {"resource": "user://nobody/x"},
        ]
        for wanted in unknown:
            answer = await b.ask("read", REGISTRY, wanted)
            assert (answer["body"]["code"], answer["body"]["description"]) == (404, "Not Found")


async def test_known_but_not_live_is_408_with_the_entry_and_status_is_pushed(house: Skep) -> None:
    async with client(house, "b") as b:
        async with client(house, "a") as a:
            await a.ask("create", REGISTRY, registration())
            assert (await b.ask("subscribe", SM, {"resources": [f"{CHAT}/registration"]}))["body"] == {"code": 200}

            gone = {"resource": CHAT, "value": "disconnected", "attribute": "status"}
            assert await a.code("update", REGISTRY, gone) == 200
            assert await a.code("update", REGISTRY, gone) == 200
            pushed = await b.next()
            assert (pushed["from"], pushed["to"]) == (REGISTRY, f"{CHAT}/registration")
            assert pushed["body"] == {"value": "disconnected", "attribute": "status"}
            answer = await b.ask("read", REGISTRY, {"resource": USER})
            assert (answer["body"]["code"], list(answer["body"]["value"])) == (408, [CHAT])

            assert await a.code("update", REGISTRY, {"resource": CHAT, "value": {"status": "live"}}) == 200
            assert (await b.next())["body"]["value"] == "live"
            await a.ask("close", "mn:/session", **{"from": a.runtime})
        assert (await b.next())["body"]["value"] == "disconnected"
        assert await b.code("read", REGISTRY, {"resource": CHAT}) == 408
        assert await b.code("update", REGISTRY, {"resource": "hyperty://localhost/unknown"}) == 404


async def test_entries_expire_unless_kept_alive_and_outlive_a_restart(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node={"open": True, "compatible": True}) as house, client(house) as one:
        await one.ask("create", REGISTRY, registration(expires=1))
        await one.ask("create", REGISTRY, registration("hyperty://localhost/long"))
        with anyio.fail_after(30):
            while await one.code("read", REGISTRY, {"resource": CHAT}) != 408:
                pass
        assert await one.code("update", REGISTRY, {"resource": CHAT}) == 200
        assert await one.code("read", REGISTRY, {"resource": CHAT}) == 200
    async with skep(tmp_path, messaging_node={"open": True, "compatible": True}) as house, client(house) as one:
        assert await one.code("read", REGISTRY, {"resource": "hyperty://localhost/long"}) == 200
        assert await one.code("delete", REGISTRY, {"value": {"url": "hyperty://localhost/long"}}) == 200
        assert await one.code("read", REGISTRY, {"resource": "hyperty://localhost/long"}) == 404


async def test_registration_keeps_its_address_and_its_owner_whatever_is_written(house: Skep) -> None:
    async with client(house, "a") as a:
        hostile = registration(_owner="eve", _until="x", expires="x", user=7, guid=[], dataSchemes="x")
        assert await a.code("create", REGISTRY, hostile) == 200
        for attribute in ("url", "_owner", "_until", "_session", "", 7):
            assert await a.code("update", REGISTRY, {"resource": CHAT, "attribute": attribute, "value": 7}) == 400
        changes = {"_owner": "eve", "url": "hyperty://localhost/other", "expires": -1, "note": "x"}
        assert await a.code("update", REGISTRY, {"resource": CHAT, "value": changes}) == 200
        for value in (
            None,
            7,
            {},
            {"url": 7},
            {"url": ""},
            {"url": CHAT, "status": "odd"},
            {"url": CHAT, "d": "x" * 70_000},
        ):
            assert await a.code("create", REGISTRY, {"value": value}) == 400

        found = (await a.ask("read", REGISTRY, {"resource": CHAT}))["body"]["value"]

        assert (found["url"], found["note"], found["status"], found["expires"]) == (CHAT, "x", "live", 3_600)
        assert await a.code("read", REGISTRY, {"resource": "hyperty://localhost/other"}) == 404


async def test_another_account_s_entry_is_not_there_to_change(closed_house: Skep) -> None:
    ann, eve = await closed_house.add("ann"), await closed_house.add("eve")
    async with client(closed_house, "a", ann.token) as a, client(closed_house, "e", eve.token) as e:
        await a.ask("create", REGISTRY, registration())
        assert await e.code("create", REGISTRY, registration(user="user://example.org/eve")) == 404
        assert await e.code("update", REGISTRY, {"resource": CHAT, "value": "dead", "attribute": "status"}) == 404
        assert await e.code("delete", REGISTRY, {"value": {"url": CHAT}}) == 404
        assert (await e.ask("read", REGISTRY, {"resource": CHAT}))["body"]["value"]["user"] == USER


@asynccontextmanager
async def outside(answers: Mapping[str, tuple[int, Any]]) -> AsyncIterator[tuple[str, list[str]]]:
    """A small HTTP server elsewhere: what it answers by method and path, and what it was asked."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        asked.append(f"{method} {path}")
        status, body = answers.get(f"{method} {path}", (404, {}))
        text = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(text), text))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_registry_elsewhere_takes_the_place_of_the_node_s_own(tmp_path: Path) -> None:
    url = f"/hyperty/url/{quote(CHAT, safe='')}"
    user = f"/hyperty/user/{quote(USER, safe='')}"
    answers = {f"PUT {url}": (200, {}), f"GET {user}": (200, {CHAT: {"url": CHAT}}), f"GET {url}": (408, {})}
    async with outside(answers) as (address, asked):
        settings = {"open": True, "registry_url": address}
        async with skep(tmp_path, messaging_node=settings) as house, client(house) as one:
            assert await one.code("create", REGISTRY, registration()) == 200
            assert (await one.ask("read", REGISTRY, {"resource": USER}))["body"]["value"] == {CHAT: {"url": CHAT}}
            assert await one.code("read", REGISTRY, {"resource": CHAT}) == 408
            assert await one.code("read", REGISTRY, {"resource": "user://nobody/x"}) == 404
    assert asked[0] == f"PUT {url}"
    async with skep(tmp_path, messaging_node=settings) as house, client(house) as one:
        assert await one.code("read", REGISTRY, {"resource": USER}) == 504


async def test_policies_hold_for_requests_and_responses_and_are_managed_by_messages(closed_house: Skep) -> None:
    root, ann, bob = [await closed_house.add(n, role=r) for n, r in (("root", "admin"), ("ann", None), ("bob", None))]
    rules = [
        {
            "id": "no-secrets",
            "effect": "block",
            "target": {"operation": "send", "payload/body/secret": {"exists": True}},
        },
        {"id": "no-dancing", "effect": "block", "target": {"operation": "send", "name": "dance"}},
    ]
    policy = {"id": "manners", "policies": [{"id": "all", "rules": rules}]}
    where = f"{NODE}/policies"
    async with (
        client(closed_house, "root", root.token) as admin,
        client(closed_house, "a", ann.token) as a,
        client(closed_house, "b", bob.token) as b,
    ):
        (address,) = await b.allocate()
        add = {"method": "addPolicy", "params": {"policySet": policy}}
        assert await a.code("execute", where, add) == 403
        assert await admin.code("execute", where, add) == 200

        assert await a.code("dance", address) == 403
        assert await a.code("read", address, {"secret": 1}) == 403
        number = await a.send("read", address)
        asked = await b.next()
        await b.send("response", asked["from"], {"code": 200, "secret": 2}, id=number, **{"from": address})
        held_back = await a.next()
        assert (held_back["id"], held_back["body"]["code"]) == (number, 403)

        question = {"sender": "ann", "operation": "send", "thing": address, "name": "dance"}
        answer = await admin.ask("execute", where, {"method": "evaluate", "params": question})
        assert answer["body"]["value"]["allowed"] is False
        assert await admin.code("delete", where, {"resource": "/policies/manners"}) == 200
        await a.send("dance", address)
        assert (await b.next())["type"] == "dance"


@pytest.mark.parametrize(
    ("combining", "code"),
    [("blockOverrides", 403), ("allowOverrides", 404), ("firstApplicable", 404)],
)
async def test_contradicting_rules_for_messages_are_combined_as_the_policy_says(
    closed_house: Skep, combining: str, code: int
) -> None:
    root, ann = await closed_house.add("root", role="admin"), await closed_house.add("ann")
    target = {"operation": "send", "name": "dance"}
    rules = [
        {"id": "no", "effect": "block", "target": target, "priority": 1},
        {"id": "yes", "effect": "allow", "target": {**target, "sender": "ann"}, "priority": 2},
    ]
    policy = {"id": "manners", "policies": [{"id": "all", "combining": combining, "rules": rules}]}
    async with client(closed_house, "root", root.token) as admin, client(closed_house, "a", ann.token) as a:
        add = {"method": "addPolicy", "params": {"policySet": policy}}
        assert await admin.code("execute", f"{NODE}/policies", add) == 200

        assert await a.code("dance", "comm://localhost/nobody") == code
        assert await admin.code("dance", "comm://localhost/nobody") == 403


async def test_policy_files_hold_for_messages_too(tmp_path: Path) -> None:
    rule = {"id": "no", "effect": "block", "target": {"operation": "send", "name": "dance"}}
    (tmp_path / "policies").mkdir(mode=0o700)
    file = tmp_path / "policies" / "manners.json"
    file.write_text(json.dumps({"id": "manners", "policies": [{"id": "all", "rules": [rule]}]}), "utf-8")
    file.chmod(0o600)
    async with skep(tmp_path, messaging_node={"open": True}) as house, client(house) as one:
        assert await one.code("dance", "comm://localhost/nobody") == 403
        assert await one.code("sing", "comm://localhost/nobody") == 404


async def test_policies_hold_for_what_the_node_itself_answers_and_tells(closed_house: Skep) -> None:
    root, ann = await closed_house.add("root", role="admin"), await closed_house.add("ann")
    works = await closed_house.add("works", "agent")

    def blocks(id_: str, **target: Any) -> dict[str, Any]:
        return {"id": id_, "effect": "block", "target": {"operation": "send", "sender": "skep", **target}}

    rules = [
        blocks("no-users", **{"payload/body/value/user": {"exists": True}}),
        blocks("no-profiles", **{"payload/from": "domain://idm.localhost"}),
        blocks("no-readings", **{"payload/body/value/flow": {"exists": True}}),
        blocks("no-outputs", **{"payload/body/value/requestID": {"exists": True}}),
        blocks("no-news", **{"name": "update", "payload/to": f"{CHAT}/registration"}),
    ]
    policy = {"id": "discreet", "policies": [{"id": "all", "rules": rules}]}
    thing = "thing://localhost/works/pump"
    async with (
        client(closed_house, "root", root.token) as admin,
        client(closed_house, "a", ann.token) as a,
        httpx.AsyncClient(base_url=closed_house.http, headers={"authorization": f"Bearer {works.token}"}) as http,
    ):
        assert (await http.put("/agent/things/pump", json=PUMP)).status_code == 201
        assert (await http.post("/agent/things/pump/properties", json={"flow": 3, "target": 3})).is_success
        await a.ask("create", REGISTRY, registration())
        await a.ask("subscribe", SM, {"resources": [f"{CHAT}/registration"]})
        asked: list[tuple[str, str, Any]] = [
            ("read", REGISTRY, {"resource": CHAT}),
            ("read", "domain://idm.localhost", None),
            ("read", thing, None),
            ("execute", thing, {"method": "setSpeed", "params": 3}),
        ]
        assert [await a.code(*one) for one in asked] == [200, 200, 200, 100]
        assert await a.nothing()

        assert await admin.code("create", f"{NODE}/policies", {"value": policy}) == 200

        for type_, to, body in asked:
            answer = (await a.ask(type_, to, body))["body"]
            assert (answer["code"], answer["error"], "value" in answer) == (403, "forbidden", False)
        assert await a.code("read", thing, {"attribute": "target"}) == 200
        status = {"resource": CHAT, "value": "disconnected", "attribute": "status"}
        assert await a.code("update", REGISTRY, status) == 200
        assert await a.nothing()
        assert await admin.code("delete", f"{NODE}/policies", {"resource": "/policies/discreet"}) == 200
        assert await a.code("update", REGISTRY, {**status, "value": "live"}) == 200
        assert (a.aside or [await a.next()])[0]["body"] == {"value": "live", "attribute": "status"}


async def test_rest_exchanges_are_messages_and_their_responses(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    headers = {"authorization": f"Bearer {ann.token}"}
    async with (
        client(closed_house, "b", ann.token) as b,
        httpx.AsyncClient(base_url=closed_house.http, headers=headers, timeout=30) as http,
    ):
        (address,) = await b.allocate()
        path = f"/node/{quote(address, safe='')}"
        for method, type_ in (("GET", "read"), ("POST", "create"), ("DELETE", "delete")):

            async def answered(type_: str = type_) -> None:
                asked = await b.next()
                assert (asked["type"], asked["to"]) == (type_, address)
                body = {"code": 200, "value": asked["body"]}
                await b.send("response", asked["from"], body, id=asked["id"], **{"from": address})

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answered)
                answer = await http.request(method, path, json={"x": 1})
            assert (answer.status_code, answer.json()) == (200, {"code": 200, "value": {"x": 1}})
        assert (await http.put(path, json={"value": 3})).status_code == 202
        assert (await b.next())["body"] == {"value": 3}

        message = {"type": "create", "to": ALLOCATION, "body": {"value": {"number": 2}}}
        answer = await http.post("/node/messages", json=message)
        assert (answer.status_code, len(answer.json()["value"]["allocated"])) == (200, 2)
        assert (await http.get("/node/nobody")).status_code == 404
        assert (await http.patch(path)).status_code == 405
        assert (await http.post("/node/messages", content=b"{")).status_code == 400
        assert (await http.get(path, headers={"origin": "https://evil.example"})).status_code == 403
        assert (await http.get(path, headers={"authorization": "Bearer x"})).status_code == 401
    async with httpx.AsyncClient(base_url=closed_house.http) as nobody:
        assert (await nobody.get(path)).status_code == 401


async def test_guests_exchange_messages_and_see_no_things(house: Skep) -> None:
    async with client(house) as one:
        assert await one.code("read", "thing://localhost/directory/things") == 404
        assert await one.code("subscribe", SM, {"resources": ["thing://localhost/works/pump/changes"]}) == 403
        assert await one.code("read", f"{NODE}/policies") in (403, 404)


async def test_managers_see_the_routes_and_no_tokens(house: Skep) -> None:
    manager, viewer = await house.add("mia", role="manager"), await house.add("vic", role="viewer")
    async with client(house) as one:
        (address,) = await one.allocate()
        async with Consumer(house.http, token=manager.token) as consumer:
            found = await consumer.call("dtw:skep:node", "routes")
        assert isinstance(found, dict)
        assert address in json.dumps(found)
        assert one.token not in json.dumps(found)
        async with Consumer(house.http, token=viewer.token) as consumer:
            with pytest.raises(Exception, match="may not"):
                await consumer.call("dtw:skep:node", "routes")
