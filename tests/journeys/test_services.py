"""Services are Things: the runtime's own and other people's are found by type and called alike over every binding."""

import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest

from tests.bindings.websocket.clients import web_thing_client
from tests.bindings.websocket.peers import web_thing_agent
from tests.journeys.peers import AgentPeer, http_agent, http_consumer, mqtt_agent, mqtt_consumer
from tests.support import PUMP, Account, Skep, skep

pytestmark = pytest.mark.anyio

DIRECTORY, VALUES, HISTORY = "dtw:directory:things", "dtw:values:latest", "dtw:history:readings"
ACCOUNTS, MYSELF, RIGHTS = "dtw:authn:admin", "dtw:authn:user", "dtw:authz:admin"
PUMP_1 = "dtw:works:pump-1"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "service.py"


class Call(Protocol):
    async def __call__(self, service: str, method: str, data: Any = None, /) -> dict[str, Any]:
        """`{"state","output","reason"}`, however the binding spells it."""
        ...


Caller = Callable[[Skep, Account], AbstractAsyncContextManager[Call]]


@dataclass
class _Counted:
    """Gives each call a reference of its own."""

    peer: Any
    references: "itertools.count[int]" = field(default_factory=itertools.count)

    async def __call__(self, service: str, method: str, data: Any = None, /) -> dict[str, Any]:
        found: dict[str, Any] = await self.peer.call(service, method, data, f"call-{next(self.references)}")
        return found


@asynccontextmanager
async def by_mqtt(runtime: Skep, account: Account) -> AsyncIterator[Call]:
    async with mqtt_consumer(runtime, account) as peer:
        yield _Counted(peer)


@asynccontextmanager
async def by_http(runtime: Skep, account: Account) -> AsyncIterator[Call]:
    async with http_consumer(runtime, account) as peer:
        yield _Counted(peer)


@asynccontextmanager
async def by_websocket(runtime: Skep, account: Account) -> AsyncIterator[Call]:
    async with web_thing_client(runtime, account) as client:

        async def call(service: str, method: str, data: Any = None, /) -> dict[str, Any]:
            answer = await client.request("callrpc", service, name=method, **({} if data is None else {"input": data}))
            error = answer.get("error")
            if error is not None:
                return {"state": "failed", "reason": error["code"], "error": error["detail"]}
            return {"state": "completed", "output": answer.get("output")}

        yield call


CALLERS: dict[str, Caller] = {"mqtt": by_mqtt, "http": by_http, "websocket": by_websocket}


@pytest.fixture(params=list(CALLERS))
def caller(request: pytest.FixtureRequest) -> Caller:
    return CALLERS[request.param]


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Skep]:
    async with skep(tmp_path, http={"poll_interval_s": 0.5}) as running:
        yield running


@pytest.fixture
async def pump(runtime: Skep) -> None:
    async with mqtt_agent(runtime, await runtime.add("works", "agent")) as agent:
        await agent.describe("pump-1", PUMP)
        for value in (1.0, 2.0, 3.0):
            await agent.value("pump-1", "flow", value)


def output(answer: dict[str, Any]) -> Any:
    assert answer["state"] == "completed", answer
    return answer["output"]


# ---------------------------------------------------------------- the runtime's own


async def test_directory_values_and_history_are_read(runtime: Skep, pump: None, caller: Caller) -> None:
    async with caller(runtime, await runtime.add("ann")) as call:
        td = output(await call(DIRECTORY, "readTD", {"thingID": PUMP_1}))
        found = output(await call(DIRECTORY, "listTDs", {"filter": "flow > 2 and title = Pump"}))
        services = output(
            await call(DIRECTORY, "listTDs", {"filter": "@type = ValuesService or @type = HistoryService"})
        )
        versions = output(await call(DIRECTORY, "listVersions", {"thingID": PUMP_1}))
        flow = output(await call(VALUES, "readProperty", {"thingID": PUMP_1, "name": "flow"}))
        online = output(await call(VALUES, "readProperty", {"thingID": PUMP_1, "name": "online"}))
        rows = output(await call(HISTORY, "readHistory", {"thingID": PUMP_1, "name": "flow"}))

    assert td["id"] == PUMP_1
    assert [one["id"] for one in found["items"]] == [PUMP_1]
    assert [one["id"] for one in services["items"]] == [HISTORY, VALUES]
    assert [one["version"] for one in versions["items"]] == [1]
    assert (flow["value"], online["value"]) == (3.0, False)
    assert [row["value"] for row in rows["items"]] == [1.0, 2.0, 3.0]


