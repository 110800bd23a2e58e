"""Requests whose time is up: ended to the moment, together, and at no cost for those that end before."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from runtime.clocks import wall_clock
from tests.runtime.harness import PUMP, house
from things.delivery import DeliveryStatus, Reason, State

pytestmark = pytest.mark.anyio


def _all_of(count: int, advance: Callable[..., Awaitable[Any]]) -> "Callable[..., asyncio.Future[Any]]":
    """Lets none through before so many have come."""
    come, all_there = 0, anyio.Event()

    async def together(*given: Any, **more: Any) -> Any:
        nonlocal come
        come += 1
        if come == count:
            all_there.set()
        await all_there.wait()
        return await advance(*given, **more)

    return lambda *given, **more: asyncio.ensure_future(together(*given, **more))


async def test_request_expires_on_time_without_anybody_connecting(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        sent = await h.invoke(pump, "brief", None)

        final = await h.runtime.final(sent.request_id, 1.3)

        assert final is not None
        assert (final.state, final.reason) == (State.FAILED, Reason.EXPIRED)
        agent = h.agent("agent")
        await anyio.sleep(0.05)
        assert agent.requests == []


async def test_agent_that_never_answers_ends_as_timeout(tmp_path: Path) -> None:
    td = PUMP | {"actions": {"slow": {"skep:deadline": 0.3}}}
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump", td)
        agent = h.agent("agent")
        sent = await h.invoke(pump, "slow", None)
        await h.until(lambda: agent.requests)
        agent.acknowledge[sent.request_id]()

        final = await h.runtime.final(sent.request_id, 2)

        assert final is not None
        assert (final.state, final.reason) == (State.FAILED, Reason.TIMEOUT)


async def test_requests_that_expire_at_once_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = wall_clock()
    async with house(tmp_path, steady=lambda: now) as h:
        pump = await h.publish_td("agent", "pump")
        sent = [await h.invoke(pump, "brief", None) for _ in range(5)]
        together = _all_of(5, h.twin.ledger.advance)
        monkeypatch.setattr(h.twin.ledger, "advance", together)

        now += 1_000_000
        h.runtime._due_changed(0)

        for one in sent:
            final = await h.runtime.final(one.request_id, 5)
            assert final is not None
            assert final.reason is Reason.EXPIRED


async def test_requests_that_come_and_end_in_time_cost_no_look_at_the_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        due = h.twin.ledger.due

        async def noted(now: int, *, limit: int) -> Any:
            looks.append(now)
            return await due(now, limit=limit)

        monkeypatch.setattr(h.twin.ledger, "due", noted)
        for number in range(10):
            sent = await h.invoke(pump, "setSpeed", number)
            await h.until(lambda: len(agent.requests) > number)  # noqa: B023 - awaited here
            for state in ("running", "completed"):
                await h.report("agent", sent.request_id, state=state)

    assert not looks


async def test_a_request_that_comes_while_the_clocks_are_read_expires_on_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        next_due = h.twin.ledger.next_due
        sent: list[DeliveryStatus] = []

        async def overtaken() -> int | None:
            first = await next_due()
            if not sent:
                sent.append(await h.invoke(pump, "brief", None))
            return first

        monkeypatch.setattr(h.twin.ledger, "next_due", overtaken)
        h.runtime._due_changed(0)
        await h.until(lambda: sent)

        final = await h.runtime.final(sent[0].request_id, 5)
        assert final is not None
        assert final.reason is Reason.EXPIRED
