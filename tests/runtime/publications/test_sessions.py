"""Who gets a publication is remembered, and never longer than it is true; statuses come in order, also late."""

from pathlib import Path

import pytest

from runtime.ports import Pattern
from tests.runtime.doubles import RecordingSession, principal
from tests.runtime.harness import House, RoleOnly, house
from things.addresses import Address
from things.decisions import Context, Decision
from things.identity import Principal, Role
from things.messages import Operation

pytestmark = pytest.mark.anyio


class Strict(RoleOnly):
    """The rights after somebody took them from viewers."""

    version = 1

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision:
        if principal.role == Role.VIEWER:
            return Decision(allowed=False, rule="test")
        return super().decide(principal, operation, address, context)


def values(session: RecordingSession) -> list[object]:
    return [publication.value for publication, _ in session.publications]


async def published(h: House, thing_id: str, *flows: int) -> None:
    for flow in flows:
        await h.value(thing_id, "flow", flow)


async def test_a_subscription_counts_from_its_first_publication_to_its_last(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id = await h.publish_td("mill", "pump")
        first, second = h.session(principal("alice")), h.session(principal("bob"))
        h.runtime.sessions.subscribe(first, Pattern("mill"), "a")
        await published(h, thing_id, 1)
        h.runtime.sessions.subscribe(second, Pattern(), "b")
        await published(h, thing_id, 2)
        h.runtime.sessions.unsubscribe(first, Pattern("mill"), "a")
        await published(h, thing_id, 3)
        h.runtime.sessions.closed(second)
        await published(h, thing_id, 4)

        assert values(first) == [1, 2]
        assert values(second) == [2, 3]


def decide_by(h: House, authorizer: RoleOnly) -> None:
    """Another authorizer, in a register that is running."""
    h.runtime.sessions.authorizer = h.runtime.sessions._audiences._authorizer = authorizer


async def test_rights_that_change_count_at_the_next_publication(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        thing_id = await h.publish_td("mill", "pump")
        session = h.session(principal("alice", Role.VIEWER))
        h.runtime.sessions.subscribe(session, Pattern("mill"), "a")
        await published(h, thing_id, 1)
        h.runtime.sessions.renewed(session, principal("alice", Role.NONE))
        await published(h, thing_id, 2)
        h.runtime.sessions.renewed(session, principal("alice", Role.VIEWER))
        await published(h, thing_id, 3)
        decide_by(h, Strict())
        await published(h, thing_id, 4)

        assert values(session) == [1, 3]


async def test_decisions_that_hang_on_a_context_are_made_for_every_publication(tmp_path: Path) -> None:
    asked: list[str] = []

    class Conditional(RoleOnly):
        is_conditional = True

        def decide(self, *given):  # type: ignore[no-untyped-def]
            asked.append(given[0].account)
            return super().decide(*given)

    async with house(tmp_path) as h:
        thing_id = await h.publish_td("mill", "pump")
        session = h.session(principal("alice", Role.VIEWER))
        h.runtime.sessions.subscribe(session, Pattern("mill"), "a")
        decide_by(h, Conditional())
        await published(h, thing_id, 1, 2, 3)

    assert asked.count("alice") == 3


async def test_a_session_that_ends_during_a_delivery_gets_nothing_more(tmp_path: Path) -> None:
    class Ending(RecordingSession):
        def publish(self, *given):  # type: ignore[no-untyped-def]
            super().publish(*given)
            for other in h.runtime.sessions.everyone():
                if other is not self:
                    h.runtime.sessions.closed(other)

    async with house(tmp_path) as h:
        thing_id = await h.publish_td("mill", "pump")
        first = Ending("first", principal("alice"))
        h.runtime.sessions.opened(first)
        second = h.session(principal("bob"))
        for session in (first, second):
            h.runtime.sessions.subscribe(session, Pattern("mill"), "a")
        await published(h, thing_id, 1)

    assert values(first) == [1]
    assert values(second) == []


async def test_every_status_reaches_the_callers_sessions_in_order_and_none_elsewhere(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        agent = h.agent("agent")
        alice, bob = h.session(principal("alice")), h.session(principal("bob"))
        for session in (alice, bob):
            h.runtime.sessions.take_reports(session)
        sent = await h.invoke(pump, "setSpeed", 1)
        await h.until(lambda: agent.requests)
        for progress in (10, 50, 90):
            await h.report("agent", sent.request_id, state="running", progress=progress)
        await h.report("agent", sent.request_id, state="completed")

        await h.until(lambda: alice.reports and alice.reports[-1].is_final)
        assert [s.state for s in alice.reports] == [
            "pending",
            "delivered",
            "running",
            "running",
            "running",
            "completed",
        ]
        assert alice.reports == await h.twin.ledger.inbox("alice", after=0, limit=10)
        assert bob.reports == []


async def test_missed_statuses_are_replayed_after_the_last_one_seen_and_none_twice(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        h.agent("agent")
        sent = [await h.invoke(pump, "setSpeed", 1) for _ in range(300)]
        for status in sent[:150]:
            await h.report("agent", status.request_id, state="completed")
        known = sent[0].seq
        alice = h.session(principal("alice"))

        h.runtime.sessions.take_reports(alice, after=known)
        for status in sent[150:]:
            await h.report("agent", status.request_id, state="completed")

        await h.until(lambda: sum(s.is_final for s in alice.reports) == 300)
        numbers = [s.seq for s in alice.reports]
        assert numbers == sorted(set(numbers))
        assert numbers[0] > known


async def test_a_slow_caller_catches_up_from_the_ledger(tmp_path: Path) -> None:
    async with house(tmp_path) as h:
        pump = await h.publish_td("agent", "pump")
        alice = h.session(principal("alice"), room=2)
        h.runtime.sessions.take_reports(alice)
        sent = [await h.invoke(pump, "setSpeed", 1) for _ in range(20)]
        assert len(alice.reports) == 2

        alice.room = None
        h.runtime.sessions.drained(alice)

        await h.until(lambda: len(alice.reports) == 20)
        assert [s.request_id for s in alice.reports] == [s.request_id for s in sent]
