"""Agents that are hyperties: their objects are Things with actions, presence, history and events like any other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from skep import Agent, Consumer
from skep.handlers import AgentRequest
from skep.hyperty import Action, Runtime
from tests.bindings.messaging_node.support import NODE, REGISTRY, client, connected
from tests.support import PUMP, Account, Skep, skep
from tests.trials.process import furnished, runtime_process
from things.delivery import State
from things.errors import Forbidden
from things.messages import JSONValue
from things.records import LedgerQuery, LedgerRow

pytestmark = pytest.mark.anyio

DOOR = "comm://localhost/door"
TWIN = "dtw:porter:door"


async def until(found: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not found():  # noqa: ASYNC110 - another party's effect
            await anyio.sleep(0.01)


@asynccontextmanager
async def http(house: Skep, account: Account) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"authorization": f"Bearer {account.token}"}
    async with httpx2.AsyncClient(base_url=house.http, headers=headers, timeout=30, trust_env=False) as found:
        yield found


async def rows(house: Skep) -> list[LedgerRow]:
    return list(await house.running.stores.twin.ledger.query(LedgerQuery(limit=100)))


async def test_action_of_a_hyperty_s_object_reaches_it_with_the_whole_ledger(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        porter, ann = await house.add("porter", "agent"), await house.add("ann", role="manager")
        given: list[JSONValue] = []

        async def unlock(params: JSONValue) -> JSONValue:
            given.append(params)
            if params == "no":
                raise ValueError("no such key")
            return {"opened": params}

        actions = {"unlock": Action(run=unlock, input={"type": "string"}), "ring": Action(run=lambda _: None)}
        async with (
            Runtime(house.http, token=porter.token) as runtime,
            Consumer(house.http, token=ann.token) as consumer,
        ):
            reporter = await runtime.report("door", {"open": False}, url=DOOR, actions=actions, writable=["open"])
            thing = consumer.thing(TWIN)
            td: Any = await thing.describe()
            assert sorted(td["actions"]) == ["ring", "unlock"]
            assert not td["properties"]["open"].get("readOnly")
            assert await thing.read("online") is True

            assert (await thing.invoke("unlock", "front", wait_s=10)).output == {"opened": "front"}
            assert (await thing.invoke("ring", wait_s=10)).output is None
            refused = (await thing.invoke("unlock", "no", wait_s=10)).status
            assert (refused.state, refused.error) == (State.COMPLETED, "ValueError: no such key")
            with pytest.raises(Exception, match="string"):
                await thing.invoke("unlock", 7)
            await thing.write("open", True)
            await until(lambda: reporter.data["open"] is True)

            # From hyperty to hyperty an action takes the same way: rights, ledger, statuses.
            async with Runtime(house.http, token=ann.token) as other:
                found = await other.execute("thing://localhost/porter/door", "unlock", "back")
                assert isinstance(found, dict)
                assert (found["state"], found["output"]) == ("completed", {"opened": "back"})
                with pytest.raises(Forbidden):
                    await other.execute(DOOR, "unlock", "behind the ledger's back")

        assert given == ["front", "no", "back"]
        ended = [(row.name, row.state, row.error) for row in await rows(house)]
        assert sorted(ended, key=str) == [
            ("open", "completed", None),
            ("ring", "completed", None),
            ("unlock", "completed", "ValueError: no such key"),
            ("unlock", "completed", None),
            ("unlock", "completed", None),
        ]


async def test_action_for_an_absent_hyperty_waits_and_presence_tells_it(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node={"resume_s": 60.0}) as house:
        porter, ann = await house.add("porter", "agent"), await house.add("ann")
        async with http(house, ann) as asking:
            async with client(house, token=porter.token) as door:
                await door.send("create", REGISTRY, {"value": {"url": DOOR, "data": {}, "actions": {"unlock": {}}}})
                assert (await door.next())["body"]["code"] == 200
                assert (await asking.get(f"/things/{TWIN}/properties/online")).json() is True
                session = door.session
                door.socket.transport.abort()

            async with Consumer(house.http, token=ann.token) as consumer:
                thing = consumer.thing(TWIN)
                with anyio.fail_after(30):
                    while await thing.read("online"):
                        pass
            accepted = await asking.post(f"/things/{TWIN}/actions/unlock", json="front")
            assert accepted.status_code in (201, 202)
            assert [row.state for row in await rows(house)] == [State.PENDING]

            async with connected(house, token=porter.token) as door:
                await door.reopen(session)
                request = (door.aside or [await door.next()])[0]
                assert (request["type"], request["from"], request["to"]) == ("execute", f"{NODE}/requests", DOOR)
                assert (request["body"]["method"], request["body"]["params"]) == ("unlock", "front")
                assert request["body"]["source"] == "user://localhost/ann"
                request_id = request["id"]
                assert request_id == request["body"]["requestID"]

                back: dict[str, Any] = {"id": request_id, "from": DOOR}
                await door.send("response", request["from"], {"code": 100, "value": 40}, **back)
                await door.send("response", request["from"], {"code": 200, "value": "opened"}, **back)
                await door.send("response", request["from"], {"code": 200, "value": "twice"}, **back)
                assert await door.nothing()
            (row,) = await rows(house)
            assert (row.state, row.output, row.progress) == (State.COMPLETED, "opened", 40)


async def test_request_that_was_not_answered_comes_again_and_has_its_effect_once(tmp_path: Path) -> None:
    async with skep(tmp_path, messaging_node={"resume_s": 60.0}) as house:
        porter, ann = await house.add("porter", "agent"), await house.add("ann")
        calls: list[JSONValue] = []
        may_end = anyio.Event()

        async def unlock(params: JSONValue) -> JSONValue:
            calls.append(params)
            await may_end.wait()
            return "opened"

        async with (
            Runtime(house.http, token=porter.token) as runtime,
            Consumer(house.http, token=ann.token) as consumer,
            anyio.create_task_group() as tasks,
        ):
            await runtime.report("door", {}, url=DOOR, actions={"unlock": Action(run=unlock)})
            results: list[JSONValue] = []

            async def invoke() -> None:
                results.append((await consumer.thing(TWIN).invoke("unlock", wait_s=20)).output)

            tasks.start_soon(invoke)
            await until(lambda: bool(calls))
            socket = runtime._stub._socket
            assert socket is not None
            socket.transport.abort()
            await until(lambda: runtime._stub._socket not in (None, socket))
            may_end.set()
            await until(lambda: bool(results))

        assert (calls, results) == ([None], ["opened"])


async def test_request_under_way_when_the_process_was_killed_ends_with_its_effect_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    accounts = await furnished(home, {"porter": "agent", "ann": "operator"})
    calls: list[JSONValue] = []
    may_end = anyio.Event()

    async def unlock(params: JSONValue) -> JSONValue:
        calls.append(params)
        await may_end.wait()
        return "opened"

    async with runtime_process(home) as process, Runtime(process.http, token=accounts["porter"].token) as runtime:
        await runtime.report("door", {}, url=DOOR, actions={"unlock": Action(run=unlock)})
        async with process.client(accounts["ann"]) as asking:
            accepted = await asking.post(f"/things/{TWIN}/actions/unlock", json="front")
        await until(lambda: bool(calls))
        first = runtime._stub._socket

        await process.restart()
        may_end.set()
        await until(lambda: runtime._stub._socket not in (None, first))

        async with process.client(accounts["ann"]) as asking:
            path = f"/requests/{accepted.json()['requestID']}"
            with anyio.fail_after(30):
                while (found := (await asking.get(path)).json())["state"] != "completed":
                    pass
            assert (await asking.get(f"/things/{TWIN}/properties/online")).json() is True

    assert (found["output"], calls) == ("opened", ["front"])


async def test_hyperty_and_mqtt_agent_of_one_account_each_get_their_own_things_requests(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        works, ann = await house.add("works", "agent"), await house.add("ann")
        agent = Agent(house.mqtt, works.name, works.token)
        agent.expose("pump-1", PUMP)

        @agent.action("pump-1", "setSpeed")
        async def set_speed(speed: JSONValue, request: AgentRequest) -> JSONValue:
            return {"speed": speed}

        async with (
            Runtime(house.http, token=works.token) as first,
            agent,
            Runtime(house.http, token=works.token) as second,
            Consumer(house.http, token=ann.token) as consumer,
        ):
            await agent.flush()
            for runtime, name in ((first, "one"), (second, "two")):
                action = Action(run=lambda _, name=name: name)  # type: ignore[misc]
                await runtime.report(name, {}, url=f"comm://localhost/{name}", actions={"who": action})

            asked = (("one", "who", None), ("pump-1", "setSpeed", 3), ("two", "who", None))
            found = [
                await consumer.invoke(f"dtw:works:{thing}", name, given, wait_s=10) for thing, name, given in asked
            ]
            assert [one.output for one in found] == ["one", {"speed": 3}, "two"]


async def test_object_s_values_come_as_server_sent_events_and_are_history(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        porter, ann = await house.add("porter", "agent"), await house.add("ann")
        async with (
            Runtime(house.http, token=porter.token) as runtime,
            http(house, ann) as asking,
        ):
            reporter = await runtime.report("door", {"open": False}, url=DOOR)
            heard: list[str] = []
            with anyio.fail_after(30):
                path, accept = f"/things/{TWIN}/properties/open", {"accept": "text/event-stream"}
                async with asking.stream("GET", path, headers=accept) as events:
                    lines = (line[6:] async for line in events.aiter_lines() if line.startswith("data: "))
                    heard.append(await anext(lines))
                    await reporter.set("open", True)
                    heard.append(await anext(lines))
            found = await asking.get(f"/things/{TWIN}/history", params={"name": "open"})

        assert heard == ["false", "true"]
        assert [one["value"] for one in found.json()["items"]] == [False, True]
