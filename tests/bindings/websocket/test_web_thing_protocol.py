"""The web thing protocol over real sockets: consumers, agents, refusals and bounds."""

import contextlib
import json
import socket
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import jsonschema_rs
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from bindings.websocket.messages import read
from tests.bindings.websocket.clients import PROTOCOL, WebThingClient, address, web_thing_client
from tests.support import PUMP, Skep, skep
from things.identity import AccountType

pytestmark = pytest.mark.anyio

PUMP_1 = "dtw:works:pump-1"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, tls=True) as running:
        yield running


@pytest.fixture
async def agent(runtime: Skep) -> AsyncIterator[WebThingClient]:
    async with web_thing_client(runtime, await runtime.add("works", "agent")) as client:
        answer = await client.request("exposething", "pump-1", td=PUMP)
        assert "error" not in answer
        yield client


@pytest.fixture
async def manager(runtime: Skep, agent: WebThingClient) -> AsyncIterator[WebThingClient]:
    async with web_thing_client(runtime, await runtime.add("ann", role="manager")) as client:
        yield client


async def published(agent: WebThingClient, name: str, value: Any, *, thing: str = "pump-1") -> dict[str, Any]:
    """Publish a value and wait until it is committed."""
    correlation = str(uuid.uuid4())
    await agent.send("notification", "observeproperty", thing, name=name, value=value, correlationID=correlation)
    return await agent.answered(correlation)


async def happened(agent: WebThingClient, name: str, data: Any) -> dict[str, Any]:
    """Publish an event and wait until it is committed."""
    correlation = str(uuid.uuid4())
    await agent.send("notification", "subscribeevent", "pump-1", name=name, data=data, correlationID=correlation)
    return await agent.answered(correlation)


# ---------------------------------------------------------------- consumers


