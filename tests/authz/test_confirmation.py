"""A rule that wants a confirmation, over every protocol: refused first, carried out when repeated with the token."""

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from authz.explain import explain
from authz.policy.sets import set_document
from skep import Agent, AgentRequest, Consumer
from tests.bindings.messaging_node.support import client as node_client
from tests.bindings.mqtt.support import Client as MqttClient
from tests.bindings.mqtt.support import Refused
from tests.bindings.websocket.clients import web_thing_client
from tests.support import PUMP, Account, Skep, skep
from things.addresses import Address, Kind
from things.errors import ConfirmationRequired, UnknownThing
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.records import HistoryQuery, Row

pytestmark = pytest.mark.anyio

PUMP_1 = "dtw:works:pump-1"
SURE = {
    "id": "sure",
    "policies": [
        {
            "id": "all",
            "rules": [
                {
                    "id": "ask",
                    "effect": "allow",
                    "obligations": ["confirm"],
                    "target": {
                        "agent": "works",
                        "sender": ["ann", "bob", "works"],
                        "operation": ["invoke_action", "write_property", "call_rpc", "publish_event"],
                    },
                }
            ],
        }
    ],
}


@asynccontextmanager
async def house(home: Path, engine: str = "native") -> AsyncIterator[tuple[Skep, Account, Account, list[JSONValue]]]:
    """A pump whose requests want a confirmation of `ann`; what it was asked for."""
    async with skep(home, mqtt={"engine": engine}) as runtime:
        works, ann = await runtime.add("works", "agent"), await runtime.add("ann", role="manager")
        agent = Agent(runtime.mqtt, works.name, works.token)
        agent.expose("pump-1", PUMP)
        done: list[JSONValue] = []

        @agent.action("pump-1", "setSpeed")
        async def set_speed(speed: JSONValue, request: AgentRequest) -> JSONValue:
            done.append(speed)
            return {"speed": speed}

        @agent.write("pump-1", "target")
        async def set_target(value: JSONValue, request: AgentRequest) -> None:
            done.append(value)

        async with agent:
            async with Consumer(runtime.http, token=ann.token) as consumer:
                await (await consumer.invoke(PUMP_1, "setSpeed", 0, wait_s=10)).result()
            done.clear()
            await runtime.running.stores.authorizer.put_policy_set(set_document(SURE))
            yield runtime, works, ann, done


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[tuple[Skep, Account, Account, list[JSONValue]]]:
    async with house(tmp_path / "home") as found:
        yield found


Opened = tuple[Skep, Account, Account, list[JSONValue]]

REQUESTS: list[tuple[str, str]] = [
    ("POST", f"/things/{PUMP_1}/actions/setSpeed"),
    ("PUT", f"/things/{PUMP_1}/properties/target"),
    ("PUT", f"/things/{PUMP_1}/properties"),
    ("POST", f"/rpc/{PUMP_1}/setSpeed"),
]


@pytest.mark.parametrize(("method", "path"), REQUESTS)
async def test_over_http_the_same_request_with_its_token_is_carried_out_once(
    opened: Opened, method: str, path: str
) -> None:
    runtime, _, ann, done = opened
    other = await runtime.add("bob", role="manager")
    bearer = {"Authorization": f"Bearer {ann.token}", "Prefer": "wait=10"}
    body: Any = {"target": 3} if path.endswith("/properties") else 3
    async with httpx.AsyncClient(base_url=runtime.http, headers=bearer) as client:
        asked = await client.request(method, path, json=body)
        problem = asked.json()
        assert (asked.status_code, problem["code"]) == (428, "confirmation-required")
        assert problem["expiresIn"] == 120
        assert done == []

        token = {"X-Confirmation": problem["confirmation"]}
        stolen = {**token, "Authorization": f"Bearer {other.token}"}
        assert (await client.request(method, path, json=body, headers=stolen)).status_code == 428
        assert done == []

        assert (await client.request(method, path, json=body, headers=token)).is_success
        assert done == [3]
        assert (await client.request(method, path, json=body, headers=token)).status_code == 428
        assert done == [3]


async def test_other_content_is_asked_about_anew(opened: Opened) -> None:
    runtime, _, ann, done = opened
    path = f"/things/{PUMP_1}/actions/setSpeed"
    async with httpx.AsyncClient(base_url=runtime.http, headers={"Authorization": f"Bearer {ann.token}"}) as client:
        token = (await client.post(path, json=3)).json()["confirmation"]
        changed = await client.post(path, json=9, headers={"X-Confirmation": token})
    assert (changed.status_code, done) == (428, [])