async def test_accounts_roles_and_rules_are_managed_by_admins(runtime: Skep, caller: Caller) -> None:
    async with caller(runtime, await runtime.add("root", role="admin")) as call:
        added = output(await call(ACCOUNTS, "addClient", {"clientID": "eve", "type": "consumer", "role": "viewer"}))
        output(await call(ACCOUNTS, "setClientRole", {"clientID": "eve", "role": "operator"}))
        listed = output(await call(ACCOUNTS, "listClients"))
        roles = output(await call(RIGHTS, "listRoles"))

    clients = {one["clientID"]: one for one in _items(listed)}
    assert added
    assert clients["eve"]["role"] == "operator"
    assert "viewer" in str(roles)


async def test_everyone_reads_the_own_profile_and_nobody_else_manages(runtime: Skep, caller: Caller) -> None:
    async with caller(runtime, await runtime.add("ann")) as call:
        profile = output(await call(MYSELF, "getProfile"))
        refused = await call(ACCOUNTS, "listClients")
        rights = await call(RIGHTS, "listRoles")
        unknown = await call(MYSELF, "fly")
        wrong = await call(VALUES, "readProperty", {"thing": 1})

    assert profile["clientID"] == "ann"
    assert [one["state"] for one in (refused, rights, unknown, wrong)] == ["failed"] * 4
    assert {refused["reason"], rights["reason"]} <= {"forbidden", "unknown-thing"}
    assert wrong["reason"] == "invalid"


def _items(found: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = found["items"] if isinstance(found, dict) else found
    return items


# ---------------------------------------------------------------- other people's

AGENTS: dict[str, Callable[[Skep, Account], AbstractAsyncContextManager[AgentPeer]]] = {
    "mqtt": mqtt_agent,
    "sse": http_agent,
    "poll": partial(http_agent, polls=True),
    "websocket": web_thing_agent,
}


@pytest.mark.parametrize("agent", list(AGENTS))
async def test_a_service_on_any_binding_is_found_by_type_and_called(runtime: Skep, caller: Caller, agent: str) -> None:
    td = {
        "@context": ["https://www.w3.org/2022/wot/td/v1.1", {"skep": "urn:skep:v1#"}],
        "@type": "skep:StorageService",
        "title": "Notes",
        "actions": {"get": {"input": {"type": "object"}}},
    }
    async with (
        AGENTS[agent](runtime, await runtime.add("desk", "service")) as desk,
        caller(runtime, await runtime.add("ann")) as call,
        anyio.create_task_group() as tasks,
    ):

        async def serve() -> None:
            while True:
                asked = await desk.asked()
                await desk.report(asked.request_id, state="completed", output={"got": asked.input})

        await desk.describe("notes", td)
        tasks.start_soon(serve)
        with anyio.fail_after(30):
            while True:
                found = output(await call(DIRECTORY, "listTDs", {"type": "skep:StorageService", "filter": "online"}))
                if found["items"]:
                    break
        service = found["items"][0]["id"]
        answer = output(await call(service, "get", {"key": "a"}))
        tasks.cancel_scope.cancel()

    assert service == "dtw:desk:notes"
    assert answer == {"got": {"key": "a"}}


async def test_the_example_service_runs_and_a_consumer_without_rights_cannot_call_it(
    runtime: Skep, caller: Caller
) -> None:
    desk = await runtime.add("desk", "service")
    environment = {**os.environ, "SKEP_MQTT": runtime.mqtt, "SKEP_TOKEN": desk.token}
    async with (
        await anyio.open_process([sys.executable, str(EXAMPLE)], env=environment) as process,
        caller(runtime, await runtime.add("ann")) as call,
        caller(runtime, await runtime.add("eve", role="viewer")) as watch,
    ):
        try:
            with anyio.fail_after(30):
                # It is there once it has said what it is and takes requests; until then it is unknown or absent.
                while (mean := await call("dtw:desk:sums", "mean", [1, 2, 6]))["state"] != "completed":
                    assert mean["reason"] in ("unknown-thing", "not-connected")
            items = output(await call(DIRECTORY, "listTDs", {"filter": "agent = desk"}))["items"]
            output(await call("dtw:desk:notes", "put", {"key": "a", "value": [1]}))
            got = output(await call("dtw:desk:notes", "get", {"key": "a"}))
            invalid = await call("dtw:desk:sums", "mean", [])
            refused = await watch("dtw:desk:sums", "mean", [1])
        finally:
            process.kill()

    assert {td["@type"] for td in items} == {"skep:StorageService", "skep:AnalyticsService"}
    assert mean["output"] == 3
    assert got == [1]
    assert (invalid["reason"], refused["reason"]) == ("invalid", "forbidden")