async def test_a_value_is_read_with_its_time_and_all_values_together(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    await published(agent, "flow", 12.5)
    await published(agent, "target", 40)

    one = await manager.request("readproperty", PUMP_1, name="flow")
    several = await manager.request("readmultipleproperties", PUMP_1, names=["target"])
    all_ = await manager.request("readallproperties", PUMP_1)
    missing = await manager.request("readproperty", PUMP_1, name="speed")

    assert (one["messageType"], one["value"], one["thingID"]) == ("response", 12.5, PUMP_1)
    assert one["timestamp"].endswith("Z")
    assert several["values"] == {"target": 40}
    assert {"flow": 12.5, "target": 40, "online": True}.items() <= all_["values"].items()
    assert (missing["error"]["status"], missing["error"]["code"]) == (404, "unknown-name")


async def test_observers_get_values_and_events_until_they_unsubscribe(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    flow = await manager.request("observeproperty", PUMP_1, name="flow")
    alarm = await manager.request("subscribeevent", PUMP_1, name="alarm")
    await published(agent, "target", 1)
    await published(agent, "flow", 2)
    await happened(agent, "alarm", "dry")
    first, second = await manager.notification(), await manager.notification()

    await manager.request("unobserveproperty", PUMP_1, name="flow")
    await published(agent, "flow", 3)
    await happened(agent, "alarm", "wet")
    third = await manager.notification()

    assert (first["operation"], first["name"], first["value"]) == ("observeproperty", "flow", 2)
    assert first["correlationID"] == flow["correlationID"]
    assert (second["operation"], second["name"], second["data"]) == ("subscribeevent", "alarm", "dry")
    assert (third["data"], third["correlationID"]) == ("wet", alarm["correlationID"])


async def test_every_event_of_a_batch_arrives_once_and_in_order(runtime: Skep, manager: WebThingClient) -> None:
    plant = await runtime.add("plant", "agent")
    async with web_thing_client(runtime, plant) as agent:
        await agent.request("exposething", "pump-1", td=PUMP)
    await manager.request("subscribeevent", "dtw:plant:pump-1", name="alarm")
    batch = [{"operation": "publish_event", "thingID": "pump-1", "name": "alarm", "data": str(n)} for n in range(200)]

    async with httpx2.AsyncClient(base_url=runtime.http, headers={"authorization": f"Bearer {plant.token}"}) as http:
        assert (await http.post("/agent/batch", json=batch)).json()["stored"] == 200

    assert [(await manager.notification())["data"] for _ in range(200)] == [str(n) for n in range(200)]


async def test_one_socket_holds_several_subscriptions_and_ends_all_of_a_thing_at_once(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    await agent.request("exposething", "pump-2", td=PUMP)
    everything = await manager.request("observeallproperties", PUMP_1)
    one = await manager.request("observeproperty", PUMP_1, name="flow")
    other = await manager.request("observeallproperties", "dtw:works:pump-2")
    await published(agent, "flow", 5)
    both = {(await manager.notification())["correlationID"] for _ in range(2)}

    await manager.request("unobserveallproperties", PUMP_1)
    again = await manager.request("unobserveallproperties", PUMP_1)
    await published(agent, "flow", 6)
    await published(agent, "flow", 7, thing="pump-2")
    last = await manager.notification()

    assert both == {everything["correlationID"], one["correlationID"]}
    assert "error" not in again
    assert (last["thingID"], last["value"], last["correlationID"]) == ("dtw:works:pump-2", 7, other["correlationID"])


async def test_a_write_is_answered_with_its_value_when_the_agent_confirms(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    async with anyio.create_task_group() as tasks:
        answers: list[dict[str, Any]] = []

        async def write(value: Any) -> None:
            answers.append(await manager.request("writeproperty", PUMP_1, name="target", value=value))

        tasks.start_soon(write, 55)
        asked = await agent.next_request()
        assert (asked["operation"], asked["thingID"], asked["name"], asked["value"]) == (
            "writeproperty",
            "pump-1",
            "target",
            55,
        )
        await agent.send("response", "writeproperty", "pump-1", correlationID=asked["correlationID"], value=55)

    wrong = await manager.request("writeproperty", PUMP_1, name="target", value="high")
    fixed = await manager.request("writeproperty", PUMP_1, name="flow", value=1)

    assert answers[0]["value"] == 55
    assert (wrong["error"]["status"], fixed["error"]["status"]) == (400, 400)


async def test_a_write_that_waits_for_its_agent_is_answered_without_a_value(
    runtime: Skep, agent: WebThingClient, manager: WebThingClient
) -> None:
    answer = await manager.request("writeproperty", PUMP_1, name="target", value=5, wait=0)
    several = await manager.request("writemultipleproperties", PUMP_1, values={"target": 6}, wait=0)
    refused = await manager.request("writemultipleproperties", PUMP_1, values={"target": 6, "flow": 1})

    assert "value" not in answer
    assert answer["status"]["state"] == "pending"
    assert several["values"] == {}
    assert refused["error"]["status"] == 400


async def test_an_action_is_accepted_followed_and_queried(agent: WebThingClient, manager: WebThingClient) -> None:
    answer = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=3)
    asked = await agent.next_request()
    action = answer["status"]["actionID"]
    assert (asked["operation"], asked["name"], asked["input"], asked["correlationID"]) == (
        "invokeaction",
        "setSpeed",
        3,
        action,
    )
    await agent.send(
        "response", "invokeaction", "pump-1", correlationID=action, status={"state": "running", "progress": 50}
    )
    await agent.send("response", "invokeaction", "pump-1", correlationID=action, output={"speed": 3})
    told: list[dict[str, Any]] = []
    while not told or told[-1]["status"]["state"] not in ("completed", "failed"):
        told.append(await manager.notification())
    queried = await manager.request("queryaction", PUMP_1, actionID=action)
    all_ = await manager.request("queryallactions", PUMP_1)
    foreign = await manager.request("queryaction", "dtw:works:pump-9", actionID=action)

    assert answer["status"]["state"] == "pending"
    assert all(one["correlationID"] == answer["correlationID"] for one in told)
    assert "running" in [one["status"]["state"] for one in told]
    assert told[-1]["status"]["output"] == {"speed": 3}
    assert (queried["name"], queried["status"]["state"]) == ("setSpeed", "completed")
    assert queried["status"]["timeEnded"] >= queried["status"]["timeRequested"]
    assert [one["actionID"] for one in all_["statuses"]["setSpeed"]] == [action]
    assert foreign["error"]["code"] == "unknown-request"


async def test_an_action_with_a_wait_is_answered_with_its_output_or_the_devices_refusal(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    async def serve() -> None:
        for error in (
            None,
            {"status": 409, "title": "Conflict", "detail": "too hot"},
            {"status": 500, "detail": "bug"},
        ):
            asked = await agent.next_request()
            members: dict[str, Any] = {"output": {"ok": True}} if error is None else {"error": error}
            await agent.send("response", "invokeaction", "pump-1", correlationID=asked["correlationID"], **members)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        done = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=1, wait=5)
        refused = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=2, wait=5)
        broken = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=3, wait=5)

    states = (await manager.request("queryallactions", PUMP_1))["statuses"]["setSpeed"]
    assert done["output"] == {"ok": True}
    assert (refused["error"]["code"], refused["error"]["detail"]) == ("agent-error", "too hot")
    assert broken["error"]["detail"] == "bug"
    assert [(one["state"], one["deliveryState"]) for one in states] == [
        ("failed", "failed"),
        ("failed", "completed"),
        ("completed", "completed"),
    ]


async def test_the_same_correlation_id_is_the_same_action(agent: WebThingClient, manager: WebThingClient) -> None:
    first = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=3, correlationID="once")
    second = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=3, correlationID="once")
    other = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=4, correlationID="once")

    assert first["status"]["actionID"] == second["status"]["actionID"]
    assert other["error"]["code"] == "conflict"