async def test_a_token_does_not_outlast_the_right(opened: Opened) -> None:
    runtime, _, ann, done = opened
    path = f"/things/{PUMP_1}/actions/setSpeed"
    async with httpx.AsyncClient(base_url=runtime.http, headers={"Authorization": f"Bearer {ann.token}"}) as client:
        token = (await client.post(path, json=3)).json()["confirmation"]
        blocked = {**SURE, "policies": [{"id": "all", "rules": [{"id": "ask", "effect": "block"}]}]}
        await runtime.running.stores.authorizer.put_policy_set(set_document(blocked))
        refused = await client.post(path, json=3, headers={"X-Confirmation": token})
    assert (refused.json()["code"], done) == ("unknown-thing", [])


@pytest.mark.parametrize(("engine", "v5"), [("native", False), ("native", True), ("amqtt", False)])
async def test_over_mqtt_the_token_comes_to_the_inbox(tmp_path: Path, engine: str, v5: bool) -> None:
    topic = "req/ann/action/works/pump-1/setSpeed/r1"
    async with (
        house(tmp_path / "home", engine) as (runtime, _, ann, done),
        MqttClient(runtime.mqtt_address, ann.name, ann.token, v5=v5) as client,
    ):
        await client.subscribe("inbox/ann/#")
        if v5:
            with pytest.raises(Refused, match="Not authorized"):
                await client.publish(topic, 4)
        else:
            await client.publish(topic, 4)
        problem = (await client.receive_on("inbox/ann/refused")).value
        assert (problem["type"], problem["callerRef"]) == ("urn:skep:error:confirmation-required", "r1")
        assert done == []

        if v5:
            await client.publish(topic, 4, UserProperty=("confirmation", problem["confirmation"]))
        else:
            await client.publish(f"{topic}/{problem['confirmation']}", 4)
        assert (await client.final("inbox/ann/status/r1"))["output"] == {"speed": 4}
        assert done == [4]


async def test_an_agent_confirms_an_event(opened: Opened) -> None:
    runtime, works, _, _ = opened
    topic = "agents/works/event/pump-1/alarm"
    async with MqttClient(runtime.mqtt_address, works.name, works.token, "second", v5=True) as agent:
        await agent.subscribe("inbox/works/refused")
        with pytest.raises(Refused, match="Not authorized"):
            await agent.publish(topic, "hot")
        token = (await agent.receive()).value["confirmation"]
        await agent.publish(topic, "hot", UserProperty=("confirmation", token))
    assert [row.value for row in await _alarms(runtime)] == [b'"hot"']


async def _alarms(runtime: Skep) -> Sequence[Row]:
    return await runtime.running.stores.twin.history.read(HistoryQuery(things=(PUMP_1,), kind=Kind.EVENT, limit=10))


async def test_over_the_web_thing_protocol_it_is_a_member_of_the_message(opened: Opened) -> None:
    runtime, _, ann, done = opened
    async with web_thing_client(runtime, ann) as client:
        asked = await client.request("invokeaction", PUMP_1, name="setSpeed", input=5, wait=10)
        assert (asked["error"]["status"], asked["error"]["code"]) == (428, "confirmation-required")
        token = asked["error"]["confirmation"]
        answer = await client.request("invokeaction", PUMP_1, name="setSpeed", input=5, wait=10, confirmation=token)
    assert (answer["output"], done) == ({"speed": 5}, [5])


async def test_over_the_messaging_node_it_is_a_member_of_the_body(opened: Opened) -> None:
    runtime, _, ann, done = opened
    async with node_client(runtime, token=ann.token) as client:
        body = {"attribute": "target", "value": 6}
        asked = (await client.ask("update", "thing://localhost/works/pump-1", body))["body"]
        assert (asked["code"], done) == (428, [])
        answer = await client.ask(
            "update", "thing://localhost/works/pump-1", {**body, "confirmation": asked["confirmation"]}
        )
        assert answer["body"]["code"] in (100, 200)
    with anyio.fail_after(30):
        while done != [6]:  # noqa: ASYNC110 - the answer tells that it is pending
            await anyio.sleep(0.01)


