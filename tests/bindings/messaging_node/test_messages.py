"""Messages: how they are routed, answered and refused; allocation, subscriptions and bad input."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.bindings.messaging_node.support import ALLOCATION, NODE, SM, client
from tests.support import Skep, skep

pytestmark = pytest.mark.anyio


async def test_request_and_response_find_their_way_with_ids_of_either_type(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        (address,) = await b.allocate()
        for identity in (7, "seven", 0):
            await a.send("READ", address, {"resource": "x"}, id=identity, **{"from": "hyper-1"})
            asked = await b.next()
            assert (asked["id"], asked["type"], asked["from"]) == (identity, "READ", "hyper-1")

            answer = {"id": identity, "type": "RESPONSE", "from": address, "to": "hyper-1", "body": {"code": 200}}
            await b.socket.send(json.dumps(answer))

            assert await a.next() == answer


@pytest.mark.parametrize("type_", ["ping", "forward", "execute", "handshake", None])
async def test_every_type_is_routed_unharmed_with_everything_it_carries(house: Skep, type_: str | None) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        (address,) = await b.allocate("fake")
        message: dict[str, Any] = {"id": 1, "type": type_, "from": "hyper-1", "to": address, "more": [1, {"x": None}]}
        if type_ is None:
            del message["type"]

        await a.socket.send(json.dumps(message))

        assert await b.next() == message


async def test_message_to_oneself_comes_back(house: Skep) -> None:
    async with client(house) as one:
        (address,) = await one.allocate()
        await one.send("ping", address)
        assert (await one.next())["to"] == address


async def test_those_who_listen_to_each_other_and_themselves_hear_each_change_once(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        (mine,), (other,) = await a.allocate("comm"), await b.allocate("comm")
        both = {"resources": [f"{mine}/changes", f"{other}/changes"]}
        for one, obj in ((a, mine), (b, other)):
            await one.ask("subscribe", SM, both)
            await one.ask("subscribe", SM, {"resources": [f"{obj}/changes"]})
        await a.send("update", f"{mine}/changes", {"value": 1}, **{"from": mine})

        for one in (a, b):
            assert (await one.next())["to"] == f"{mine}/changes"
            assert await one.nothing()


async def test_request_nobody_can_take_is_404_and_an_unknown_type_at_the_node_501(house: Skep) -> None:
    async with client(house) as one:
        assert await one.code("read", "hyperty://localhost/nobody") == 404
        assert await one.code("ping", "anything") == 404
        assert await one.code("dance", ALLOCATION) == 501
        assert await one.code("dance", SM) == 501
        await one.send("response", "hyperty://localhost/nobody", {"code": 200})
        await one.send("update", "comm://localhost/o/changes", {}, **{"from": "comm://localhost/o"})
        assert await one.nothing()


def wire(**members: Any) -> str:
    return json.dumps({"id": 1, "type": "read", "from": "r", "to": "b"} | members)


def deep(levels: int) -> Any:
    return {"a": deep(levels - 1)} if levels else 1


def asks(**body: Any) -> str:
    return wire(type="create", to=ALLOCATION, body=body)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("not json", 400),
        ("[]", 400),
        ('{"id": 1}', 400),
        ('{"id": 1, "type": "read", "from": "r"}', 400),
        (wire(to=7), 400),
        (wire(id=None), 400),
        (wire(id=True), 400),
        (wire(id=1.5), 400),
        (wire(type=3), 400),
        (wire(body=[]), 400),
        (wire(to="x" * 2_000), 400),
        (wire(body=deep(40)), 400),
        (wire().encode(), 400),
        (asks(value={"number": 0}), 400),
        (asks(value={"number": 100_000}), 400),
        (asks(value=[]), 400),
        (asks(scheme="a b"), 400),
        (wire(type="subscribe", to=SM), 400),
        (wire(type="subscribe", to=SM, body={"resources": [7]}), 400),
        (wire(type="subscribe", to=SM, body={"resources": ["x/changes"] * 2_000}), 400),
        (wire(to="thing://localhost/No Account/x"), 400),
        (wire(**{"from": "domain://registry.localhost"}), 403),
    ],
)
async def test_bad_input_is_answered_and_the_connection_goes_on(house: Skep, sent: str | bytes, code: int) -> None:
    async with client(house) as one:
        await one.socket.send(sent)

        answer = await one.next()
        assert (answer["type"], answer["body"]["code"]) == ("response", code)
        assert answer["body"]["description"] == answer["body"]["desc"]
        assert len(await one.allocate()) == 1


async def test_oversized_frame_ends_its_own_connection_only(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        await a.socket.send('"' + "x" * 300_000 + '"')
        assert await a.closed() == 1009
        assert len(await b.allocate()) == 1


async def test_nobody_speaks_as_somebody_else(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b, client(house, "c") as c:
        (mine,) = await a.allocate("comm")
        changes = f"{mine}/changes"
        await c.ask("subscribe", SM, {"resources": [changes]})

        assert await b.code("ping", mine, **{"from": mine}) == 403
        for to in (ALLOCATION, SM, "domain://registry.localhost", "thing://localhost/a/b"):
            assert await b.code("read", to, {"resource": "x"}, **{"from": mine}) == 403
        assert await b.code("update", changes, {"value": 1}, **{"from": mine}) == 403
        assert await b.code("update", changes, {"value": 1}) == 403
        assert await b.code("subscribe", SM, {"resources": [mine]}) == 403
        assert await b.code("subscribe", SM, {"resources": [f"{mine}/subscription"]}) == 403
        assert await b.code("delete", ALLOCATION, {"childrenResources": [mine]}) == 403
        assert await b.code("update", f"{mine}/registration", {"value": "live"}) == 403
        await a.send("update", changes, {"value": 2}, **{"from": mine})

        assert (await c.next())["body"] == {"value": 2}
        assert await c.nothing()


async def test_compatible_node_has_no_owners_and_learns_addresses(old_house: Skep) -> None:
    async with client(old_house, "b") as b:
        async with client(old_house, "a") as a:
            (mine,) = await a.allocate("comm")
            await a.send("ping", "hyperty://elsewhere/x", **{"from": "publisher"})
            await a.next()
            await b.send("ping", "publisher")
            assert (await a.next())["to"] == "publisher"
            assert await b.code("delete", ALLOCATION, {"childrenResources": [mine]}) == 200
            await a.ask("close", "mn:/session", **{"from": a.runtime})
        await b.send("ping", "nobody", **{"from": "publisher"})
        await b.next()
        await b.send("ping", "publisher")
        assert (await b.next())["to"] == "publisher"


async def test_addresses_are_allocated_and_released_in_every_form(house: Skep) -> None:
    async with client(house) as one, client(house, "other") as other:

        async def routes(address: str) -> bool:
            number = await other.send("ping", address)
            if (await other.ask("read", "nobody")) and other.aside:
                assert other.aside.pop()["id"] == number
                return False
            assert (await one.next())["to"] == address
            return True

        plain = await one.ask("create", ALLOCATION)
        assert plain["body"]["value"]["allocated"][0].startswith("hyperty://localhost/")
        for name in ("hyperty-address-allocation", "object-address-allocation"):
            answer = await one.ask("create", f"{NODE}/{name}", {"scheme": "comm", "value": {"number": 2}})
            assert (answer["from"], len(answer["body"]["value"]["allocated"])) == (f"{NODE}/{name}", 2)
        first = await one.allocate("comm", 3, allocationKey="k1")
        second = await one.allocate("comm", 3, allocationKey="k2")
        (third,) = await one.allocate("comm", childrenResources=["message"])
        assert all([await routes(address) for address in (*first, *second, third, f"{third}/children/message")])

        assert (await one.ask("delete", ALLOCATION, {"childrenResources": [first[:1]]}))["body"] == {"code": 200}
        assert not await routes(first[0])
        assert await one.code("delete", ALLOCATION, {"resource": ["k1", "k2"], "attribute": "stray"}) == 200
        assert not any([await routes(address) for address in (*first, *second)])
        assert await one.code("delete", ALLOCATION, {"resource": third}) == 200
        assert not await routes(f"{third}/children/message")
        assert await one.code("delete", ALLOCATION, {"childrenResources": [third, "comm://never/was"]}) == 200
        assert await one.code("delete", ALLOCATION, {"resource": "never"}) == 200


async def test_named_addresses_belong_to_their_account_until_released(closed_house: Skep) -> None:
    ann, eve = await closed_house.add("ann"), await closed_house.add("eve")
    name = {"value": {"allocated": ["comm://localhost/room"]}}
    async with client(closed_house, "e", token=eve.token) as other:
        async with client(closed_house, "a", token=ann.token) as one:
            assert await one.code("create", ALLOCATION, name) == 200
            assert await one.code("create", ALLOCATION, {"value": {"allocated": ["comm://elsewhere/x"]}}) == 400
            await one.ask("close", "mn:/session", **{"from": one.runtime})
        assert await other.code("create", ALLOCATION, name) == 409
        async with client(closed_house, "a2", token=ann.token) as one:
            assert await one.code("create", ALLOCATION, name) == 200
            assert await one.code("delete", ALLOCATION, {"childrenResources": ["comm://localhost/room"]}) == 200
        assert await other.code("create", ALLOCATION, name) == 200


async def test_quotas_and_the_pool_are_kept(tmp_path: Path) -> None:
    limits = {"open": True, "max_addresses": 5, "max_subscriptions": 2, "pool": ["sip:1@pool", "sip:2@pool"]}
    async with skep(tmp_path, messaging_node=limits) as house, client(house) as one, client(house, "o") as other:
        assert await one.allocate("sip", 2) == ["sip:1@pool", "sip:2@pool"]
        assert await other.code("create", ALLOCATION, {"scheme": "sip"}) == 429
        assert await one.code("create", ALLOCATION) == 200
        assert await one.code("create", ALLOCATION) == 429
        assert await one.code("delete", ALLOCATION, {"childrenResources": ["sip:1@pool"]}) == 200
        assert await other.allocate("sip") == ["sip:1@pool"]
        assert await one.code("subscribe", SM, {"resources": ["a/changes", "b/changes", "c/changes"]}) == 429
        assert await one.code("subscribe", SM, {"resources": ["a/changes", "b/changes"]}) == 200


@pytest.mark.parametrize(
    ("add", "remove"),
    [
        ({"resources": ["comm://localhost/o/changes", "comm://localhost/o/children/chat"]},) * 2,
        (
            {"subscribe": ["comm://localhost/o/changes", "comm://localhost/o/children/chat"], "source": "x"},
            {"unsubscribe": ["comm://localhost/o/changes", "comm://localhost/o/children/chat"], "source": "x"},
        ),
        ({"resource": "comm://localhost/o", "childrenResources": ["chat"], "schema": "s"},) * 2,
        ({"resource": "comm://localhost/o", "children": ["chat"]},) * 2,
    ],
)
async def test_every_dialect_subscribes_and_really_unsubscribes(
    house: Skep, add: dict[str, Any], remove: dict[str, Any]
) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        for _ in range(2):
            assert (await b.ask("SUBSCRIBE", SM, add))["body"] == {"code": 200}
        sent = {"attribute": "x", "value": 1}
        await a.send("update", "comm://localhost/o/changes", sent, **{"from": "comm://localhost/o"})
        await a.send("create", "comm://localhost/o/children/chat", {"value": "hi"})

        assert (await b.next())["body"] == sent
        assert (await b.next())["body"] == {"value": "hi"}
        assert (await b.ask("UNSUBSCRIBE", SM, remove))["body"] == {"code": 200}
        assert (await b.ask("unsubscribe", SM, remove))["body"] == {"code": 200}
        await a.send("update", "comm://localhost/o/changes", sent, **{"from": "comm://localhost/o"})
        assert await a.code("create", "comm://localhost/o/children/chat") == 404
        assert await b.nothing()


async def test_publisher_may_subscribe_to_itself_and_order_is_kept_for_all(house: Skep) -> None:
    async with client(house, "a") as a, client(house, "b") as b:
        (mine,) = await a.allocate("comm")
        for one in (a, b):
            await one.ask("subscribe", SM, {"resources": [f"{mine}/changes"]})
        for number in range(300):
            await a.send("update", f"{mine}/changes", {"value": number}, **{"from": mine})

        for one in (a, b):
            assert [(await one.next())["body"]["value"] for _ in range(300)] == list(range(300))


async def test_burst_beyond_the_rate_is_held_back_and_nothing_is_lost(tmp_path: Path) -> None:
    limits = {"messages_per_second": 400.0, "message_burst": 50.0}
    async with skep(tmp_path, messaging_node={"open": True}, limits=limits) as house, client(house) as one:
        ids = [await one.send("create", ALLOCATION) for _ in range(300)]
        with anyio.fail_after(30):
            assert [(await one.next())["id"] for _ in range(300)] == ids
