"""A gateway's clock jumps by years: nothing expires for it, no time runs backwards in a request, order stays."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import runtime.clocks
from runtime.clocks import wall_clock
from tests.runtime.harness import house
from things.addresses import Kind
from things.delivery import State

pytestmark = pytest.mark.anyio

YEAR_NS = 366 * 86_400 * 1_000_000_000
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
