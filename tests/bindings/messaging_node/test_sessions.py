"""Sessions: how they open, survive, come back and end; each rule of who is let in."""

from pathlib import Path

import anyio
import pytest
from websockets.exceptions import InvalidStatus

from tests.bindings.messaging_node.support import ALLOCATION, SM, client, connected, stub
from tests.support import Skep, skep
from things.identity import AccountType

pytestmark = pytest.mark.anyio


async def test_open_gives_a_token_and_close_ends_with_1000(house: Skep) -> None:
    async with connected(house) as one:
        answer = await one.open()
        assert (answer["from"], answer["to"], answer["body"]["code"]) == ("mn:/session", one.runtime, 200)
        assert len(one.token) >= 32

        assert await one.code("close", "mn:/session", **{"from": one.session}) == 200
        assert await one.closed() == 1000


async def test_open_twice_on_one_connection_is_the_same_session(house: Skep) -> None:
    async with client(house) as one:
        token = one.token
        assert (await one.open())["body"] == {"code": 200, "runtimeToken": token}
        assert await one.code("open", "mn:/session", **{"from": "hyperty-runtime://localhost/other"}) == 409


async def test_nothing_but_open_is_taken_before_open(house: Skep) -> None:
    async with connected(house) as one:
        assert await one.code("create", ALLOCATION) == 401
        assert await one.code("re-open", "mn:/session", **{"from": "hyperty-runtime://localhost/r1/guess"}) == 401
        assert (await one.open())["body"]["code"] == 200


async def test_closed_node_lets_in_accounts_only_by_header_or_in_the_message(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    async with connected(closed_house) as one:
        assert (await one.open())["body"]["code"] == 401
        assert (await one.open({"accessToken": "nonsense"}))["body"]["code"] == 401
        assert (await one.open({"accessToken": ann.token}))["body"]["code"] == 200
    async with connected(closed_house, token=ann.token) as one:
        assert (await one.open())["body"]["code"] == 200
    with pytest.raises(InvalidStatus) as refused:
        async with connected(closed_house, token="nonsense"):
            pass
    assert refused.value.response.status_code == 401


async def test_open_node_turns_away_what_came_through_a_proxy_or_a_foreign_page(house: Skep) -> None:
    async with connected(house, headers={"X-Forwarded-For": "203.0.113.9"}) as one:
        assert (await one.open())["body"]["code"] == 401
    with pytest.raises(InvalidStatus) as refused:
        async with connected(house, origin="https://evil.example"):
            pass
    assert refused.value.response.status_code == 403
    async with connected(house, origin=house.http) as one:
        assert (await one.open())["body"]["code"] == 200


async def test_token_in_the_address_is_refused(house: Skep) -> None:
    from websockets.asyncio.client import connect

    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"{house.http.replace('http', 'ws')}/ws?access_token=x"):
            pass
    assert refused.value.response.status_code == 401


async def test_lost_session_is_taken_up_with_its_addresses_subscriptions_and_what_waited(house: Skep) -> None:
    async with client(house, "other") as other:
        async with client(house) as lost:
            (address,) = await lost.allocate()
            await lost.ask("subscribe", SM, {"resources": ["comm://localhost/o/changes"]})
            session = lost.session
            lost.socket.transport.abort()
        await other.send("ping", address)
        await other.send("update", "comm://localhost/o/changes", {"value": 1}, **{"from": "comm://localhost/o"})
        assert await other.nothing()

        async with connected(house) as back:
            assert (await back.reopen(session))["body"]["code"] == 200

            found = [*back.aside, await back.next()]
            found += [await back.next()] if len(found) < 2 else []
            assert [one["to"] for one in found[:2]] == [address, "comm://localhost/o/changes"]


async def test_closed_session_cannot_be_taken_up_and_its_addresses_are_free(house: Skep) -> None:
    async with client(house, "other") as other, client(house) as one:
        (address,) = await one.allocate()
        session = one.session
        await one.ask("close", "mn:/session", **{"from": one.runtime})

        assert await other.code("read", address) == 404
        async with connected(house) as late:
            assert (await late.reopen(session))["body"]["code"] == 401


async def test_session_of_an_account_is_not_taken_up_by_another_who_stole_its_token(closed_house: Skep) -> None:
    ann, eve = await closed_house.add("ann"), await closed_house.add("eve")
    async with client(closed_house, token=ann.token) as one:
        session = one.session
        one.socket.transport.abort()
    async with connected(closed_house, token=eve.token) as thief:
        assert (await thief.reopen(session))["body"]["code"] == 401
    async with connected(closed_house) as nobody:
        assert (await nobody.reopen(session))["body"]["code"] == 401
    async with connected(closed_house, token=ann.token) as owner:
        assert (await owner.reopen(session))["body"]["code"] == 200


async def test_stale_sessions_are_collected(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node={"open": True, "resume_s": 0.1}) as house:
        async with client(house) as lost:
            (address,) = await lost.allocate()
            session = lost.session
        async with client(house, "other") as other:
            with anyio.fail_after(30):
                while await other.code("read", address) != 404:
                    pass
        async with connected(house) as late:
            assert (await late.reopen(session))["body"]["code"] == 401


