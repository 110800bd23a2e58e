"""Every bound at the bound and one beyond: refused with its code, and nothing else suffers."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import httpx2
import pytest

from authz.policy.sets import set_document
from tests.support import PUMP, Account, Skep, skep
from tests.trials.process import mqtt_client
from things.td import ThingDescription

pytestmark = pytest.mark.anyio

THING = "dtw:works:pump-1"
TEXT_TD: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Text",
    "properties": {"text": {"type": "string"}, "any": {}},
    "actions": {"say": {}},
}


@asynccontextmanager
async def site(home: Path, **sections: Any) -> AsyncIterator[tuple[Skep, Account, Account]]:
    """A runtime with agent `works`, operator `ann` and one Thing."""
    async with skep(home, **sections) as runtime:
        works, ann = await runtime.add("works", "agent"), await runtime.add("ann", role="operator")
        for name, td in (("pump-1", PUMP), ("text", TEXT_TD)):
            described = ThingDescription.of(td, agent=True)
            await runtime.running.stores.twin.directory.put(f"dtw:works:{name}", described, agent="works")
        yield runtime, works, ann


@asynccontextmanager
async def http(runtime: Skep, account: Account) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {account.token}", "content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=runtime.http, headers=headers, trust_env=False, timeout=15) as client:
        yield client


def mqtt(runtime: Skep, account: Account) -> AbstractAsyncContextManager[aiomqtt.Client]:
    return mqtt_client(runtime.mqtt_address, account)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def text_of(length: int) -> str:
    return json.dumps("x" * (length - 2))


@pytest.mark.parametrize(("size", "status"), [(262_144, 204), (262_145, 413)])
async def test_body_at_its_limit(tmp_path: Path, size: int, status: int) -> None:
    async with site(tmp_path) as (runtime, works, _), http(runtime, works) as client:
        body = text_of(size)
        assert len(body) == size
        reply = await client.post("/agent/things/text/events/said", content=body)
        after = await client.post("/agent/things/text/events/said", content='"ok"')

    assert reply.status_code // 100 == status // 100, reply.text[:200]
    assert (reply.status_code == 413) == (status == 413)
    assert after.is_success


@pytest.mark.parametrize(("depth", "taken"), [(32, True), (33, False)])
async def test_depth_at_its_limit(tmp_path: Path, depth: int, taken: bool) -> None:
    async with site(tmp_path) as (runtime, works, _), http(runtime, works) as client, mqtt(runtime, works) as agent:
        reply = await client.post("/agent/things/text/properties", content=f'{{"any": {nested(depth)}}}')
        await agent.publish("agents/works/property/text/text", nested(depth), qos=1)
        value = runtime.running.stores.twin.values.get("dtw:works:text", "property", "text")  # type: ignore[arg-type]

    assert reply.is_success == taken, reply.text
    if not taken:
        assert (reply.status_code, reply.json()["code"]) == (400, "too-deep")
        assert value is None


@pytest.mark.parametrize("extra", [0, 1])
async def test_queue_of_an_agent_at_its_limit(tmp_path: Path, extra: int) -> None:
    async with site(tmp_path, requests={"max_waiting_per_agent": 5}) as (runtime, _, ann), http(runtime, ann) as client:
        replies = [await client.post(f"/things/{THING}/actions/setSpeed", content="3") for _ in range(5 + extra)]
        async with mqtt(runtime, ann) as consumer:
            await consumer.publish("req/ann/action/works/pump-1/setSpeed/one-more", "3", qos=1)
        over = await runtime.running.stores.twin.ledger.by_reference("ann", "one-more")

    assert [reply.status_code for reply in replies] == [201] * 5 + [429] * extra
    assert all(reply.json()["code"] == "queue-full" for reply in replies[5:])
    assert over is None


async def test_queue_of_a_caller_at_its_limit_leaves_others_room(tmp_path: Path) -> None:
    async with (
        site(tmp_path, requests={"max_waiting_per_caller": 3}) as (runtime, _, ann),
        http(runtime, ann) as client,
    ):
        bob = await runtime.add("bob", role="operator")
        replies = [await client.post(f"/things/{THING}/actions/setSpeed", content="3") for _ in range(4)]
        async with http(runtime, bob) as other:
            others = await other.post(f"/things/{THING}/actions/setSpeed", content="3")
        await client.delete(f"/requests/{replies[0].headers['location'].rpartition('/')[2]}")
        again = await client.post(f"/things/{THING}/actions/setSpeed", content="3")

    assert [reply.status_code for reply in replies] == [201, 201, 201, 429]
    assert (others.status_code, again.status_code) == (201, 201)


async def test_subscriptions_of_a_session_at_their_limit(tmp_path: Path) -> None:
    async with site(tmp_path, limits={"max_subscriptions_per_session": 4}) as (runtime, _, ann):
        async with mqtt(runtime, ann) as client:
            granted = [await client.subscribe(f"things/works/pump-1/event/e{number}", qos=1) for number in range(5)]
        async with http(runtime, ann) as web:
            wanted = [f"name=e{number}" for number in range(5)]
            fits = await web.get(f"/stream?thing=dtw:works:pump-1&kind=event&{'&'.join(wanted[:4])}&wait=0")
            over = await web.get(f"/stream?thing=dtw:works:pump-1&kind=event&{'&'.join(wanted)}&wait=0")

    assert [codes[0] == 1 for codes in granted] == [True] * 4 + [False]
    assert granted[4][0] == 128
    assert fits.is_success
    assert (over.status_code, over.json()["code"]) == (429, "queue-full")


async def test_sessions_of_an_account_at_their_limit_leave_other_accounts_alone(tmp_path: Path) -> None:
    async with site(tmp_path, limits={"max_sessions_per_account": 2}) as (runtime, works, ann):  # noqa: SIM117
        async with mqtt(runtime, ann) as first, mqtt(runtime, ann):
            with pytest.raises(aiomqtt.MqttError):
                async with mqtt(runtime, ann) as third:
                    await third.subscribe("things/#", qos=1)
            async with http(runtime, ann) as client:
                over = await client.get("/stream?wait=0&kind=event")
            async with mqtt(runtime, works) as other:
                await other.publish("agents/works/property/pump-1/flow", "3", qos=1)
            assert (await first.subscribe("things/#", qos=1))[0] == 1

    assert over.status_code == 429


@pytest.mark.parametrize(("length", "taken"), [(128, True), (129, False)])
async def test_thing_ids_at_their_limit(tmp_path: Path, length: int, taken: bool) -> None:
    async with site(tmp_path) as (runtime, works, _), http(runtime, works) as client:
        reply = await client.put(f"/agent/things/{'t' * length}", content=json.dumps(PUMP))

    assert reply.is_success == taken
    assert taken or reply.status_code in (400, 404)


@pytest.mark.parametrize(("rate", "status"), [(10, [204] * 10), (9, [204] * 9 + [429])])
async def test_message_rate_at_its_limit(tmp_path: Path, rate: int, status: list[int]) -> None:
    limits = {"messages_per_second": 0.001, "message_burst": rate}
    async with site(tmp_path, limits=limits) as (runtime, works, _), http(runtime, works) as client:
        replies = [await client.post("/agent/things/pump-1/events/alarm", content='"x"') for _ in range(10)]

    assert [204 if reply.is_success else reply.status_code for reply in replies] == status
    assert all("retry-after" in reply.headers for reply in replies if reply.status_code == 429)


async def test_bytes_at_their_limit_over_every_binding_together(tmp_path: Path) -> None:
    limits = {"bytes_per_second": 0.001, "byte_burst": 4_194_304}
    async with site(tmp_path, limits=limits) as (runtime, works, ann), http(runtime, works) as client:
        for _ in range(8):
            assert (await client.post("/agent/things/text/events/said", content=text_of(262_144))).is_success
        async with mqtt(runtime, works) as agent:
            for _ in range(7):
                await agent.publish("agents/works/event/text/said", text_of(262_144), qos=1)
        batch = [{"v": 1, "operation": "publish_event", "thingID": "text", "name": "said", "data": "x" * 80_000}] * 3
        assert (await client.post("/agent/batch", json=batch)).json()["stored"] == 3

        # 16 times 256 KiB were there; some 20 KiB are left.
        assert (await client.post("/agent/things/text/events/said", content=text_of(100_000))).status_code == 429
        assert (await client.post("/agent/things/text/events/said", content='"ok"')).is_success
        # A batch is taken whole or not at all.
        assert (await client.post("/agent/batch", json=batch)).json()["stored"] == 3
        refused = await client.post("/agent/batch", json=batch)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate-limited")
        assert int(refused.headers["retry-after"]) > 0
        # Over MQTT a sender can be made to wait: what is over the budget is stored, and nothing more is read for long.
        async with mqtt(runtime, works) as agent:
            await agent.publish("agents/works/event/text/said", text_of(100_000), qos=1, timeout=10)
            with pytest.raises(aiomqtt.MqttError):
                await agent.publish("agents/works/event/text/said", text_of(1), qos=1, timeout=2)
        async with http(runtime, ann) as other:
            assert (await other.post("/things/dtw:works:text/actions/say", content=text_of(100_000))).is_success


async def test_batches_over_the_rate_wait_and_lose_no_item(tmp_path: Path) -> None:
    limits = {"messages_per_second": 2_000.0, "message_burst": 1_000.0}
    async with site(tmp_path, limits=limits) as (runtime, works, _), http(runtime, works) as client:

        async def batch(number: int) -> httpx2.Response:
            items = [
                {"v": 1, "operation": "publish_event", "thingID": "text", "name": "said", "data": [number, place]}
                for place in range(500)
            ]
            return await client.post("/agent/batch", json=items)

        began = time.monotonic()
        replies = [await batch(number) for number in range(4)]
        replies += await asyncio.gather(*(batch(number) for number in range(4, 12)))
        took_s = time.monotonic() - began

    assert [reply.status_code for reply in replies] == [200] * 12
    assert [reply.json() for reply in replies] == [{"stored": 500, "duplicates": 0, "rejected": []}] * 12
    assert took_s > 2  # 6,000 messages, 1,000 of them at once and another 1,000 on trust


async def test_a_role_has_a_budget_of_its_own(tmp_path: Path) -> None:
    limits = {
        "messages_per_second": 1_000.0,
        "message_burst": 1_000.0,
        "roles": {"operator": {"messages_per_second": 5}},
    }
    async with site(tmp_path, limits=limits) as (runtime, works, ann):
        async with http(runtime, ann) as client:
            replies = [await client.post("/things/dtw:works:text/actions/say", content="1") for _ in range(40)]
        async with http(runtime, works) as client:
            others = [await client.post("/agent/things/pump-1/events/alarm", content='"x"') for _ in range(40)]

    assert {reply.status_code for reply in replies} == {201, 429}
    assert all(reply.is_success for reply in others)


async def test_a_policy_sees_how_busy_a_thing_is(tmp_path: Path) -> None:
    rule = {"id": "calm", "effect": "block", "condition": {"thingRate": {"moreThan": 4}}}
    busy = {
        "id": "busy",
        "policies": [{"id": "all", "target": {"operation": "invoke_action", "agent": "works"}, "rules": [rule]}],
    }
    async with site(tmp_path) as (runtime, _, ann):
        await runtime.running.stores.authorizer.put_policy_set(set_document(busy))
        bob = await runtime.add("bob", role="operator")
        async with http(runtime, ann) as first, http(runtime, bob) as second:
            replies = [
                (await client.post("/things/dtw:works:text/actions/say", content="1")).status_code
                for client in (first, second) * 4
            ]
            elsewhere = await first.post("/things/dtw:works:pump-1/actions/setSpeed", content="1")

    assert replies == [201] * 5 + [403] * 3
    assert elsewhere.is_success


def described(**parts: Any) -> str:
    return json.dumps({"@context": TEXT_TD["@context"], "title": "X", **parts})


async def test_things_and_their_descriptions_at_their_limits(tmp_path: Path) -> None:
    limits = {"max_things_per_account": 4, "max_description_bytes_per_account": 262_144}
    async with site(tmp_path, limits=limits) as (runtime, works, _), http(runtime, works) as client:
        other = await runtime.add("other", "agent")
        heavy, heavier = (described(description="x" * size) for size in (200_000, 240_000))

        assert (await client.put("/agent/things/third", content=described())).is_success
        assert (await client.put("/agent/things/fourth", content=heavy)).is_success
        over = await client.put("/agent/things/fifth", content=described())
        async with mqtt(runtime, works) as agent:
            await agent.publish("agents/works/td/fifth", described(), qos=1)
        again = await client.put("/agent/things/fourth", content=heavy)
        async with http(runtime, other) as elsewhere:
            others = await elsewhere.put("/agent/things/first", content=heavier)
        removed = await client.delete("/agent/things/third")
        fits = await client.put("/agent/things/fifth", content=described())
        too_heavy = await client.put("/agent/things/fifth", content=described(description="x" * 100_000))
        known = runtime.running.stores.twin.directory.things_of("works")

    assert (over.status_code, over.json()["code"]) == (429, "too-many")
    assert over.json()["detail"] == "works may have 4 Things and no more"
    assert [one.is_success for one in (again, others, removed, fits)] == [True] * 4
    assert (too_heavy.status_code, "bytes of Thing Descriptions" in too_heavy.json()["detail"]) == (429, True)
    assert list(known) == ["dtw:works:fifth", "dtw:works:fourth", "dtw:works:pump-1", "dtw:works:text"]


async def test_names_and_series_at_their_limits_by_every_door_and_over_a_restart(tmp_path: Path) -> None:
    limits = {"max_undeclared_names_per_thing": 3, "max_series_per_account": 5}
    async with site(tmp_path, limits=limits) as (runtime, works, _):
        async with http(runtime, works) as client:
            batch = [
                {"v": 1, "operation": "publish_property", "thingID": "pump-1", "name": f"n{number % 4}", "data": number}
                for number in range(8)
            ]
            first = (await client.post("/agent/batch", json=batch)).json()
            over = await client.post("/agent/things/pump-1/events/n9", content="1")
        async with mqtt(runtime, works) as agent:
            await agent.publish("agents/works/property/pump-1/n8", "1", qos=1)
        values = runtime.running.stores.twin.values
        assert sorted(name for _, name in values.of_thing("dtw:works:pump-1")) == ["n0", "n1", "n2"]

    assert (first["stored"], [one["code"] for one in first["rejected"]]) == (6, ["too-many"] * 2)
    assert (over.status_code, over.json()["code"]) == (429, "too-many")
    async with skep(tmp_path, limits=limits) as runtime:
        token = await runtime.running.stores.authenticator.administration.issue_token("works", by="test")
        async with http(runtime, Account(name="works", token=token[1])) as client:
            paths = [
                "pump-1/events/n9",
                "pump-1/events/alarm",
                "text/events/said",
                "text/events/more",
                "pump-1/events/n0",
            ]
            replies = [await client.post(f"/agent/things/{path}", content='"x"') for path in paths]
            standing = await client.post("/agent/things/pump-1/properties", content='{"n1": 3}')
    # Three were there; a declared and an undeclared one of another Thing made five, for the account and for good.
    assert [reply.status_code for reply in replies] == [429, 204, 204, 429, 429]
    assert standing.is_success