async def test_an_action_is_cancelled_and_the_agent_is_told(agent: WebThingClient, manager: WebThingClient) -> None:
    answer = await manager.request("invokeaction", PUMP_1, name="setSpeed", input=3)
    action = answer["status"]["actionID"]
    await agent.next_request()
    cancelled = await manager.request("cancelaction", PUMP_1, actionID=action)
    asked = await agent.next_request()

    assert cancelled["actionID"] == action
    assert (asked["operation"], asked["actionID"]) == ("cancelaction", action)


async def test_methods_of_agents_and_of_built_in_services_are_called(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    async with anyio.create_task_group() as tasks:
        answers: list[dict[str, Any]] = []

        async def call() -> None:
            answers.append(await manager.request("callrpc", PUMP_1, name="setSpeed", input=7))

        tasks.start_soon(call)
        asked = await agent.next_request()
        await agent.send("response", "callrpc", "pump-1", correlationID=asked["correlationID"], output={"speed": 7})

    td = await manager.request("callrpc", "dtw:directory:things", name="readTD", input={"thingID": PUMP_1})
    invoked = await manager.request(
        "invokeaction", "dtw:directory:things", name="listTDs", input={"filter": "online and title = Pump"}
    )

    assert (asked["operation"], asked["input"]) == ("callrpc", 7)
    assert answers[0]["output"] == {"speed": 7}
    assert td["output"]["id"] == PUMP_1
    assert [one["id"] for one in invoked["output"]["items"]] == [PUMP_1]


async def test_a_call_to_an_absent_agent_fails_at_once_but_an_action_waits(runtime: Skep) -> None:
    works = await runtime.add("works", "agent")
    async with web_thing_client(runtime, works) as agent:
        await agent.request("exposething", "pump-1", td=PUMP)
    async with web_thing_client(runtime, await runtime.add("ann")) as consumer:
        called = await consumer.request("callrpc", PUMP_1, name="setSpeed", input=1)
        invoked = await consumer.request("invokeaction", PUMP_1, name="setSpeed", input=1)
        async with web_thing_client(runtime, works) as agent:
            await agent.request("exposething", "pump-1")
            asked = await agent.next_request()

    assert (called["error"]["status"], called["error"]["code"]) == (503, "not-connected")
    assert asked["correlationID"] == invoked["status"]["actionID"]


async def test_the_things_description_has_forms_that_this_address_serves(
    runtime: Skep, agent: WebThingClient, manager: WebThingClient
) -> None:
    td = (await manager.request("callrpc", "dtw:directory:things", name="readTD", input={"thingID": PUMP_1}))["output"]
    forms = [
        form
        for group in (*td["properties"].values(), *td["actions"].values(), *td["events"].values(), td)
        for form in group["forms"]
        if form.get("subprotocol") == "webthingprotocol"
    ]

    assert {form["href"] for form in forms} == {address(runtime, tls=True)}
    operations = {operation for form in forms for operation in form["op"]}
    assert {"readproperty", "writeproperty", "observeproperty", "invokeaction", "subscribeevent"} <= operations
    assert td["properties"]["flow"]["forms"][-1]["op"] == ["readproperty", "observeproperty", "unobserveproperty"]


# ---------------------------------------------------------------- agents


async def test_an_agent_is_told_what_was_wrong_with_a_description_or_a_value(agent: WebThingClient) -> None:
    bad = await agent.request("exposething", "pump-2", td={"title": 1})
    wrong = await published(agent, "flow", "much")
    unknown = await published(agent, "flow", 1, thing="pump-9")

    assert bad["error"]["code"] == "td-invalid"
    assert {"/title"} <= {item["field"] for item in bad["error"]["validationErrors"]}
    assert (wrong["error"]["status"], unknown["error"]["status"]) == (400, 404)


async def test_an_agent_speaks_for_its_own_things_only(runtime: Skep, agent: WebThingClient) -> None:
    async with web_thing_client(runtime, await runtime.add("other", "agent")) as other:
        exposed = await other.request("exposething", PUMP_1, td=PUMP)
        said = await published(other, "flow", 1, thing=PUMP_1)
    async with web_thing_client(runtime, await runtime.add("ann", role="admin")) as consumer:
        as_consumer = await consumer.request("exposething", "pump-1", td=PUMP)
        await consumer.send("response", "invokeaction", "pump-1", correlationID="none", output=1)
        answer = await consumer.answered("none")

    assert [one["error"]["status"] for one in (exposed, said, as_consumer, answer)] == [403, 403, 403, 403]


async def test_a_report_for_a_foreign_or_ended_request_is_an_error(
    agent: WebThingClient, manager: WebThingClient
) -> None:
    await agent.send("response", "invokeaction", "pump-1", correlationID="nobody", output=1)
    foreign = await agent.answered("nobody")
    action = (await manager.request("invokeaction", PUMP_1, name="setSpeed", input=3))["status"]["actionID"]
    await agent.next_request()
    await agent.send("response", "invokeaction", "pump-1", correlationID=action, output={})
    await manager.notification()
    await agent.send("response", "invokeaction", "pump-1", correlationID=action, error={"status": 500})
    late = await agent.answered(action)

    assert (foreign["error"]["status"], late["error"]["code"]) == (404, "illegal-status")


async def test_a_thing_is_removed_by_its_agent(agent: WebThingClient, manager: WebThingClient) -> None:
    removed = await agent.request("destroything", "pump-1")
    read = await manager.request("readproperty", PUMP_1, name="flow")
    again = await agent.request("destroything", "pump-1")

    assert "error" not in removed
    assert (read["error"]["code"], again["error"]["code"]) == ("unknown-thing", "unknown-thing")


# ---------------------------------------------------------------- who may come


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Digest x"}, 401),
        ({"Origin": "https://evil.example"}, 403),
    ],
)
async def test_a_handshake_without_good_credentials_is_refused_with_a_problem(
    runtime: Skep, headers: dict[str, str], status: int
) -> None:
    with pytest.raises(InvalidStatus) as refusal:
        async with connect(address(runtime), subprotocols=[PROTOCOL], additional_headers=headers, proxy=None):
            pass

    response = refusal.value.response
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert json.loads(response.body)["status"] == status
    assert ("www-authenticate" in response.headers) == (status == 401)


