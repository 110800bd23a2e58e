"""Whose registrations are: addresses by whom they belong to, users by their accounts, and how many one account has."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bindings.messaging_node.quota import Quota
from bindings.messaging_node.settings import NodeSettings
from skep import Agent
from tests.bindings.messaging_node.support import ALLOCATION, REGISTRY, SM, Client, client
from tests.support import PUMP, Skep, skep
from things.errors import QueueFull

pytestmark = pytest.mark.anyio


async def register(one: Client, url: str, **members: Any) -> int:
    return await one.code("create", REGISTRY, {"value": {"url": url, "status": "live"} | members})


async def state(one: Client, thing: str) -> dict[str, Any]:
    value: dict[str, Any] = (await one.ask("read", thing))["body"]["value"]
    return value


async def found(one: Client, resource: str) -> Any:
    return (await one.ask("read", REGISTRY, {"resource": resource}))["body"].get("value")


async def test_address_is_registered_by_whom_it_belongs_to(closed_house: Skep) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    async with client(closed_house, "a", alice.token) as a, client(closed_house, "b", bob.token) as b:
        (held,) = await a.allocate()

        assert await register(b, held) == 403
        assert await register(b, f"{held}/below") == 403
        assert await register(a, held, runtime=a.runtime) == 200
        assert await b.code("delete", REGISTRY, {"value": {"url": held}}) == 404

        assert (await found(b, held))["runtime"] == a.runtime


@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize(
    "url", ["thing://localhost/pump/p1", "domain://msg-node.localhost/sm", "mn:/session", "global://registry/"]
)
async def test_reserved_addresses_are_registered_by_nobody(tmp_path: Path, url: str, compatible: bool) -> None:
    async with skep(tmp_path, messaging_node={"compatible": compatible}) as house:
        pump = await house.add("pump", "agent")
        async with client(house, "p", pump.token) as one:
            assert await register(one, url) == 403


async def test_user_of_this_domain_is_its_account_s_alone_whatever_member_names_it(closed_house: Skep) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    async with client(closed_house, "a", alice.token) as a, client(closed_house, "b", bob.token) as b:
        (own,) = await b.allocate()
        for member in ("user", "guid", "name", "reporter"):
            for user in ("user://localhost/alice", "user-guid://localhost/alice"):
                assert await register(b, own, **{member: user}) == 403
        assert await register(b, "user://localhost/alice") == 403
        assert await register(b, own, user="user://localhost/bob") == 200
        change: dict[str, Any] = {"resource": own, "value": {"user": "user://localhost/alice"}}
        assert await b.code("update", REGISTRY, change) == 403
        assert (
            await b.code("update", REGISTRY, {**change, "attribute": "user", "value": change["value"]["user"]}) == 403
        )
        # Other domains have users of their own.
        assert await register(b, own, user="user://example.org/alice") == 200

        assert await found(a, "user://localhost/alice") is None
        (hers,) = await a.allocate()
        assert await register(a, hers, user="user://localhost/alice") == 200
        assert list(await found(b, "user://localhost/alice")) == [hers]


async def test_guests_register_under_no_account_s_name(house: Skep) -> None:
    async with client(house, "g") as guest:
        assert await register(guest, "hyperty://localhost/g", user="user://localhost/alice") == 403
        assert await register(guest, "hyperty://localhost/g", user="user://example.org/alice") == 200


async def test_entry_tells_who_made_it_and_nobody_else_can_write_that(closed_house: Skep) -> None:
    ann, eve = await closed_house.add("ann"), await closed_house.add("eve")
    url = "hyperty://localhost/chat"
    async with client(closed_house, "a", ann.token) as a, client(closed_house, "e", eve.token) as e:
        assert await register(e, url, registeredBy="ann") == 200
        assert (await found(a, url))["registeredBy"] == "eve"
        assert await e.code("update", REGISTRY, {"resource": url, "value": {"registeredBy": "ann"}}) == 200
        assert (await e.code("update", REGISTRY, {"resource": url, "attribute": "registeredBy", "value": "ann"})) == 400
        assert (await found(a, url))["registeredBy"] == "eve"


async def test_owner_is_not_locked_out_by_who_registered_before(closed_house: Skep) -> None:
    alice, bob = await closed_house.add("alice"), await closed_house.add("bob")
    url = "hyperty://localhost/door"
    async with client(closed_house, "a", alice.token) as a, client(closed_house, "b", bob.token) as b:
        assert await register(b, url, runtime=b.runtime) == 200
        assert await a.code("create", ALLOCATION, {"value": {"allocated": [url]}}) == 200

        # What was registered before says nothing of the address's owner.
        assert await found(b, url) is None
        assert await b.code("update", REGISTRY, {"resource": url}) == 403
        assert await register(a, url, runtime=a.runtime) == 200
        entry = await found(b, url)
        assert (entry["runtime"], entry["registeredBy"]) == (a.runtime, "alice")
        assert await b.code("update", REGISTRY, {"resource": url}) == 404


async def test_object_overwrites_no_other_object_and_no_device_s_thing(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        meter = await house.add("meter", "agent")
        agent = Agent(house.mqtt, meter.name, meter.token)
        agent.expose("p1", PUMP)
        async with agent, client(house, "m", meter.token) as m:
            await agent.flush()
            assert await register(m, "comm://localhost/p1", data={"x": 1}) == 409
            assert await register(m, "comm://localhost/x", data={"x": 1}) == 200
            assert await register(m, "comm://localhost/x", data={"x": 2}) == 200
            for url in ("ctxt://localhost/x", "ctxt://other.org/x"):
                assert await register(m, url, data={"x": 7}) == 409
                # Nor by a change of an object that was never registered.
                await m.send("update", f"{url}/changes", {"attribute": "x", "value": 8}, **{"from": url})
            await m.send(
                "update", "ctxt://localhost/p1/changes", {"value": {"flow": 7}}, **{"from": "ctxt://localhost/p1"}
            )
            with anyio.fail_after(30):
                while (shown := await state(m, "thing://localhost/meter/x")).get("x") in (None, 1):
                    await anyio.lowlevel.checkpoint()
            assert shown["x"] == 2
            assert "flow" not in await state(m, "thing://localhost/meter/p1")
    # The same after a restart, and free again once the object is gone.
    async with skep(tmp_path) as house, client(house, "m", meter.token) as m:
        assert await register(m, "ctxt://localhost/x", data={"x": 7}) == 409
        assert await register(m, "comm://localhost/x", data={"x": 3}) == 200
        assert await m.code("delete", REGISTRY, {"value": {"url": "comm://localhost/x"}}) == 200
        assert await register(m, "ctxt://localhost/x", data={"x": 7}) == 200


async def test_account_has_so_many_registrations_and_others_go_on(tmp_path: Path) -> None:
    limits = {"max_registrations_of_account": 2, "max_registration_bytes_of_account": 65_536}
    async with skep(tmp_path, messaging_node=limits) as house:
        ann, eve = await house.add("ann"), await house.add("eve")
        async with client(house, "a", ann.token) as a, client(house, "e", eve.token) as e:
            assert [await register(e, f"hyperty://localhost/{n}") for n in range(3)] == [200, 200, 429]
            assert await register(e, "hyperty://localhost/1", note="again") == 200
            assert await register(a, "hyperty://localhost/2") == 200

            assert await e.code("delete", REGISTRY, {"value": {"url": "hyperty://localhost/0"}}) == 200
            refused = await e.ask("create", REGISTRY, {"value": {"url": "hyperty://localhost/3", "pad": "z" * 65_050}})
            assert (refused["body"]["code"], refused["body"]["error"]) == (429, "queue-full")
            assert "bytes of registrations" in refused["body"]["description"]
            assert await register(e, "hyperty://localhost/3", pad="z" * 60_000) == 200
    # Counted again after a restart.
    async with skep(tmp_path, messaging_node=limits) as house, client(house, "e", eve.token) as e:
        assert await register(e, "hyperty://localhost/4") == 429


def test_quota_is_kept_at_the_limit_exactly() -> None:
    quota = Quota(NodeSettings(max_registrations_of_account=2, max_registration_bytes_of_account=100))
    quota.check("a://1", "ann", 100)
    quota.put("a://1", "ann", 100)
    with pytest.raises(QueueFull, match="bytes"):
        quota.check("a://2", "ann", 1)
    quota.check("a://1", "ann", 100)
    quota.put("a://1", "ann", 99)
    quota.check("a://2", "ann", 1)
    quota.put("a://2", "ann", 1)
    with pytest.raises(QueueFull, match="2 registrations"):
        quota.check("a://3", "ann", 0)
    quota.check("a://3", "guest~1", 100)
    quota.put("a://3", "guest~1", 100)
    with pytest.raises(QueueFull):
        quota.check("a://4", "guest~2", 1)
    quota.drop("a://1")
    quota.drop("a://1")
    quota.check("a://4", "ann", 99)
    assert (quota.size("a://2"), quota.size("a://1")) == (1, 0)


async def test_answer_that_is_too_large_is_refused_to_whoever_asked(closed_house: Skep) -> None:
    alice, bob, carol = [await closed_house.add(name) for name in ("alice", "bob", "carol")]
    async with (
        client(closed_house, "a", alice.token) as a,
        client(closed_house, "b", bob.token) as b,
        client(closed_house, "c", carol.token) as c,
    ):
        for number in range(20):
            url = f"hyperty://localhost/{number}"
            assert await register(b, url, user="user://example.org/x", pad="z" * 60_000) == 200

        answer = await c.ask("read", REGISTRY, {"resource": "user://example.org/x"})

        assert (answer["body"]["code"], answer["body"]["error"]) == (413, "too-large")
        assert await c.code("subscribe", SM, {"resources": ["comm://localhost/x/changes"]}) == 200
        assert await a.code("read", REGISTRY, {"resource": "hyperty://localhost/1"}) == 200
