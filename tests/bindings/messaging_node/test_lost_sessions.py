"""Devices with bad lines: a fresh `open` takes up what was lost, and nobody is locked out by sessions that wait."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bindings.messaging_node.settings import NodeSettings
from tests.bindings.messaging_node.support import SM, Client, client, connected, stub
from tests.support import Skep, skep
from things.identity import AccountType, Principal

ADMIN = Principal(account="root", type=AccountType.CONSUMER, role="admin")

pytestmark = pytest.mark.anyio


async def lose(one: Client) -> None:
    """Break the connection as a bad line does."""
    one.socket.transport.abort()
    await one.socket.wait_closed()


async def sessions(house: Skep) -> list[dict[str, Any]]:
    """All sessions of the node, as admins see them."""
    service = house.running.runtime.services.get("dtw:skep:node")
    assert service is not None
    found: Any = await service.call("routes", {}, ADMIN)
    return list(found["sessions"])


async def away(house: Skep, number: int) -> None:
    """Until so many sessions wait for their clients."""
    with anyio.fail_after(30):
        while True:
            if sum(not one["isLive"] for one in await sessions(house)) == number:
                return
            await anyio.sleep(0.01)


async def test_fresh_open_takes_up_the_session_its_runtime_lost(closed_house: Skep) -> None:
    ann, bob = await closed_house.add("ann"), await closed_house.add("bob")
    async with client(closed_house, "a", ann.token) as a, client(closed_house, "b", bob.token) as b:
        (held,) = await a.allocate()
        assert await a.code("subscribe", SM, {"resources": ["comm://localhost/o/changes"]}) == 200
        await lose(a)
        await away(closed_house, 1)
        await b.send("update", "comm://localhost/o/changes", {"value": 1}, **{"from": "comm://localhost/o"})
        async with client(closed_house, "a", ann.token) as again:
            assert (await again.next())["body"] == {"value": 1}
            await b.send("ping", held, {"value": 2})
            assert (await again.next())["body"] == {"value": 2}
            assert again.token != a.token
            # The old token is worth nothing any more.
            async with connected(closed_house, a.runtime, ann.token) as late:
                assert (await late.reopen(a.session))["body"]["code"] == 401


async def test_session_that_is_connected_is_not_taken_up(closed_house: Skep) -> None:
    ann, bob = await closed_house.add("ann"), await closed_house.add("bob")
    async with client(closed_house, "a", ann.token) as one, client(closed_house, "a", ann.token) as other:
        (held,) = await one.allocate()
        await other.send("ping", held)
        assert (await one.next())["to"] == held
        await lose(one)
        await away(closed_house, 1)
        # Nor is a lost one by another account.
        async with connected(closed_house, one.runtime, bob.token) as foreign:
            assert (await foreign.open())["body"]["code"] == 409
        async with connected(closed_house, one.runtime, ann.token) as back:
            assert (await back.reopen(one.session))["body"]["code"] == 200


async def test_guest_s_lost_session_is_for_who_knows_its_token(house: Skep) -> None:
    async with client(house, "g") as guest:
        (held,) = await guest.allocate()
        await lose(guest)
        await away(house, 1)
        async with client(house, "g") as other, client(house, "h") as third:
            await third.send("ping", held)
            assert await other.nothing()


@pytest.mark.parametrize("same", [True, False])
async def test_lost_connections_lock_their_account_out_of_nothing(tmp_path: Path, same: bool) -> None:
    async with skep(tmp_path, limits={"max_sessions_per_account": 3}) as house:
        meter = await house.add("meter", "agent")
        for number in range(5):
            async with client(house, "flaky" if same else f"flaky{number}", meter.token) as one:
                await lose(one)
            await away(house, 1 if same else number + 1)

        async with client(house, "x", meter.token), client(house, "y", meter.token) as y:
            async with client(house, "z", meter.token):
                pass
            async with connected(house, "hyperty-runtime://localhost/w", meter.token) as w:
                answer = await w.open()
                assert answer["body"]["code"] == 200
                async with connected(house, "hyperty-runtime://localhost/v", meter.token) as v:
                    refused = (await v.open())["body"]
                    assert (refused["code"], refused["error"]) == (429, "queue-full")
                    assert refused["description"] == "account 'meter' already has 3 sessions"
                if not same:
                    # One that was away counts again when it is back.
                    async with connected(house, "hyperty-runtime://localhost/flaky1", meter.token) as back:
                        assert (await back.open())["body"]["code"] == 429
            assert await y.code("subscribe", SM, {"resources": ["a://b"]}) == 200


async def test_session_that_waits_longest_ends_over_the_bound(closed_house: Skep) -> None:
    most = NodeSettings().max_away_of_account
    ann = await closed_house.add("ann")
    for number in range(most + 1):
        async with stub(closed_house, f"rt://{number}", ann.token) as one:
            await lose(one)
        await away(closed_house, min(number + 1, most))
    with anyio.fail_after(30):
        while "rt://0" in (known := {one["runtimeURL"] for one in await sessions(closed_house)}):
            await anyio.lowlevel.checkpoint()
    assert known == {f"rt://{number + 1}" for number in range(most)}


async def test_node_passes_on_no_word_of_a_sender_that_it_is_authenticated(closed_house: Skep) -> None:
    ann, bob = await closed_house.add("ann"), await closed_house.add("bob")
    async with client(closed_house, "a", ann.token) as a, client(closed_house, "b", bob.token) as b:
        (held,) = await a.allocate()
        await b.send("ping", held, {"auth": True, "identity": {"x": 1}, "value": {"auth": True}})
        assert (await a.next())["body"] == {"identity": {"x": 1}, "value": {"auth": True}}