async def test_a_page_of_ours_comes_in_with_its_cookie_and_a_foreign_page_does_not(runtime: Skep) -> None:
    administration = runtime.running.stores.authenticator.administration
    await administration.add("ann", AccountType.CONSUMER, "viewer", by="test", password="long-enough-1")
    async with httpx2.AsyncClient(base_url=runtime.http) as http:
        reply = await http.post(
            "/authn/login", json={"login": "ann", "password": "long-enough-1"}, headers={"Origin": runtime.http}
        )
        token = reply.json()["accessToken"]
    cookie = {"Cookie": f"skep={token}"}

    async with connect(
        address(runtime), subprotocols=[PROTOCOL], additional_headers=cookie, origin=Origin(runtime.http), proxy=None
    ) as opened:
        assert opened.subprotocol == PROTOCOL
    for origin in (Origin("https://evil.example"), None):
        with pytest.raises(InvalidStatus) as refusal:
            async with connect(
                address(runtime), subprotocols=[PROTOCOL], additional_headers=cookie, origin=origin, proxy=None
            ):
                pass
        assert refusal.value.response.status_code == 403


async def test_a_token_in_the_address_and_a_missing_subprotocol_are_refused(runtime: Skep) -> None:
    ann = await runtime.add("ann")
    with pytest.raises(InvalidStatus) as in_address:
        async with connect(f"{address(runtime)}?token={ann.token}", subprotocols=[PROTOCOL], proxy=None):
            pass
    with pytest.raises(InvalidStatus) as without:
        async with connect(address(runtime), additional_headers={"Authorization": f"Bearer {ann.token}"}, proxy=None):
            pass
    async with httpx2.AsyncClient(base_url=runtime.http) as http:
        plain = await http.get("/wot/ws")

    assert (in_address.value.response.status_code, without.value.response.status_code) == (401, 400)
    assert (plain.status_code, plain.headers["content-type"]) == (426, "application/problem+json")


