"""Whoever opens a session, or comes back to one, is judged by the policies of that moment."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.bindings.messaging_node.support import NODE, Client, client, connected, stub
from tests.bindings.messaging_node.test_lost_sessions import away, lose, sessions
from tests.support import Skep

pytestmark = pytest.mark.anyio

POLICIES = f"{NODE}/policies"
STUB = "hyperty-runtime://localhost/stub"


@asynccontextmanager
async def fenced(house: Skep, target: Mapping[str, Any]) -> AsyncIterator[None]:
    """While it lasts, nobody who is meant opens a session."""
    boss = await house.add("boss", role="admin")
    rule = {"id": "d", "effect": "block", "target": {"operation": "send", "thing": "mn:/session", **target}}
    given = {"policySet": {"v": 1, "id": "fence", "priority": 10, "policies": [{"id": "p", "rules": [rule]}]}}
    async with client(house, "boss", boss.token) as one:
        assert await one.code("execute", POLICIES, {"method": "addPolicy", "params": given}) == 200
        yield
        assert await one.code("delete", POLICIES, {"resource": "/policies/fence"}) == 200


def of(found: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (one,) = (one for one in found if one["account"] == name)
    return one


async def came_back(house: Skep, one: Client, how: str, token: str) -> int:
    """The code that a runtime hears whose connection was lost."""
    async with connected(house, one.runtime, token) as again:
        answer = await (again.open() if how == "open" else again.reopen(one.session))
        code: int = answer["body"]["code"]
        return code


@pytest.mark.parametrize(
    "target",
    [{"name": "open"}, {"payload/from": "hyperty-runtime://localhost/a"}, {"source": {"within": "127.0.0.0/8"}}],
)
@pytest.mark.parametrize("how", ["open", "re-open"])
async def test_policy_that_was_added_meanwhile_holds_for_who_comes_back(
    closed_house: Skep, how: str, target: Mapping[str, Any]
) -> None:
    ann = await closed_house.add("ann")
    async with client(closed_house, "a", ann.token) as one:
        (held,) = await one.allocate()
        await lose(one)
    await away(closed_house, 1)

    async with fenced(closed_house, {"sender": "ann", **target}):
        assert await came_back(closed_house, one, how, ann.token) == 403
        waiting = of(await sessions(closed_house), "ann")
        assert (waiting["isLive"], held in waiting["addresses"]) == (False, True)

    # The session waited for its client, under the token that this knows.
    assert await came_back(closed_house, one, "re-open", ann.token) == 200


async def test_policy_that_was_added_meanwhile_holds_for_who_connects_without_a_handshake(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    async with stub(closed_house, STUB, ann.token) as one:
        (held,) = await one.allocate()
        await lose(one)
    await away(closed_house, 1)

    async with fenced(closed_house, {"sender": "ann", "name": "open"}):
        with pytest.raises(InvalidStatus) as refused:
            async with stub(closed_house, STUB, ann.token):
                pass
        assert refused.value.response.status_code == 403
        with pytest.raises(InvalidStatus):
            async with stub(closed_house, f"{STUB}-2", ann.token):
                pass
        assert held in of(await sessions(closed_house), "ann")["addresses"]

    async with stub(closed_house, STUB, ann.token) as one:
        await one.send("ping", held)
        assert (await one.next())["to"] == held


@pytest.mark.parametrize("how", ["open", "re-open"])
async def test_policies_are_shown_no_token_of_who_opens_a_session(closed_house: Skep, how: str) -> None:
    ann = await closed_house.add("ann")
    async with client(closed_house, "a", ann.token) as one:
        await lose(one)
    await away(closed_house, 1)

    async with (
        fenced(closed_house, {"sender": "ann", "payload/body/accessToken": {"exists": True}}),
        connected(closed_house, one.runtime) as again,
    ):
        given = {"accessToken": ann.token}
        answer = await (again.open(given) if how == "open" else again.reopen(one.session, given))
        assert answer["body"]["code"] == 200


async def test_who_connects_again_without_a_handshake_is_who_it_is_by_its_new_credential(closed_house: Skep) -> None:
    ann = await closed_house.add("ann")
    admin = closed_house.running.stores.authenticator.administration
    _, fresh = await admin.issue_token("ann", by="test")
    async with stub(closed_house, STUB, ann.token) as one:
        (held,) = await one.allocate()
        await lose(one)
    await away(closed_house, 1)

    async with stub(closed_house, STUB, fresh) as one:
        former = closed_house.running.stores.authenticator.verify(ann.token).login_id
        await admin.revoke_token(former or "", by="test")
        assert await one.code("ping", "nobody://at/all") == 404
        assert held in of(await sessions(closed_house), "ann")["addresses"]