async def test_the_sdk_raises_what_has_to_be_confirmed(opened: Opened) -> None:
    runtime, _, ann, done = opened
    async with Consumer(runtime.http, token=ann.token) as consumer:
        pump = consumer.thing(PUMP_1)
        with pytest.raises(ConfirmationRequired) as asked:
            await pump.invoke("setSpeed", 7)
        requested = await pump.invoke("setSpeed", 7, confirmation=asked.value.token)
        assert await requested.result() == {"speed": 7}

        with pytest.raises(ConfirmationRequired) as asked:
            await pump.write("target", 8)
        assert (await pump.write("target", 8, confirmation=asked.value.token)).status.is_success
    assert done == [7, 8]


async def test_calls_of_agents_stand_in_the_audit_log(opened: Opened) -> None:
    runtime, _, _, _ = opened
    cleo = await runtime.add("cleo", role="operator")
    async with Consumer(runtime.http, token=cleo.token) as consumer:
        await consumer.call(PUMP_1, "setSpeed", 7)
        await consumer.call("dtw:values:latest", "readProperties", {"thingID": PUMP_1})
    audit = runtime.running.stores.authenticator.audit
    await audit.flush()
    acts = [act for act in audit.read(after=None, limit=100) if act["by"] == "cleo"]
    assert [(act["act"], act["target"]) for act in acts] == [("call", f"{PUMP_1} setSpeed")]


async def test_confirmed_messages_stand_in_the_audit_log(opened: Opened) -> None:
    runtime, _, ann, _ = opened
    async with Consumer(runtime.http, token=ann.token) as consumer:
        with pytest.raises(ConfirmationRequired) as asked:
            await consumer.invoke(PUMP_1, "setSpeed", 7)
        await consumer.invoke(PUMP_1, "setSpeed", 7, confirmation=asked.value.token)
    audit = runtime.running.stores.authenticator.audit
    await audit.flush()
    (act,) = [act for act in audit.read(after=None, limit=100) if act["act"] == "confirmed"]
    assert (act["by"], act["target"]) == ("ann", f"{PUMP_1} setSpeed")
    assert act["details"] == {"operation": "invoke_action", "rule": "policy sure/all/ask"}


async def test_the_explanation_tells_that_a_confirmation_is_wanted(opened: Opened) -> None:
    runtime, _, _, _ = opened
    ann = Principal(account="ann", type=AccountType.CONSUMER, role="manager")
    authorizer = runtime.running.stores.authorizer
    explained = explain(authorizer, ann, Operation.INVOKE_ACTION, Address(PUMP_1, Kind.ACTION, "setSpeed"))
    assert str(explained).startswith("allowed once confirmed: policy sure/all/ask\n  obliges to: confirm\n")


async def test_nobody_can_be_asked_at_a_delivery_so_watching_is_denied(opened: Opened) -> None:
    runtime, _, ann, _ = opened
    watching = {
        "id": "sure",
        "policies": [{"id": "all", "rules": [{"id": "ask", "effect": "allow", "obligations": ["confirm"]}]}],
    }
    async with MqttClient(runtime.mqtt_address, ann.name, ann.token) as client:
        assert await client.subscribe("things/works/pump-1/property/+") == 1
        await runtime.running.stores.authorizer.put_policy_set(set_document(watching))
        with pytest.raises(Refused):
            await client.subscribe("things/works/pump-1/event/+")
    async with Consumer(runtime.http, token=ann.token) as consumer:
        with pytest.raises(UnknownThing):
            await consumer.call("dtw:values:latest", "readProperties", {"thingID": PUMP_1})


async def test_on_the_command_line_it_is_an_option(opened: Opened) -> None:
    runtime, _, ann, done = opened
    command = [sys.executable, "-m", "skep", "invoke", PUMP_1, "setSpeed", "9", "--wait", "--json"]
    command += ["--url", runtime.http, "--token", ann.token]
    refused = await anyio.run_process(command, check=False)
    assert refused.returncode == 3
    assert refused.stderr.decode().startswith("confirmation-required: policy sure/all/ask asks for a confirmation")
    assert refused.stderr.decode().endswith("--confirm\n")
    assert done == []

    confirmed = await anyio.run_process([*command, "--confirm"])
    assert (json.loads(confirmed.stdout)["output"], done) == ({"speed": 9}, [9])