async def test_a_role_limits_what_a_socket_may_do(runtime: Skep, agent: WebThingClient) -> None:
    await published(agent, "flow", 4)
    async with web_thing_client(runtime, await runtime.add("eve", role="viewer")) as viewer:
        read = await viewer.request("readproperty", PUMP_1, name="flow")
        invoked = await viewer.request("invokeaction", PUMP_1, name="setSpeed", input=1)
        written = await viewer.request("writeproperty", PUMP_1, name="target", value=1)
    async with web_thing_client(runtime, await runtime.add("nil", role="none")) as stranger:
        hidden = await stranger.request("readproperty", PUMP_1, name="flow")
        observed = await stranger.request("observeproperty", PUMP_1, name="flow")

    assert read["value"] == 4
    assert [one["error"]["status"] for one in (invoked, written)] == [403, 403]
    assert {one["error"]["status"] for one in (hidden, observed)} <= {403, 404}


async def test_a_revoked_token_ends_its_sockets(runtime: Skep) -> None:
    ann = await runtime.add("ann")
    async with web_thing_client(runtime, ann) as client:
        await client.request("readallproperties", "dtw:directory:things")
        await runtime.running.stores.authenticator.administration.disable("ann", by="test")
        with anyio.fail_after(30):
            await client.socket.wait_closed()

    assert client.socket.close_code == 1008


async def test_tls_sockets_are_served_alike(runtime: Skep) -> None:
    trusted = ssl.create_default_context(cafile=str(runtime.ca))
    async with web_thing_client(runtime, await runtime.add("ann"), tls=trusted) as client:
        answer = await client.request("callrpc", "dtw:directory:things", name="listTDs", input={"limit": 1})

    assert len(answer["output"]["items"]) == 1


