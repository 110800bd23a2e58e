"""A gateway's clock jumps by years: nothing expires for it, no time runs backwards in a request, order stays."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest

import runtime.clocks
from runtime.clocks import wall_clock
from tests.journeys.peers import final, http_consumer, mqtt_agent, mqtt_consumer
from tests.metrics import read
from tests.runtime.harness import house
from tests.support import PUMP, Account, Skep, skep
from tests.trials.process import mqtt_client
from things.addresses import Kind
from things.delivery import Reason, State
from things.errors import TokenExpired
from things.identity import AccountType
from things.lake import Quality
from things.times import rfc3339

pytestmark = pytest.mark.anyio

DAY_NS = 86_400 * 1_000_000_000
YEAR_NS = 366 * DAY_NS
THING = "dtw:works:pump-1"
JUMPS = [10 * YEAR_NS, -10 * YEAR_NS, 3_600 * 1_000_000_000, -3_600 * 1_000_000_000, -1_000_000]


class Watch:
    """The clock on the wall, which somebody sets."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.ahead_ns


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    found = Watch()
    fake = SimpleNamespace(time_ns=found.time_ns, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(runtime.clocks, "time", fake)
    return found


@pytest.mark.parametrize("jump_ns", JUMPS)
async def test_a_jump_expires_nothing_and_keeps_every_order(tmp_path: Path, watch: Watch, jump_ns: int) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        waiting = [await h.invoke(pump, "setSpeed", number, correlation=f"a-{number}") for number in range(3)]
        brief = await h.invoke(pump, "brief", None)

        watch.ahead_ns = jump_ns
        waiting += [await h.invoke(pump, "setSpeed", number, correlation=f"b-{number}") for number in range(3)]
        expired = await h.runtime.final(brief.request_id, 2)
        agent = h.agent("agent")
        await h.until(lambda: len(agent.requests) == 6)
        for sent in waiting:
            await h.report("agent", sent.request_id, state="completed")

        assert expired is not None
        assert expired.state is State.FAILED
        assert [request.request_id for request in agent.requests] == [sent.request_id for sent in waiting]
        for sent in waiting:
            row = await h.twin.ledger.get(sent.request_id)
            assert row is not None
            assert row.state is State.COMPLETED
            times = [step.at for step in row.transitions]
            assert times == sorted(times)
            assert [step.seq for step in row.transitions] == sorted(step.seq for step in row.transitions)


@pytest.mark.parametrize("jump_ns", JUMPS)
async def test_a_jump_between_two_runs_keeps_the_queue_in_order(tmp_path: Path, watch: Watch, jump_ns: int) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        numbers = [(await h.invoke(pump, "setSpeed", number, expires_in_s=300 * 86_400)).seq for number in (0, 1)]

    watch.ahead_ns = min(jump_ns, 0)
    async with house(tmp_path) as h:
        agent = h.agent("agent")
        await h.until(lambda: len(agent.requests) == 2)
        numbers += [(await h.invoke(pump, "setSpeed", number)).seq for number in (2, 3)]
        await h.until(lambda: len(agent.requests) == 4)

    assert [request.input for request in agent.requests] == [0, 1, 2, 3]
    assert numbers == sorted(numbers)


async def test_a_value_of_the_past_never_replaces_the_latest_but_is_stored(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        now = wall_clock()
        await h.value(pump, "flow", 1, created=now)
        await h.value(pump, "flow", 2, created=now - 3_600_000_000)
        await h.value(pump, "flow", 3, created=now + 366 * 86_400_000_000)

        value = h.twin.values.get(pump, Kind.PROPERTY, "flow")

        assert value is not None
        assert value.value == 3
        assert value.created <= wall_clock() + 300_000_000


# ---------------------------------------------------------------- an excursion of the clock, at every door


@pytest.mark.parametrize("states_time", [False, True])
@pytest.mark.parametrize("jump_ns", [3_600 * 1_000_000_000, -3_600 * 1_000_000_000, 400 * DAY_NS])
async def test_after_an_excursion_of_the_clock_every_door_shows_what_arrived_last(
    tmp_path: Path, watch: Watch, jump_ns: int, states_time: bool
) -> None:
    works, mia = await _prepared(tmp_path)
    flow = "things/works/pump-1/property/flow"
    async with (
        skep(tmp_path) as running,
        mqtt_client(running.mqtt_address, mia) as observer,
        httpx.AsyncClient(base_url=running.http, headers={"authorization": f"Bearer {mia.token}"}) as reader,
        httpx.AsyncClient(base_url=running.http, headers={"authorization": f"Bearer {works.token}"}) as pump,
    ):
        await observer.subscribe(flow, qos=1)

        stated = 0

        async def publish(value: int) -> None:
            nonlocal stated
            at = running.running.stores.clocks.now() - 1_000
            # Time that goes on from a former run is some moments behind; the agent's own clock does not follow it.
            stated = stated + 1 if 0 <= stated - at < 1_000_000 else at
            created = {"created": rfc3339(stated)} if states_time else {}
            path = "/agent/things/pump-1/properties"
            (await pump.post(path, params=created, json={"flow": value})).raise_for_status()
            with anyio.fail_after(10):
                assert (await anext(observer.messages)).payload == str(value).encode()

        for value, ahead_ns in enumerate((0, jump_ns, 0, 0, 0), 1):
            watch.ahead_ns = ahead_ns
            await publish(value)
        async with mqtt_client(running.mqtt_address, mia) as late:
            await late.subscribe(flow, qos=1)
            with anyio.fail_after(10):
                retained = await anext(late.messages)

        assert retained.payload == b"5"
        assert (await reader.get(f"/things/{THING}/properties/flow")).json() == 5
        assert await _health(running) == (True, jump_ns < 0)
        stored = (await reader.get(f"/things/{THING}/history?name=flow")).json()["items"]
        assert [item["quality"] & Quality.LATE for item in stored] == [0] * 5
    async with (
        skep(tmp_path) as again,
        httpx.AsyncClient(base_url=again.http, headers={"authorization": f"Bearer {mia.token}"}) as reader,
    ):
        assert (await reader.get(f"/things/{THING}/properties/flow")).json() == 5


# ---------------------------------------------------------------- a start with the clock in the past, a whole runtime


async def _prepared(home: Path) -> tuple[Account, Account]:
    """A run with the right time: an agent with a pump, and somebody who may use it."""
    async with skep(home) as right:
        works, mia = await right.add("works", "agent"), await right.add("mia", role="manager")
        async with mqtt_agent(right, works) as agent:
            await agent.describe("pump-1", PUMP)
    return works, mia


async def _health(running: Skep) -> tuple[bool, bool]:
    """Whether it is ready, and whether it trusts its clock, as health and metrics say alike."""
    async with httpx.AsyncClient(base_url=running.http) as client:
        ready = (await client.get("/readyz")).json()
        trusts = "clock" not in ready.get("warnings", {})
        assert read((await client.get("/metrics")).text)["skep_clock_trusted"] == trusts
    return ready["ready"], trusts


@pytest.mark.parametrize("set_right_during_the_run", [True, False])
async def test_what_is_asked_while_the_clock_is_in_the_past_waits_through_the_start_with_the_right_time(
    tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture, set_right_during_the_run: bool
) -> None:
    works, mia = await _prepared(tmp_path)

    watch.ahead_ns = -50 * YEAR_NS
    async with skep(tmp_path) as past:
        assert await _health(past) == (True, False)
        assert "the clock is earlier" in caplog.text
        async with http_consumer(past, mia) as consumer:
            await consumer.invoke(THING, "setSpeed", 5, "r1")
        if set_right_during_the_run:
            watch.ahead_ns = DAY_NS
            assert await _health(past) == (True, True)
    watch.ahead_ns = DAY_NS
    async with skep(tmp_path) as right, mqtt_consumer(right, mia) as consumer, mqtt_agent(right, works) as agent:
        assert await _health(right) == (True, True)
        asked = await agent.asked()
        await agent.report(asked.request_id, state="completed", output={})
        seen = await final(consumer, "r1")

    assert asked.input == 5
    assert [status["state"] for status in seen][-1] == "completed"
    async with skep(tmp_path) as later:
        clocks = later.running.stores.clocks
        # Nothing waits any more: requests are timed by the clock on the wall again.
        assert abs(clocks.steady() - clocks.now()) < 60_000_000


async def test_a_request_that_waits_is_not_kept_for_longer_by_a_restart_either(tmp_path: Path, watch: Watch) -> None:
    _works, mia = await _prepared(tmp_path)
    async with skep(tmp_path) as before, http_consumer(before, mia) as consumer:
        await consumer.invoke(THING, "setSpeed", 5, "r1")

    watch.ahead_ns = DAY_NS
    async with skep(tmp_path) as after:
        row = await after.running.stores.twin.ledger.by_reference("mia", "r1")
        assert row is not None
        ended = await after.running.runtime.final(row.request_id, 5)

    assert ended is not None
    assert (ended.state, ended.reason) == (State.FAILED, Reason.EXPIRED)


async def test_a_session_kept_while_the_clock_is_in_the_past_is_there_when_it_is_right(
    tmp_path: Path, watch: Watch
) -> None:
    works, mia = await _prepared(tmp_path)
    kept: dict[str, Any] = {"identifier": "kept", "clean_session": False}

    watch.ahead_ns = -50 * YEAR_NS
    async with skep(tmp_path) as past:
        async with mqtt_client(past.mqtt_address, mia, **kept) as client:
            await client.subscribe("things/works/pump-1/event/#", qos=1)
        async with mqtt_agent(past, works) as agent:
            await agent.event("pump-1", "alarm", "hot")
    watch.ahead_ns = DAY_NS
    async with skep(tmp_path) as right, mqtt_client(right.mqtt_address, mia, **kept) as client:
        with anyio.fail_after(10):
            message = await anext(client.messages)

    assert str(message.topic) == "things/works/pump-1/event/alarm"


async def test_time_goes_on_from_the_latest_that_was_seen(tmp_path: Path, watch: Watch) -> None:
    await _prepared(tmp_path)
    async with skep(tmp_path) as before:
        administration = before.running.stores.authenticator.administration
        _, brief = await administration.add("brief", AccountType.AGENT, token_validity_s=3_600, by="test")
        _, long = await administration.add("long", AccountType.AGENT, token_validity_s=90_000, by="test")
        assert brief is not None
        assert long is not None
        watch.ahead_ns = 2 * 3_600 * 1_000_000_000
        seen = before.running.stores.clocks.now()
        with pytest.raises(TokenExpired):
            before.running.stores.authenticator.verify(brief)

    for ahead_ns in (-50 * YEAR_NS, -DAY_NS):
        watch.ahead_ns = ahead_ns
        async with skep(tmp_path) as past:
            stores = past.running.stores
            times = [stores.clocks.now() for _ in range(3)]

            assert seen <= times[0] <= times[1] <= times[2] < seen + 60_000_000
            assert stores.authenticator.verify(long).account == "long"
            with pytest.raises(TokenExpired):
                stores.authenticator.verify(brief)
        seen = times[-1]


async def test_a_wrong_time_in_the_future_is_forgotten_with_its_note(tmp_path: Path, watch: Watch) -> None:
    watch.ahead_ns = 10 * YEAR_NS
    async with skep(tmp_path) as ahead:
        assert await _health(ahead) == (True, True)
    watch.ahead_ns = 0
    async with skep(tmp_path) as right:
        assert await _health(right) == (True, False)

    (tmp_path / "clock.json").unlink()
    async with skep(tmp_path) as right:
        assert await _health(right) == (True, True)
