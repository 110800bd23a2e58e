"""Consumers and agents through a whole runtime: read, watch, invoke, write, cancel, resume."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

from skep import Agent, AgentRequest, Change, Consumer, Refused
from tests.skep.runtimes import PASSWORD, Site, site
from things.delivery import State
from things.errors import (
    AgentFailed,
    Conflict,
    Forbidden,
    Invalid,
    NotConnected,
    NotFound,
    TimedOut,
    Unauthenticated,
    Unavailable,
    UnknownRequest,
    UnknownThing,
)

pytestmark = pytest.mark.anyio

PUMP = "dtw:pumps:pump-1"
TD: dict[str, JsonValue] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Pump",
    "properties": {
        "flow": {"type": "number", "readOnly": True, "observable": True},
        "limit": {"type": "number", "observable": True},
    },
    "actions": {
        "setSpeed": {"input": {"type": "number", "maximum": 100}},
        "refuse": {},
        "slow": {},
    },
    "events": {"alarm": {"data": {"type": "string"}}},
}


@pytest.fixture
async def a_site(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path / "home") as running:
        yield running


def an_agent(a_site: Site) -> Agent:
    agent = a_site.agent()
    agent.expose("pump-1", TD)

    @agent.action("pump-1", "setSpeed")
    async def set_speed(speed: JsonValue, request: AgentRequest) -> JsonValue:
        await request.progress(50)
        return speed

    @agent.action("pump-1", "refuse")
    async def refuse(data: JsonValue, request: AgentRequest) -> JsonValue:
        raise Refused("not today")

    @agent.action("pump-1", "slow")
    async def slow(data: JsonValue, request: AgentRequest) -> JsonValue:
        await anyio.sleep_forever()
        return None

    @agent.write("pump-1", "limit")
    async def limit(value: JsonValue, request: AgentRequest) -> JsonValue:
        await agent.publish("pump-1", "limit", value)
        return None

    return agent


@pytest.fixture
async def agent(a_site: Site) -> AsyncIterator[Agent]:
    async with an_agent(a_site) as connected:
        await connected.publish("pump-1", "flow", 12.5)
        await connected.flush(10)
        yield connected


@pytest.fixture
async def ann(a_site: Site) -> AsyncIterator[Consumer]:
    async with a_site.consumer() as consumer:
        yield consumer


async def test_things_and_values_are_read(agent: Agent, ann: Consumer) -> None:
    things = {thing.id: thing for thing in await ann.things()}

    assert things[PUMP].title == "Pump"
    assert set(things[PUMP].actions) == {"setSpeed", "refuse", "slow"}
    assert await ann.thing(PUMP).read("flow") == 12.5
    assert (await ann.thing(PUMP).read_all())["flow"] == 12.5


async def test_unknown_things_and_wrong_passwords_raise_their_own_errors(
    agent: Agent, ann: Consumer, a_site: Site
) -> None:
    with pytest.raises(UnknownThing):
        await ann.thing("dtw:pumps:pump-9").describe()
    with pytest.raises(NotFound):
        await ann.thing(PUMP).read("pressure")
    with pytest.raises(Unauthenticated):
        async with Consumer(a_site.running.https or "", login=("ann", "wrong"), ca=a_site.ca):
            pytest.fail("was let in")
    with pytest.raises(Unavailable):
        async with Consumer("https://127.0.0.1:9", login=("ann", PASSWORD), ca=a_site.ca):
            pytest.fail("reached nobody")


async def test_changes_are_watched_as_they_come(agent: Agent, ann: Consumer) -> None:
    seen: list[Change] = []

    async def watch(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async for change in ann.watch("dtw:pumps:*", latest=True):
            if change.name in ("online", "lastSeen"):  # of the runtime, with the latest values
                continue
            seen.append(change)
            if len(seen) == 1:
                task_status.started()
            if len(seen) == 3:
                return

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(watch)
            await agent.publish("pump-1", "flow", 13.5)
            await agent.event("pump-1", "alarm", "hot")

    assert [(one.kind, one.name, one.value) for one in seen] == [
        ("property", "flow", 12.5),
        ("property", "flow", 13.5),
        ("event", "alarm", "hot"),
    ]
    assert {one.thing_id for one in seen} == {PUMP}


async def test_watching_resumes_behind_the_last_change_seen(agent: Agent, ann: Consumer) -> None:
    with anyio.fail_after(30):
        async for change in ann.watch(f"{PUMP}/flow", latest=True):
            first = change
            break
        await agent.publish("pump-1", "flow", 1)
        await agent.publish("pump-1", "flow", 2)
        await agent.flush(10)

        missed = []
        async for change in ann.watch(f"{PUMP}/flow", after=first.id):
            missed.append(change.value)
            if len(missed) == 2:
                break

    assert missed == [1, 2]


async def test_action_is_carried_out_and_answered(agent: Agent, ann: Consumer) -> None:
    requested = await ann.thing(PUMP).invoke("setSpeed", 42, wait_s=10)

    assert requested.state is State.COMPLETED
    assert requested.output == 42
    assert (await requested.refresh()).output == 42


async def test_statuses_are_followed_from_the_first_on(agent: Agent, ann: Consumer) -> None:
    requested = await ann.thing(PUMP).invoke("setSpeed", 42)

    with anyio.fail_after(30):
        states = [status.state async for status in requested.statuses()]

    assert states == [State.PENDING, State.DELIVERED, State.RUNNING, State.COMPLETED]
    assert await requested.result() == 42


async def test_device_that_refuses_is_told_as_its_error(agent: Agent, ann: Consumer) -> None:
    requested = await ann.thing(PUMP).invoke("refuse", wait_s=10)

    assert (requested.state, requested.status.error) == (State.COMPLETED, "not today")
    with pytest.raises(AgentFailed, match="not today"):
        await requested.result()


async def test_wrong_input_and_missing_rights_are_refused_before_anything_is_stored(agent: Agent, a_site: Site) -> None:
    async with a_site.consumer("ann") as ann, a_site.consumer("vic") as vic:
        with pytest.raises(Invalid):
            await ann.thing(PUMP).invoke("setSpeed", 101)
        with pytest.raises(NotFound):
            await ann.thing(PUMP).invoke("fly")
        with pytest.raises(Forbidden):
            await vic.thing(PUMP).invoke("setSpeed", 1)

        assert await ann.requests() == []


async def test_request_for_an_absent_agent_waits_and_is_resumed_by_its_id(a_site: Site, ann: Consumer) -> None:
    async with an_agent(a_site) as agent:
        await agent.flush(10)
    requested = await ann.thing(PUMP).invoke("setSpeed", 7)

    with pytest.raises(TimedOut):
        await requested.final(0.05)
    async with a_site.consumer() as later, an_agent(a_site):
        output = await (await later.request(requested.id)).result(10)

    assert output == 7


async def test_same_reference_is_the_same_request_and_other_content_a_conflict(agent: Agent, ann: Consumer) -> None:
    first = await ann.thing(PUMP).invoke("setSpeed", 1, reference="one")
    again = await ann.thing(PUMP).invoke("setSpeed", 1, reference="one")

    assert first.id == again.id == (await ann.by_reference("one")).id
    with pytest.raises(Conflict):
        await ann.thing(PUMP).invoke("setSpeed", 2, reference="one")


async def test_request_is_cancelled_by_its_caller_only(agent: Agent, a_site: Site, ann: Consumer) -> None:
    requested = await ann.thing(PUMP).invoke("slow")

    async with a_site.consumer("bob") as bob:
        with pytest.raises(UnknownRequest):
            await bob.cancel(requested.id)
    await requested.cancel()

    assert (await requested.final(10)).state is State.CANCELLED


async def test_call_is_answered_now_or_not_at_all(a_site: Site, ann: Consumer) -> None:
    async with an_agent(a_site) as agent:
        await agent.flush(10)
        assert await ann.thing(PUMP).call("setSpeed", 3) == 3
        with pytest.raises(AgentFailed):
            await ann.thing(PUMP).call("refuse")

    with pytest.raises(NotConnected):
        await ann.thing(PUMP).call("setSpeed", 3)


async def test_manager_writes_a_property_and_the_twin_follows_its_agent(agent: Agent, a_site: Site) -> None:
    async with Consumer(socket=a_site.running.stores.home / "control.sock") as admin:
        requested = await admin.thing(PUMP).write("limit", 80, wait_s=10)
        await agent.flush(10)

        assert requested.status.is_success
        assert (await requested.refresh()).is_success
        assert await admin.thing(PUMP).read("limit") == 80


async def test_history_is_read_back_newest_first(agent: Agent, ann: Consumer) -> None:
    await agent.publish("pump-1", "flow", 13.5)
    await agent.flush(10)

    rows = await ann.thing(PUMP).history("flow", newest_first=True)

    assert [row.value for row in rows] == [13.5, 12.5]
    assert rows.is_complete


async def test_requests_are_listed_over_several_pages_up_to_a_limit(
    a_site: Site, ann: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skep.consumer.REQUESTS_A_PAGE", 2)
    async with an_agent(a_site):
        pass  # announced, and gone
    for number in range(5):
        await ann.invoke(PUMP, "setSpeed", number)

    assert [row["input"] for row in await ann.requests(limit=4)] == [4, 3, 2, 1]
    assert len(await ann.requests(limit=50, state="pending")) == 5