# ---------------------------------------------------------------- bad input and bounds


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "malformed"),
        ("nonsense", "malformed"),
        ("[]", "invalid"),
        ("{}", "invalid"),
        ('{"messageType":"request","operation":"readproperty","thingID":"x"}', "invalid"),
        ('{"messageType":"request","messageID":"1","operation":"","thingID":"x"}', "invalid"),
        ('{"messageType":"request","messageID":"1","operation":"sing","thingID":"x"}', "invalid"),
        ('{"messageType":"request","messageID":"1","operation":"readproperty"}', "invalid"),
        ('{"messageType":"request","messageID":"1","operation":"readproperty","thingID":"dtw:a:b"}', "invalid"),
        (
            '{"messageType":"request","messageID":"1","operation":"observeproperty","thingID":"urn:x","name":"a"}',
            "unknown-thing",
        ),
        (
            '{"messageType":"request","messageID":"1","operation":"invokeaction","thingID":"dtw:a:b","name":"x","wait":"a"}',
            "invalid",
        ),
        ("[" * 40 + "]" * 40, "too-deep"),
    ],
)
async def test_bad_messages_are_answered_and_the_socket_goes_on(runtime: Skep, text: str, code: str) -> None:
    async with web_thing_client(runtime, await runtime.add("ann")) as client:
        await client.socket.send(text)
        answer = await client.answered(None)
        after = await client.request("callrpc", "dtw:directory:things", name="listTDs", input={"count": True})

    assert answer["error"]["code"] == code
    assert "output" in after


async def test_a_message_too_large_ends_the_socket_and_nobody_elses(runtime: Skep) -> None:
    ann = await runtime.add("ann")
    async with web_thing_client(runtime, ann) as canary, web_thing_client(runtime, ann) as client:
        with anyio.fail_after(30):
            with contextlib.suppress(ConnectionClosed):
                await client.socket.send("x" * 300_000)
            await client.socket.wait_closed()
        after = await canary.request("callrpc", "dtw:directory:things", name="listTDs", input={"count": True})

    assert "output" in after


async def test_a_client_that_does_not_read_loses_old_events_but_keeps_the_latest_value(
    runtime: Skep, agent: WebThingClient
) -> None:
    ann = await runtime.add("ann")
    headers = {"Authorization": f"Bearer {ann.token}"}
    url = address(runtime)
    narrow = socket.socket()
    # What the kernels hold for a client that does not read is not ours to bound.
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    narrow.connect(("127.0.0.1", int(url.split(":")[2].partition("/")[0])))
    async with (
        connect(
            url, sock=narrow, subprotocols=[PROTOCOL], additional_headers=headers, max_queue=1, compression=None
        ) as slow,
        web_thing_client(runtime, ann) as quick,
    ):
        for client in (slow, quick.socket):
            for operation, name in (("observeproperty", "target"), ("subscribeevent", "alarm")):
                await client.send(
                    json.dumps(
                        {
                            "thingID": PUMP_1,
                            "messageID": name,
                            "messageType": "request",
                            "operation": operation,
                            "name": name,
                            "correlationID": name,
                        }
                    )
                )
        await quick.answered("target")
        await quick.answered("alarm")
        big = "x" * 20_000
        for number in range(600):
            await happened(agent, "alarm", f"{number}:{big}")
            if number % 100 == 0:
                await published(agent, "target", number / 10)
        await published(agent, "target", 99)
        count = 0
        with anyio.fail_after(30):
            while (await quick.notified.get()).get("value") != 99:
                count += 1
        events: list[int] = []
        with anyio.fail_after(30):
            async for text in slow:
                message = json.loads(text)
                if message.get("value") == 99:
                    break
                if "data" in message:
                    events.append(int(message["data"].partition(":")[0]))

    assert count == 606
    assert events == sorted(events)
    assert len(events) < 600
    assert events[-1] == 599


async def test_a_runtime_that_ends_tells_its_sockets(tmp_path: Path) -> None:
    async with skep(tmp_path) as runtime:
        headers = {"Authorization": f"Bearer {(await runtime.add('ann')).token}"}
        opened = await connect(address(runtime), subprotocols=[PROTOCOL], additional_headers=headers, proxy=None)
    with anyio.fail_after(30):
        await opened.wait_closed()

    assert opened.close_code == 1001


# ---------------------------------------------------------------- the inbox

INBOX = "dtw:skep:requests"