async def test_connections_that_share_a_runtime_url_are_all_served(house: Skep) -> None:
    changes = "comm://localhost/o/changes"
    async with client(house) as first, client(house) as second, client(house, "other") as other:
        for one in (first, second):
            await one.ask("subscribe", SM, {"resources": [changes]})
        await other.send("update", changes, {"value": 1}, **{"from": "comm://localhost/o"})

        assert (await first.next())["body"] == (await second.next())["body"] == {"value": 1}
        assert (await first.ask("create", ALLOCATION))["body"]["code"] == 200


async def test_addresses_of_a_runtime_may_be_released_by_another_connection_of_it(house: Skep) -> None:
    async with client(house) as first, client(house) as second, client(house, "other") as other:
        one, two = (await first.allocate())[0], (await first.allocate(allocationKey="k"))[0]
        assert await other.code("delete", ALLOCATION, {"childrenResources": [one]}) == 403
        assert await other.code("delete", ALLOCATION, {"resource": "k"}) == 200
        await other.send("ping", two)
        assert (await first.next())["to"] == two

        assert await second.code("delete", ALLOCATION, {"childrenResources": [one]}) == 200
        assert await second.code("delete", ALLOCATION, {"resource": "k"}) == 200

        assert [await other.code("ping", address) for address in (one, two)] == [404, 404]


async def test_stub_connects_without_a_handshake_and_takes_up_where_it_was(house: Skep) -> None:
    runtime = "runtime:/alice"
    async with stub(house, runtime) as one:
        (address,) = await one.allocate()
        one.socket.transport.abort()
    async with client(house, "other") as other:
        await other.send("ping", address)
        assert await other.nothing()
    async with stub(house, runtime) as again:
        assert (await again.next())["to"] == address
        await again.socket.send('{"cmd": "disconnect", "body": {"runtimeURL": "runtime:/alice"}}')
        assert await again.closed() == 1000
    async with client(house, "other") as other:
        assert await other.code("read", address) == 404


async def test_runtime_restart_keeps_sessions_and_named_addresses(tmp_path: Path) -> None:
    named = "comm://localhost/the-room"
    async with skep(tmp_path) as house:
        ann, eve = await house.add("ann"), await house.add("eve")
        async with client(house, token=ann.token) as one:
            (address,) = await one.allocate()
            assert await one.code("create", ALLOCATION, {"value": {"allocated": [named]}}) == 200
            await one.ask("subscribe", SM, {"resources": ["comm://localhost/o/changes"]})
            session = one.session
            one.socket.transport.abort()

    async with skep(tmp_path) as house, client(house, "e", token=eve.token) as other:
        assert await other.code("create", ALLOCATION, {"value": {"allocated": [named]}}) == 409
        async with connected(house, token=ann.token) as back:
            assert (await back.reopen(session))["body"]["code"] == 200
            await other.send("ping", address)
            assert (await back.next())["to"] == address
            await other.send("update", "comm://localhost/o/changes", {}, **{"from": "comm://localhost/o"})
            assert (await back.next())["type"] == "update"


async def test_revoked_account_is_cut_off_at_once(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    async with client(closed_house, token=ann.token) as one:
        await closed_house.running.stores.authenticator.administration.disable("ann", by="test")
        assert await one.closed() == 1008


async def test_account_that_was_revoked_between_connecting_and_opening_opens_nothing(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    async with connected(closed_house, token=ann.token) as one:
        await closed_house.running.stores.authenticator.administration.disable("ann", by="test")
        assert (await one.open())["body"]["code"] == 401


async def test_token_in_a_message_is_checked_and_not_passed_on(closed_house: Skep) -> None:
    ann, bob = await closed_house.add("ann"), await closed_house.add("bob")
    async with client(closed_house, "a", token=ann.token) as one, client(closed_house, "b", token=bob.token) as other:
        (address,) = await other.allocate()

        assert await one.code("ping", address, {"accessToken": "nonsense"}) == 401
        assert await one.code("ping", address, {"accessToken": bob.token}) == 401
        await one.send("ping", address, {"accessToken": ann.token, "note": 1})

        assert (await other.next())["body"] == {"note": 1}
        stale = f"{one.runtime}/{'x' * len(one.token)}"
        assert await one.code("ping", address, **{"from": stale}) == 401


async def test_session_whose_token_expires_is_cut_off_and_taken_up_with_a_fresh_one(closed_house: Skep) -> None:
    administration = closed_house.running.stores.authenticator.administration
    _, brief = await administration.add("ann", AccountType.CONSUMER, "viewer", token_validity_s=2, by="test")
    async with client(closed_house, token=brief) as one:
        (address,) = await one.allocate()
        session = one.session
        assert await one.closed() == 1008
    fresh = (await administration.issue_token("ann", by="test"))[1]
    async with connected(closed_house) as late:
        assert (await late.reopen(session, {"accessToken": brief}))["body"]["code"] == 401
        assert (await late.reopen(session, {"accessToken": fresh}))["body"]["code"] == 200
        await late.send("ping", address, **{"from": session})
        assert (await late.next())["to"] == address


async def test_policy_may_refuse_the_opening_of_a_session(house: Skep) -> None:
    root = await house.add("root", role="admin")
    rule = {"id": "no-lodgers", "effect": "block", "target": {"operation": "send", "name": "open", "role": "guest"}}
    policy = {"id": "door", "policies": [{"id": "guests", "rules": [rule]}]}
    async with client(house, "root", root.token) as admin, connected(house) as guest:
        assert await admin.code("create", "domain://msg-node.localhost/policies", {"value": policy}) == 200
        assert (await guest.open())["body"]["code"] == 403
