"""Requests that waited for their agent are judged again when they are handed over; whose requests a manager sees."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from authz.documents import RuleDocument
from authz.policy.sets import set_document
from bindings.mqtt.engines.native import NativeEngine
from tests.bindings.mqtt.support import LAMP, PASSWORD, House, lamp_house
from tests.bindings.mqtt.test_wills import ACTS, ROOT, Act, blink
from things.delivery import State
from things.errors import Conflict, UnknownRequest
from things.identity import AccountType, Principal, Role
from things.messages import Message, Operation, Origin
from things.parsing import parsed

pytestmark = pytest.mark.anyio

LIGHTS = "dtw:lights:lamp"


@pytest.fixture
async def lamp(tmp_path: Path) -> AsyncIterator[House]:
    async with lamp_house(tmp_path / "home", NativeEngine) as opened:
        yield opened


async def asked(lamp: House, account: str) -> None:
    """Ask the absent lamp to blink."""
    async with lamp.client(account) as client:
        await client.publish(blink(account)[0])


async def state_of(lamp: House, account: str) -> tuple[State, str | None]:
    row = await lamp.twin.ledger.by_reference(account, "bye")
    assert row is not None
    return row.state, row.reason


@pytest.mark.parametrize("order", ["burst", "until-response"])
@pytest.mark.parametrize("act", ACTS)
async def test_a_queued_request_of_a_caller_who_lost_the_right_never_reaches_its_agent(
    lamp: House, act: Act, order: str
) -> None:
    async with lamp.client("lights") as agent:
        await agent.publish("agents/lights/td/lamp", {**LAMP, "skep:order": order})
    await asked(lamp, "operator1")
    await asked(lamp, "manager1")
    await act(lamp)

    async with lamp.client("manager1") as caller, lamp.client("lights") as agent:
        await caller.subscribe("inbox/manager1/#")
        await agent.subscribe("inbox/lights/#")

        request = await agent.receive()
        await agent.publish(f"agents/lights/status/{request.topic.rpartition('/')[2]}", {"state": "completed"})
        assert (await caller.final("inbox/manager1/status/bye"))["state"] == "completed"
        assert await agent.settle() == []
    assert await state_of(lamp, "manager1") == (State.COMPLETED, None)
    assert await state_of(lamp, "operator1") == (State.FAILED, "forbidden")


async def test_a_queued_request_ends_with_a_policy_that_blocks_it(lamp: House) -> None:
    await asked(lamp, "operator1")
    rule = {"id": "no", "effect": "block", "target": {"sender": "operator1", "operation": "invoke_action"}}
    policies = [{"id": "no", "rules": [rule]}]
    await lamp.authorizer.put_policy_set(set_document({"v": 1, "id": "no", "policies": policies}))
    await asked(lamp, "manager1")

    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        assert (await agent.receive()).topic.startswith("inbox/lights/action/lamp/blink/")
        assert await agent.settle() == []
    assert await state_of(lamp, "operator1") == (State.FAILED, "forbidden")


async def test_a_policy_about_payload_binding_and_rate_lets_what_it_allows_wait(lamp: House) -> None:
    condition: dict[str, Any] = {"binding": "mqtt", "rate": {"lessThan": 1_000}, "payload/to": {"lessThan": 50}}
    rules = [{"id": "yes", "effect": "allow", "target": {"operation": "invoke_action"}, "condition": condition}]
    policies = [{"id": "p", "rules": rules}]
    await lamp.authorizer.put_policy_set(set_document({"v": 1, "id": "p", "policies": policies}))
    async with lamp.client("viewer1") as client:
        await client.publish("req/viewer1/action/lights/lamp/fade/f", {"to": 10})

    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        assert (await agent.receive()).value == {"to": 10}


async def test_a_request_outlives_the_logout_of_its_caller_and_not_the_change_of_the_password(lamp: House) -> None:
    for number, is_changed in enumerate((False, True)):
        login = await lamp.authenticator.open_login("operator1", PASSWORD, source=None)
        await lamp.runtime.handle(message(login.principal, f"r{number}"))
        await lamp.authenticator.logout(login.principal)
        if is_changed:
            await lamp.authenticator.administration.set_password("operator1", "another long password", by="test")

        async with lamp.client("lights") as agent:
            await agent.subscribe("inbox/lights/#")
            if not is_changed:
                request = await agent.receive()
                await agent.publish(f"agents/lights/status/{request.topic.rpartition('/')[2]}", {"state": "completed"})
            assert await agent.settle() == []


def message(principal: Principal, reference: str) -> Message:
    return Message(
        operation=Operation.INVOKE_ACTION,
        principal=principal,
        thing_id=LIGHTS,
        name="blink",
        received=0,
        correlation=reference,
        origin=Origin(binding="http"),
    )


async def test_a_manager_neither_sees_nor_cancels_requests_for_a_hidden_thing(lamp: House) -> None:
    await asked(lamp, "operator1")
    row = await lamp.twin.ledger.by_reference("operator1", "bye")
    assert row is not None
    manager = lamp.authenticator.verify(lamp.tokens["manager1"])

    async def requests(method: str, **given: Any) -> Any:
        return await lamp.runtime.call(manager, "dtw:skep:requests", method, given, Origin(binding="http"))

    async def cancel() -> None:
        cancelling = Message(
            operation=Operation.CANCEL, principal=manager, thing_id="", name=row.request_id, received=0
        )
        await lamp.runtime.handle(cancelling)

    assert [one["requestID"] for one in (await requests("listRequests"))["items"]] == [row.request_id]
    document = parsed(RuleDocument, {"id": "no", "effect": "deny", "thing": "dtw:lights:*", "accounts": ["manager1"]})
    await lamp.authorizer.put_rule(document, ROOT)

    assert (await requests("listRequests", thing=LIGHTS))["items"] == []
    assert (await requests("listRequests"))["items"] == []
    with pytest.raises(UnknownRequest):
        await requests("readRequest", requestID=row.request_id)
    with pytest.raises(UnknownRequest):
        await cancel()
    assert await state_of(lamp, "operator1") == (State.PENDING, None)

    await lamp.authorizer.remove_rule("no", ROOT)
    await cancel()
    assert (await state_of(lamp, "operator1"))[0] is State.CANCELLED


async def test_the_account_of_a_request_is_told_from_another_of_its_name(lamp: House) -> None:
    await asked(lamp, "operator1")
    await lamp.authenticator.administration.remove("operator1", by="test")
    await lamp.account("operator1", AccountType.CONSUMER, Role.OPERATOR)
    await asked(lamp, "manager1")
    namesake = lamp.authenticator.verify(lamp.tokens["operator1"])
    for method in ("listRequests", "readInbox"):
        found: Any = await lamp.runtime.call(namesake, "dtw:skep:requests", method, {}, Origin(binding="http"))
        assert found["items"] == [], "nothing of the former account's"
    with pytest.raises(UnknownRequest):
        await lamp.runtime.call(
            namesake, "dtw:skep:requests", "readRequest", {"callerRef": "bye"}, Origin(binding="http")
        )
    with pytest.raises(Conflict):
        await lamp.runtime.handle(message(namesake, "bye"))

    async with lamp.client("lights") as agent:
        await agent.subscribe("inbox/lights/#")
        await agent.receive()
        assert await agent.settle() == []
