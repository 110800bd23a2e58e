"""Who hears an address: one decision for each address of a SUBSCRIBE and each receiver of a change, in all dialects."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from bindings.messaging_node import audience
from tests.bindings.messaging_node.support import ALLOCATION, NODE, REGISTRY, SM, Client, client, connected
from tests.support import Skep, skep

pytestmark = pytest.mark.anyio

ROOM = "ctxt://localhost/room"
NOBODYS = "ctxt://localhost/nobodys"
POLICIES = f"{NODE}/policies"
DIALECTS: Mapping[str, Mapping[str, Any]] = {
    "final": {"resources": ["comm://localhost/o/changes"]},
    "nested": {"resources": [["comm://localhost/o/changes"]]},
    "middle": {"subscribe": ["comm://localhost/o/changes"], "unsubscribe": ["comm://localhost/o/changes"]},
    "first": {"resource": "comm://localhost/o"},
    "of one client": {"resource": "comm://localhost/o", "children": ["chat"]},
}


async def hide(house: Skep, **members: Any) -> None:
    """Set a rule that hides the room."""
    admin = await house.add("root", role="admin")
    rule = {"id": "hide", "effect": "deny", "thing": "dtw:meter:room", **members}
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {admin.token}"}) as http:
        answer = await http.post(f"{house.http}/rpc/dtw:authz:admin/putRule", json={"rule": rule})
        assert answer.status_code == 200


async def report(meter: Client) -> None:
    await meter.ask("create", ALLOCATION, {"value": {"allocated": [ROOM]}})
    schema = {"properties": {"pin": {"type": "number"}, "light": {"type": "number"}}}
    value = {"url": ROOM, "name": "room", "data": {"pin": 1234, "light": 1}, "schema": schema, "status": "live"}
    assert await meter.code("create", REGISTRY, {"value": value}) == 200


async def tell(one: Client, url: str, body: Any, **members: Any) -> None:
    """Tell a change; it has been passed on when this returns."""
    await one.send("update", f"{url}/changes", body, **({"from": url} | members))
    await one.ask("read", "nobody://at/all")


async def test_hidden_thing_is_hidden_as_an_object_too(closed_house: Skep) -> None:
    meter = await closed_house.add("meter", "agent")
    carol, dora = await closed_house.add("carol", role="viewer"), await closed_house.add("dora", role="viewer")
    await hide(closed_house, accounts=["carol"])
    async with (
        client(closed_house, "m", meter.token) as m,
        client(closed_house, "c", carol.token) as c,
        client(closed_house, "d", dora.token) as d,
    ):
        # Before anybody knows that it is a Thing, what comes is judged all the same.
        assert await c.code("subscribe", SM, {"resources": [f"{ROOM}/changes"]}) == 200
        await report(m)
        for address in (f"{ROOM}/changes", f"{ROOM}/children/x", f"{ROOM}/registration"):
            assert await d.code("subscribe", SM, {"resources": [address]}) == 200
        # Nothing tells it from an object that nobody has.
        for url in (ROOM, NOBODYS):
            for address in (f"{url}/children/x", f"{url}/registration", f"{url}/status"):
                assert await c.code("subscribe", SM, {"resources": [address]}) == 200
            assert await c.code("read", REGISTRY, {"resource": url}) == 404
            assert await c.code("read", url) == 404
            assert await c.code("subscribe", f"{url}/subscription") == 404
        assert await c.code("read", REGISTRY, {"resource": "room"}) == 404
        refusals = [(await c.ask("read", url))["body"] for url in (ROOM, NOBODYS)]
        assert refusals[0] == json.loads(json.dumps(refusals[1]).replace(NOBODYS, ROOM))
        assert (await d.ask("read", REGISTRY, {"resource": ROOM}))["body"]["value"]["data"]["pin"] == 1234

        await tell(m, ROOM, {"attribute": "pin", "value": 9999})
        await m.send("create", f"{ROOM}/children/x", {"value": "hi"}, **{"from": ROOM})
        assert await m.code("update", REGISTRY, {"resource": ROOM, "status": "disconnected"}) == 200

        assert await c.nothing()
        assert (await d.next())["body"]["value"] == 9999


async def test_rule_that_comes_later_ends_what_an_object_tells_also_what_waits(closed_house: Skep) -> None:
    meter, carol = await closed_house.add("meter", "agent"), await closed_house.add("carol", role="viewer")
    async with client(closed_house, "m", meter.token) as m, client(closed_house, "c", carol.token) as c:
        await report(m)
        assert await c.code("subscribe", SM, {"resources": [f"{ROOM}/changes"]}) == 200
        await tell(m, ROOM, {"attribute": "pin", "value": 1})
        assert (await c.next())["body"]["value"] == 1
        await c.socket.close()
        await tell(m, ROOM, {"attribute": "pin", "value": 2})
        await hide(closed_house, accounts=["carol"])
        await tell(m, ROOM, {"attribute": "pin", "value": 3})
        async with client(closed_house, "other", carol.token) as again:
            assert await again.code("subscribe", SM, {"resources": [f"{ROOM}/changes"]}) == 200
            await tell(m, ROOM, {"attribute": "pin", "value": 4})
            assert await again.nothing()
        async with connected(closed_house, c.runtime, carol.token) as back:
            assert (await back.reopen(c.session))["body"]["code"] == 200
            assert await back.nothing()


async def test_who_may_know_of_a_thing_and_not_observe_it_is_told_so(closed_house: Skep) -> None:
    meter, carol = await closed_house.add("meter", "agent"), await closed_house.add("carol", role="viewer")
    await hide(closed_house, accounts=["carol"], operations=["observe"])
    async with client(closed_house, "m", meter.token) as m, client(closed_house, "c", carol.token) as c:
        await report(m)
        assert await c.code("subscribe", SM, {"resources": [f"{ROOM}/changes"]}) == 403
        assert await c.code("read", ROOM) == 403
        assert await c.code("subscribe", f"{ROOM}/subscription") == 403


async def test_single_property_is_hidden_in_changes_and_in_the_registry(closed_house: Skep) -> None:
    meter, carol = await closed_house.add("meter", "agent"), await closed_house.add("carol", role="viewer")
    async with client(closed_house, "m", meter.token) as m, client(closed_house, "c", carol.token) as c:
        await report(m)
        assert await c.code("subscribe", SM, {"resources": [f"{ROOM}/changes"]}) == 200
        await hide(closed_house, accounts=["carol"], name="pin")

        await tell(m, ROOM, {"attribute": "pin", "value": 2})
        await tell(m, ROOM, {"value": {"pin": 3, "light": 2}})
        await tell(m, ROOM, {"attribute": "light", "value": 4})

        assert (await c.next())["body"] == {"attribute": "light", "value": 4}
        assert await c.nothing()
        assert (await c.ask("read", REGISTRY, {"resource": ROOM}))["body"]["value"]["data"] == {"light": 1}


async def test_guests_see_no_object_that_is_a_thing(house: Skep) -> None:
    meter = await house.add("meter", "agent")
    async with client(house, "m", meter.token) as m, client(house, "g") as guest:
        assert await guest.code("subscribe", SM, {"resources": [f"{ROOM}/changes"]}) == 200
        await report(m)
        assert await guest.code("subscribe", SM, {"resources": [f"{ROOM}/children/x"]}) == 200
        assert await guest.code("read", REGISTRY, {"resource": ROOM}) == 404
        await tell(m, ROOM, {"attribute": "pin", "value": 9999})
        await m.send("create", f"{ROOM}/children/x", {"value": "hi"}, **{"from": ROOM})
        await m.ask("read", "nobody://at/all")
        assert await guest.nothing()


async def fence(house: Skep, target: Mapping[str, Any]) -> None:
    admin = await house.add("boss", role="admin")
    rule = {"id": "d", "effect": "block"}
    policies = [{"id": "p", "target": target, "rules": [rule]}]
    async with client(house, "boss", admin.token) as boss:
        given = {"policySet": {"v": 1, "id": "fence", "priority": 10, "policies": policies}}
        assert await boss.code("execute", POLICIES, {"method": "addPolicy", "params": given}) == 200


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_policy_fences_a_subscription_whatever_dialect_asks(closed_house: Skep, dialect: str) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    url = "comm://localhost/o"
    async with client(closed_house, "a", alice.token) as a, client(closed_house, "b", bob.token) as b:
        assert await a.code("create", ALLOCATION, {"value": {"allocated": [url]}}) == 200
        assert await b.code("subscribe", SM, DIALECTS[dialect]) == 200
        await tell(a, url, {"value": 1})
        assert (await b.next())["body"] == {"value": 1}

        await fence(closed_house, {"operation": "send", "thing": "comm://localhost/o*", "sender": "bob"})

        await tell(a, url, {"value": 42})
        assert await b.nothing()
        assert await b.code("unsubscribe", SM, DIALECTS[dialect]) == 200
        assert await b.code("subscribe", SM, DIALECTS[dialect]) == 403
        assert await b.code("subscribe", SM, {"resources": ["comm://localhost/p/changes"]}) == 200


async def test_policy_judges_each_receiver_by_what_it_would_get(closed_house: Skep) -> None:
    alice, bob, carol = [await closed_house.add(name) for name in ("alice", "bob", "carol")]
    url = "comm://localhost/o"
    target = {"operation": "send", "name": "subscribe", "sender": "bob", "payload/body/secret": {"exists": True}}
    await fence(closed_house, target)
    async with (
        client(closed_house, "a", alice.token) as a,
        client(closed_house, "b", bob.token) as b,
        client(closed_house, "c", carol.token) as c,
    ):
        for one in (b, c):
            assert await one.code("subscribe", SM, {"resources": [f"{url}/changes"]}) == 200
        await tell(a, url, {"value": 1, "secret": True})
        await tell(a, url, {"value": 2})
        assert [(await c.next())["body"]["value"], (await c.next())["body"]["value"]] == [1, 2]
        assert (await b.next())["body"] == {"value": 2}
        assert await b.nothing()


@pytest.mark.parametrize("is_reporter_first", [True, False])
async def test_any_number_of_observers_subscribe_to_children_in_any_order(
    closed_house: Skep, is_reporter_first: bool
) -> None:
    accounts = [await closed_house.add(name) for name in ("alice", "bob", "carol")]
    url = "comm://localhost/minted-1"
    body = {"resource": url, "childrenResources": ["chat"]}
    async with (
        client(closed_house, "a", accounts[0].token) as a,
        client(closed_house, "b", accounts[1].token) as b,
        client(closed_house, "c", accounts[2].token) as c,
    ):
        order = (a, b, c) if is_reporter_first else (b, c, a)
        for one in order:
            assert await one.code("subscribe", SM, body) == 200
        # Nobody took anything by that: the object can still become its reporter's.
        assert await a.code("create", ALLOCATION, {"value": {"allocated": [url]}}) == 200
        assert await b.code("subscribe", SM, body | {"childrenResources": ["chat", "files"]}) == 200

        await tell(a, url, {"value": 1})
        await a.send("create", f"{url}/children/chat", {"value": "hi"}, **{"from": url})
        for one in (b, c):
            assert [(await one.next())["body"]["value"] for _ in range(2)] == [1, "hi"]


async def test_children_dialect_hears_nothing_that_becomes_another_s(closed_house: Skep) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    runtime = "hyperty-runtime://localhost/a"
    async with client(closed_house, "b", bob.token) as b:
        body = {"resource": runtime, "childrenResources": ["sm", "pep", "subscription"]}
        assert await b.code("subscribe", SM, body) == 200
        async with client(closed_house, "a", alice.token) as a:
            await a.send("read", f"{runtime}/sm", {"secret": 1})
            await a.send("read", f"{runtime}/pep", {"secret": 1})
            assert await b.nothing()
            assert await b.code("subscribe", SM, {"resource": runtime, "children": ["x"]}) == 403


async def test_released_address_stops_routing_whoever_listens(closed_house: Skep) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    async with client(closed_house, "a", alice.token) as a, client(closed_house, "b", bob.token) as b:
        (url,) = await a.allocate("comm", allocationKey="k1")
        assert await a.code("subscribe", SM, {"resources": [url, f"{url}/subscription"]}) == 200
        assert await a.code("delete", ALLOCATION, {"resource": "k1"}) == 200

        assert await b.code("read", url) == 404
        assert await b.code("subscribe", f"{url}/subscription") == 404
        assert await a.nothing()


async def test_leaving_with_resource_and_resources_leaves_all(closed_house: Skep) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    url = "comm://localhost/o"
    async with client(closed_house, "a", alice.token) as a, client(closed_house, "b", bob.token) as b:
        addresses = [f"{url}/changes", f"{url}/children/"]
        assert await b.code("subscribe", SM, {"resources": addresses}) == 200
        left = {"resource": url, "resources": [f"{url}/children/"]}
        assert await b.code("unsubscribe", SM, left) == 200
        await tell(a, url, {"value": 1})
        await a.send("create", f"{url}/children/", {"value": 1}, **{"from": url})
        assert await a.code("read", "nobody://at/all") == 404
        assert await b.nothing()


async def test_objects_that_come_in_turn_one_more_than_are_remembered_are_still_mostly_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, turns, judged = 20, 10, 0
    decide = audience.Audience._is_audience

    def counted(*given: Any) -> bool:
        nonlocal judged
        judged += 1
        return decide(*given)

    monkeypatch.setattr(audience, "MAX_REMEMBERED", bound)
    monkeypatch.setattr(audience.Audience, "_is_audience", counted)
    async with skep(tmp_path) as house:
        alice, bob = await house.add("alice"), await house.add("bob")
        urls = [f"comm://localhost/o{number}" for number in range(bound + 1)]
        async with client(house, "a", alice.token) as a, client(house, "b", bob.token) as b:
            assert await a.code("create", ALLOCATION, {"value": {"allocated": urls}}) == 200
            assert await b.code("subscribe", SM, {"resources": [f"{url}/changes" for url in urls]}) == 200
            judged = 0
            for turn in range(turns):
                for url in urls:
                    await tell(a, url, {"value": turn})
            for _ in range(turns * len(urls)):
                await b.next()

    # Emptied when it is full, or by dropping the oldest, it would know none after the first turn.
    assert judged < len(urls) + 0.5 * (turns - 1) * len(urls)
