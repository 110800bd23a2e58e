"""node-wot, the reference implementation of the Web of Things, works with a runtime as it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.clients.packages import node_modules
from tests.clients.processes import node_wot
from tests.journeys.peers import AgentPeer, mqtt_agent
from tests.support import PUMP, Account, Skep, skep

pytestmark = [pytest.mark.anyio, pytest.mark.node]

PUMP_1 = "dtw:works:pump-1"


@pytest.fixture(scope="module", autouse=True)
def _packages() -> Path:
    return node_modules()


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, tls=True) as running:
        yield running


@pytest.fixture
async def works(runtime: Skep) -> Account:
    return await runtime.add("works", "agent")


@pytest.fixture
async def agent(runtime: Skep, works: Account) -> AsyncIterator[AgentPeer]:
    async with mqtt_agent(runtime, works) as peer:
        await peer.describe("pump-1", PUMP)
        await peer.value("pump-1", "flow", 12.5)
        yield peer


@pytest.fixture
async def ann(runtime: Skep) -> Account:
    return await runtime.add("ann", role="manager")


@asynccontextmanager
async def answering(agent: AgentPeer) -> AsyncIterator["asyncio.Queue[Any]"]:
    """The agent carries out whatever it is asked; the queue holds what that was."""
    asked: asyncio.Queue[Any] = asyncio.Queue()

    async def serve() -> None:
        while True:
            request = await agent.asked()
            if request.operation == "property":
                await agent.value("pump-1", request.name, request.input)
            await agent.report(request.request_id, state="completed", output={"speed": request.input})
            asked.put_nowait((request.operation, request.name, request.input))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        yield asked
        tasks.cancel_scope.cancel()


async def described(runtime: Skep, ann: Account, **query: str) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=runtime.http, headers=bearer(ann)) as http:
        reply = await http.get(f"/things/{PUMP_1}", params=query)
        assert reply.status_code == 200
        td: dict[str, Any] = reply.json()
        return td


async def ticket(runtime: Skep, ann: Account, stream: str) -> str:
    async with httpx2.AsyncClient(base_url=runtime.http, headers=bearer(ann)) as http:
        reply = await http.post("/authn/ticket", json={"stream": stream})
        return str(reply.json()["ticket"])


def bearer(account: Account) -> dict[str, str]:
    return {"Authorization": f"Bearer {account.token}"}


def form_index(td: dict[str, Any], kind: str, name: str, **members: str) -> int:
    forms = td[kind][name]["forms"]
    return next(i for i, form in enumerate(forms) if all(form.get(key) == value for key, value in members.items()))


async def test_properties_are_read_and_written_over_https_with_a_bearer_token(
    runtime: Skep, agent: AgentPeer, ann: Account
) -> None:
    td = await described(runtime, ann)

    async with answering(agent) as asked, node_wot(runtime, td, token=ann.token) as thing:
        flow = await thing.ask("readProperty", "flow")
        online = await thing.ask("readProperty", "online")
        await thing.ask("writeProperty", "target", 44)
        target = await thing.ask("readProperty", "target")
        all_ = await thing.ask("readAllProperties")
        with pytest.raises(RuntimeError):
            await thing.ask("writeProperty", "target", "high")

    assert (flow, online, target) == (12.5, True, 44)
    assert asked.get_nowait() == ("property", "target", 44)
    assert {"flow": 12.5, "target": 44}.items() <= all_.items()


async def test_the_variant_for_profiles_works_with_account_and_token(
    runtime: Skep, agent: AgentPeer, ann: Account
) -> None:
    td = await described(runtime, ann, forms="profile")

    async with answering(agent) as asked, node_wot(runtime, td, username="ann", password=ann.token) as thing:
        flow = await thing.ask("readProperty", "flow")
        await thing.ask("writeProperty", "target", 44)
        status = await thing.ask("invokeAction", "setSpeed", 3)
        with anyio.fail_after(30):
            requests = {await asked.get(), await asked.get()}

    assert (flow, status["href"].startswith(f"/things/{PUMP_1}/actions/setSpeed/")) == (12.5, True)
    assert requests == {("property", "target", 44), ("action", "setSpeed", 3)}


async def test_a_wrong_token_reads_nothing(runtime: Skep, agent: AgentPeer, ann: Account) -> None:
    td = await described(runtime, ann)

    async with node_wot(runtime, td, token="wrong") as thing:
        with pytest.raises(RuntimeError, match="Unauthorized"):
            await thing.ask("readProperty", "flow")


async def test_an_action_is_invoked_over_https(runtime: Skep, agent: AgentPeer, ann: Account) -> None:
    td = await described(runtime, ann)

    async with answering(agent) as asked, node_wot(runtime, td, token=ann.token) as thing:
        status = await thing.ask("invokeAction", "setSpeed", 3)
        with anyio.fail_after(30):
            request = await asked.get()

    assert request == ("action", "setSpeed", 3)
    assert status["requestID"]
    assert status["status"] in ("pending", "running", "completed")


async def test_a_property_is_observed_by_long_poll_with_the_same_token(
    runtime: Skep, agent: AgentPeer, ann: Account
) -> None:
    td = await described(runtime, ann)

    async with node_wot(runtime, td, token=ann.token) as thing:
        await thing.ask("observeProperty", "flow")
        values = await _published_until_told(agent, thing)

    assert values == sorted(values)


async def test_a_property_is_observed_by_event_stream_with_a_ticket(
    runtime: Skep, agent: AgentPeer, ann: Account
) -> None:
    td = await described(runtime, ann)
    index = form_index(td, "properties", "flow", subprotocol="sse")
    variables = {"ticket": await ticket(runtime, ann, f"/things/{PUMP_1}/properties/flow?sse=unnamed")}

    async with node_wot(runtime, td, token=ann.token) as thing:
        await thing.ask("observeProperty", "flow", formIndex=index, uriVariables=variables)
        values = await _published_until_told(agent, thing)

    assert values == sorted(values)


async def test_an_event_is_subscribed_by_event_stream_with_a_ticket(
    runtime: Skep, agent: AgentPeer, ann: Account
) -> None:
    td = await described(runtime, ann)
    index = form_index(td, "events", "alarm", subprotocol="sse")
    variables = {"ticket": await ticket(runtime, ann, f"/things/{PUMP_1}/events/alarm?sse=unnamed")}

    async with node_wot(runtime, td, token=ann.token) as thing, anyio.create_task_group() as tasks:
        await thing.ask("subscribeEvent", "alarm", formIndex=index, uriVariables=variables)

        async def keep_happening() -> None:
            while True:
                await agent.event("pump-1", "alarm", "dry")
                await anyio.sleep(0.2)

        tasks.start_soon(keep_happening)
        told = await thing.next()
        tasks.cancel_scope.cancel()

    assert told == ("alarm", "dry")


@pytest.mark.parametrize("form", ["longpoll", "sse", "mqtt"])
async def test_every_event_of_a_batch_arrives_once_and_in_order(
    runtime: Skep, works: Account, agent: AgentPeer, ann: Account, form: str
) -> None:
    td = await described(runtime, ann, **({"forms": "mqtt"} if form == "mqtt" else {}))
    options: dict[str, Any] = {}
    if form == "sse":
        stream = f"/things/{PUMP_1}/events/alarm?sse=unnamed"
        options["formIndex"] = form_index(td, "events", "alarm", subprotocol="sse")
        options["uriVariables"] = {"ticket": await ticket(runtime, ann, stream)}
    credentials = {"username": "ann", "password": ann.token} if form == "mqtt" else {"token": ann.token}

    batch = [{"operation": "publish_event", "thingID": "pump-1", "name": "alarm", "data": str(n)} for n in range(200)]

    async def begin() -> None:
        while True:
            await agent.event("pump-1", "alarm", "first")
            await anyio.sleep(0.2)

    async with node_wot(runtime, td, **credentials) as thing:
        # The first form of the description, where none is named.
        await thing.ask("subscribeEvent", "alarm", **options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            await thing.next()
            tasks.cancel_scope.cancel()
        async with httpx2.AsyncClient(base_url=runtime.http, headers=bearer(works)) as http:
            assert (await http.post("/agent/batch", json=batch)).json()["stored"] == 200
        found: list[str] = []
        with anyio.fail_after(60):
            while len(found) < 200:
                value = (await thing.next())[1]
                if value != "first":
                    found.append(value)

    assert found == [str(n) for n in range(200)]


async def test_everything_is_done_over_mqtt_with_account_and_token(
    runtime: Skep, agent: AgentPeer, ann: Account
) -> None:
    td = await described(runtime, ann, forms="mqtt")

    async with answering(agent) as asked, node_wot(runtime, td, username="ann", password=ann.token) as thing:
        flow = await thing.ask("readProperty", "flow")
        await thing.ask("observeProperty", "flow")
        values = await _published_until_told(agent, thing)
        await thing.ask("writeProperty", "target", 31, uriVariables={"client": "ann", "callerRef": "w1"})
        await thing.ask("invokeAction", "setSpeed", 4, uriVariables={"client": "ann", "callerRef": "a1"})
        with anyio.fail_after(30):
            requests = {await asked.get(), await asked.get()}
        await thing.ask("subscribeEvent", "alarm")
        await agent.event("pump-1", "alarm", "dry")
        while (told := await thing.next())[0] != "alarm":
            continue

    assert flow == 12.5
    assert values == sorted(values)
    assert requests == {("property", "target", 31), ("action", "setSpeed", 4)}
    assert told == ("alarm", "dry")


async def test_mqtt_with_a_wrong_password_is_refused(runtime: Skep, agent: AgentPeer, ann: Account) -> None:
    td = await described(runtime, ann, forms="mqtt")

    async with node_wot(runtime, td, username="ann", password="wrong") as thing:
        with pytest.raises(RuntimeError):
            await thing.ask("readProperty", "flow")


async def _published_until_told(agent: AgentPeer, thing: Any) -> list[float]:
    """Publish rising values until some arrive: an observer may still be connecting when node-wot says that it is."""
    values: list[float] = []

    async def publish() -> None:
        number = 20.0
        while True:
            await agent.value("pump-1", "flow", number)
            number += 1
            await anyio.sleep(0.1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish)
        while len(values) < 3:
            name, value = await thing.next()
            assert name == "flow"
            values.append(value)
        tasks.cancel_scope.cancel()
    return values