async def completed(agent: WebThingClient, output: Any = None) -> None:
    """Answer the next request."""
    request = await agent.next_request()
    await agent.send("response", request["operation"], "pump-1", correlationID=request["correlationID"], output=output)


async def statuses(client: WebThingClient, correlation: str, until: str) -> list[dict[str, Any]]:
    """The statuses told under a correlationID up to a state."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["state"] != until:
        message = await client.notification()
        if message["correlationID"] == correlation:
            found.append(message["status"])
    return found


async def test_an_inbox_tells_of_requests_made_elsewhere(runtime: Skep, agent: WebThingClient) -> None:
    ann = await runtime.add("ann", role="manager")
    headers = {"Authorization": f"Bearer {ann.token}"}
    async with (
        httpx2.AsyncClient(base_url=runtime.http, headers=headers) as http,
        web_thing_client(runtime, ann) as client,
    ):
        await client.request("subscribeinbox", INBOX, correlationID="inbox")
        made = await http.post(f"/things/{PUMP_1}/actions/setSpeed", json=3, headers={"Idempotency-Key": "one"})
        await completed(agent, 3)
        told = await statuses(client, "inbox", "completed")

        await client.request("unsubscribeinbox", INBOX)
        await client.request("observeproperty", PUMP_1, name="flow", correlationID="flow")
        await http.post(f"/things/{PUMP_1}/actions/setSpeed", json=4)
        await completed(agent)
        await published(agent, "flow", 1)
        last = await client.notification()

    assert {status["requestID"] for status in told} == {made.json()["requestID"]}
    assert [status["state"] for status in told] == ["pending", "delivered", "completed"]
    assert (told[-1]["callerRef"], told[-1]["output"]) == ("one", 3)
    assert [status["seq"] for status in told] == sorted({status["seq"] for status in told})
    assert last["correlationID"] == "flow"


async def test_an_inbox_replays_what_was_missed_once_and_in_order(runtime: Skep, agent: WebThingClient) -> None:
    ann = await runtime.add("ann", role="manager")
    async with web_thing_client(runtime, ann) as first:
        await first.request("subscribeinbox", INBOX, correlationID="inbox")
        await first.request("invokeaction", PUMP_1, name="setSpeed", input=1, correlationID="call")
        await completed(agent)
        before = await statuses(first, "inbox", "completed")
        seen = before[0]["seq"]
        # Told to the invocation's own correlationID beside.
        again = await first.request("invokeaction", PUMP_1, name="setSpeed", input=2, correlationID="gone")
    await completed(agent)

    async with web_thing_client(runtime, ann) as second:
        await second.request("subscribeinbox", INBOX, correlationID="again", after=seen)
        missed = await statuses(second, "again", "completed")
        missed += await statuses(second, "again", "completed")
        refused = [
            (await second.request("subscribeinbox", INBOX, after=after))["error"]["code"] for after in (-1, "x", 1.5)
        ]

    assert "status" in again
    assert missed[: len(before) - 1] == before[1:]
    assert [status["callerRef"] for status in missed[len(before) - 1 :]] == ["gone"] * 3
    assert [status["seq"] for status in missed] == sorted({status["seq"] for status in missed})
    assert refused == ["invalid"] * 3


async def test_channel_and_messages_are_described_with_examples(runtime: Skep) -> None:
    async with httpx2.AsyncClient(base_url=runtime.http) as http:
        streams = (await http.get("/asyncapi.json")).json()

    channel = streams["channels"]["webThings"]
    assert channel["address"] == "/wot/ws"
    assert {"node", "stream", "inbox"} < set(streams["channels"])
    for message in channel["messages"].values():
        check = jsonschema_rs.validator_for(message["payload"])
        for example in message["examples"]:
            check.validate(example["payload"])
            read(json.dumps(example["payload"]), max_bytes=1_000)
    for name in ("send-webThings", "receive-webThings"):
        references = [one["$ref"].rpartition("/")[2] for one in streams["operations"][name]["messages"]]
        assert references == list(channel["messages"])
