"""Random lives of requests against a small model: every request ends in exactly one state, reaches its agent before it
expires if the agent was there, and keeps its place among the requests of its Thing; through lost sessions, repeated,
late and foreign answers, time that passes, restarts and crashes.

A crash is a copy of the files as they are at some moment, on which the next runtime starts: what kill -9 leaves.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from runtime.clocks import wall_clock
from tests.runtime.doubles import RecordingSession, principal
from tests.runtime.harness import House, house
from things.delivery import FINAL, DeliveryStatus, Reason, State
from things.errors import Conflict, IllegalStatus, SkepError, UnknownRequest

SHORT = 8
LONG = int(os.environ.get("SKEP_TRIAL_LIVES", "500"))
STEPS = 30
SETTLE_S = 5.0

ORDERS = {"burst": "burst", "acked": "until-ack", "answered": "until-response"}
"""Things and when their next request may go out."""
WHICH = st.integers(0, 1_000)
"""Chooses among what there is then: what is drawn must not depend on it."""
EXPIRES_S, DEADLINE_S = 30.0, 20.0
TDS: dict[str, dict[str, Any]] = {
    thing: {
        "@context": "https://www.w3.org/2022/wot/td/v1.1",
        "title": thing,
        "skep:order": order,
        "actions": {"go": {"input": {"type": "integer"}, "skep:expires": EXPIRES_S, "skep:deadline": DEADLINE_S}},
        "properties": {"level": {"type": "integer", "skep:expires": EXPIRES_S, "skep:deadline": DEADLINE_S}},
    }
    for thing, order in ORDERS.items()
}


@dataclass(slots=True)
class Request:
    """What the model knows of one request."""

    reference: str
    thing: str
    number: int
    expires: int
    is_write: bool = False
    request_id: str = ""
    state: State = State.PENDING
    deadline: int | None = None
    """Set by the first delivery; runs on while the agent is away."""
    reason: Reason | None = None
    was_handed: bool = False
    """The agent got it; or a runtime that crashed meant to hand it over, and nobody knows whether it did."""
    has_seen_crash: bool = False

    @property
    def is_queued(self) -> bool:
        """It waits, and no agent can have had it."""
        return self.state is State.PENDING and not self.was_handed

    def taken(self, state: State, now: int) -> None:
        """Take a step as the table of states says."""
        if state is State.DELIVERED:
            self.deadline = self.deadline or now + int(DEADLINE_S * 1e6)
        elif state not in FINAL and state is not State.PENDING:
            self.deadline = now + int(DEADLINE_S * 1e6)
        self.state = state

    def is_due(self, now: int) -> bool:
        return self.state not in FINAL and (self.expires if self.deadline is None else self.deadline) <= now

    def run_out(self) -> None:
        self.reason = Reason.TIMEOUT if self.was_handed else Reason.EXPIRED
        self.state = State.FAILED


@dataclass(slots=True)
class Seen:
    """What agent and caller were given, over all runs."""

    received: list[str] = field(default_factory=list)
    """Request ids as the agent first got them."""
    too_late: list[str] = field(default_factory=list)
    """Those that were final when the agent got them."""
    reports: list[DeliveryStatus] = field(default_factory=list)


class LivesOfRequests(RuleBasedStateMachine):
    """The rules are what agents, callers, time and misfortune do."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._folder = Path(tempfile.mkdtemp(prefix="skep-lives-"))
        self._starts = 0
        self._now = wall_clock()
        self._requests: dict[str, Request] = {}
        self._seen = Seen()
        self._agent: RecordingSession | None = None
        self._acknowledged: set[str] = set()
        self._spoken: set[str] = set()
        """What the agent of this session has said a word about."""
        self._host: asyncio.Task[None] | None = None
        self._run(self._start(self._folder / "0"))
        for thing, td in TDS.items():
            self._run(self._house.publish_td("works", thing, td))

    # ------------------------------------------------------------ agents

    @rule()
    def agent_connects(self) -> None:
        if self._agent is None:
            self._run(self._connect())

    @rule()
    def agent_is_lost(self) -> None:
        if self._agent is not None:
            self._house.runtime.sessions.closed(self._agent)
            self._forget_agent()

    @rule(which=WHICH)
    def agent_acknowledges(self, which: int) -> None:
        request = self._pick(which, self._unacknowledged)
        if request is None:
            return
        self._acknowledged.add(request.request_id)
        self._session.acknowledge[request.request_id]()
        if request.state is State.PENDING:
            request.taken(State.DELIVERED, self._now)

    @rule(
        which=WHICH,
        state=st.sampled_from([State.RUNNING, State.WAITING, State.APPLIED, State.COMPLETED, State.FAILED]),
    )
    def agent_reports(self, which: int, state: State) -> None:
        """For any request it was ever given, so also late, repeated, and without a session."""
        request = self._pick(which, self._given)
        if request is not None:
            self._report(request, state)

    @rule(which=WHICH)
    def agent_answers_twice(self, which: int) -> None:
        request = self._pick(which, self._given)
        if request is not None:
            self._report(request, State.COMPLETED)
            self._report(request, State.COMPLETED)

    @rule(which=WHICH)
    def stranger_reports(self, which: int) -> None:
        request = self._pick(which, list(self._requests.values()))
        if request is None:
            return
        assert self._refused(self._house.report("stranger", request.request_id, state="completed")) is UnknownRequest

    # ------------------------------------------------------------ callers

    @rule(thing=st.sampled_from(sorted(ORDERS)), count=st.integers(1, 3))
    def caller_invokes(self, thing: str, count: int) -> None:
        for _ in range(count):
            self._run(self._ask(self._new(thing)))

    @rule(thing=st.sampled_from(sorted(ORDERS)), count=st.integers(1, 2))
    def caller_writes(self, thing: str, count: int) -> None:
        """A newer write takes the place of those that wait for an agent and are not on their way to it."""
        for _ in range(count):
            self._run(self._settled())
            request = self._new(thing, is_write=True)
            older = [
                one
                for one in self._requests.values()
                if one is not request and one.thing == thing and one.is_write and one.is_queued
            ]
            self._run(self._ask(request))
            if not self._is_offered(request):
                for one in older:
                    if not self._is_offered(one):
                        one.state, one.reason = State.CANCELLED, Reason.SUPERSEDED

    @rule(which=WHICH)
    def caller_repeats(self, which: int) -> None:
        request = self._pick(which, list(self._requests.values()))
        if request is not None:
            self._run(self._ask(request))

    @rule(which=WHICH)
    def caller_cancels(self, which: int) -> None:
        request = self._pick(which, list(self._requests.values()))
        if request is None:
            return
        refused = self._refused(self._house.cancel(request.request_id))
        if request.state in FINAL:
            assert refused is Conflict
            return
        assert refused is None
        if request.state is State.PENDING:
            request.state = State.CANCELLED

    # ------------------------------------------------------------ time and misfortune

    @rule(seconds=st.sampled_from([1, 5, 12, 25]))
    def time_passes(self, seconds: int) -> None:
        self._now += seconds * 1_000_000
        self._house.runtime._due_changed(0)
        for request in self._requests.values():
            if request.is_due(self._now):
                request.run_out()

    @rule()
    def runtime_restarts(self) -> None:
        home = self._house_home
        self._run(self._stop())
        self._run(self._start(home))
        self._all_sessions_lost()

    @rule(things=st.lists(st.sampled_from(sorted(ORDERS)), max_size=5), turns=st.integers(0, 60))
    def runtime_crashes(self, things: list[str], turns: int) -> None:
        """While requests are being accepted; callers then repeat what they have no answer to."""
        self._run(self._crash([self._new(thing) for thing in things], turns))
        self._all_sessions_lost()

    # ------------------------------------------------------------ what must always hold

    @invariant()
    def ledger_is_the_model(self) -> None:
        self._run(self._settled())
        self._in_order_within_each_thing()
        assert self._seen.too_late == []

    def teardown(self) -> None:
        try:
            self._run(self._all_end())
        finally:
            self._run(self._stop())
            self._runner.close()
            shutil.rmtree(self._folder)

    # ------------------------------------------------------------ private

    @property
    def _session(self) -> RecordingSession:
        assert self._agent is not None
        return self._agent

    @property
    def _given(self) -> list[Request]:
        """What the agent ever got."""
        return [one for one in self._requests.values() if one.request_id in self._seen.received]

    @property
    def _unacknowledged(self) -> list[Request]:
        if self._agent is None:
            return []
        offered = set(self._agent.acknowledge) - self._acknowledged
        return [one for one in self._requests.values() if one.request_id in offered]

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    @staticmethod
    def _pick(which: int, among: list[Request]) -> Request | None:
        return among[which % len(among)] if among else None

    def _new(self, thing: str, *, is_write: bool = False) -> Request:
        number = len(self._requests)
        expires = self._now + int(EXPIRES_S * 1e6)
        request = Request(f"r-{number}", thing, number, expires=expires, is_write=is_write)
        self._requests[request.reference] = request
        return request

    async def _ask(self, request: Request) -> None:
        thing_id, reference = f"dtw:works:{request.thing}", request.reference
        if request.is_write:
            status = await self._house.write(thing_id, "level", request.number, correlation=reference)
        else:
            status = await self._house.invoke(thing_id, "go", request.number, correlation=reference)
        assert request.request_id in ("", status.request_id)
        request.request_id = status.request_id

    def _is_offered(self, request: Request) -> bool:
        return self._agent is not None and request.request_id in self._agent.acknowledge

    def _report(self, request: Request, state: State) -> None:
        refused = self._refused(self._house.report("works", request.request_id, state=state))
        if request.state in FINAL:
            assert refused is IllegalStatus
            return
        assert refused is None
        if self._agent is not None:
            self._spoken.add(request.request_id)
        request.was_handed = True
        if request.state is State.PENDING:
            request.taken(State.DELIVERED, self._now)
        request.taken(state, self._now)

    def _refused(self, work: Coroutine[Any, Any, Any]) -> type[SkepError] | None:
        try:
            self._run(work)
        except SkepError as error:
            return type(error)
        return None

    def _all_sessions_lost(self) -> None:
        """A start takes back all that agents have not ended, also what one spoke of while it had no session."""
        self._forget_agent()
        for request in self._requests.values():
            if request.state not in FINAL:
                request.state = State.PENDING

    def _forget_agent(self) -> None:
        """What the agent of this session had and did not answer goes back."""
        if self._agent is not None:
            for request in self._requests.values():
                known = request.request_id in self._spoken or self._is_offered(request)
                if request.state not in FINAL and known:
                    request.state = State.PENDING
        self._agent = None
        self._acknowledged.clear()
        self._spoken.clear()

    async def _connect(self) -> None:
        session = RecordingSession(
            f"works-{self._starts}", self._works, sessions=self._house.runtime.sessions, on_request=self._requested
        )
        self._house.runtime.sessions.opened(session)
        self._house.runtime.sessions.take_requests(session)
        self._agent = session

    _works = principal("works", "agent")

    def _requested(self, request: Any) -> None:
        if request.operation == "cancel":
            return
        if request.request_id not in self._seen.received:
            self._seen.received.append(request.request_id)
        model = next((one for one in self._requests.values() if one.request_id == request.request_id), None)
        if model is not None and model.state in FINAL:
            self._seen.too_late.append(request.request_id)

    async def _settled(self) -> None:
        """Until the ledger says what the model says, and the agent has been offered what it should have."""
        async with asyncio.timeout(SETTLE_S):
            while (differences := await self._differences()) and not await self._patience():
                pass
        assert differences == []

    async def _patience(self) -> bool:
        await asyncio.sleep(0.001)
        return False

    async def _differences(self) -> list[str]:
        found = []
        for request in self._requests.values():
            row = await self._house.twin.ledger.get(request.request_id)
            assert row is not None, f"{request} is lost"
            if request.request_id in self._seen.received or (row.attempts and request.has_seen_crash):
                request.was_handed = True
            if request.was_handed and not row.attempts:
                found.append(f"{request.reference} was handed over and is not counted")
            if row.attempts and not request.was_handed and self._agent is None:
                found.append(f"{request.reference} was never handed over and is counted")
            finals = [step.state for step in row.transitions if step.state in FINAL]
            assert len(finals) == (1 if row.state in FINAL else 0), row.transitions
            if (row.state, row.reason if row.state in FINAL else None) != (request.state, self._reason(request)):
                found.append(f"{request.reference} is {row.state} {row.reason}, not {request.state} {request.reason}")
        return found + [f"{one.reference} was not offered" for one in self._owed()]

    @staticmethod
    def _reason(request: Request) -> Reason | None:
        # An agent that reports failed without a reason is an agent that erred.
        return request.reason or (Reason.AGENT_ERROR if request.state is State.FAILED else None)

    def _owed(self) -> Iterable[Request]:
        """What a connected agent should have been offered by now."""
        if self._agent is None:
            return []
        offered, owed = self._agent.acknowledge, []
        for thing, order in ORDERS.items():
            mine = [one for one in self._requests.values() if one.thing == thing]
            pending = [one for one in mine if one.state is State.PENDING]
            if order == "until-response" and any(
                one.request_id in offered and one.state not in FINAL for one in mine if one not in pending[:1]
            ):
                continue
            owed += [one for one in (pending if order == "burst" else pending[:1]) if one.request_id not in offered]
        return owed

    def _in_order_within_each_thing(self) -> None:
        by_id = {one.request_id: one for one in self._requests.values()}
        for thing in ORDERS:
            numbers = [by_id[one].number for one in self._seen.received if by_id[one].thing == thing]
            assert numbers == sorted(numbers), f"{thing} got {numbers}"
        if self._agent is None:
            return
        for thing, order in ORDERS.items():
            offered = [by_id[one] for one in self._agent.acknowledge if by_id[one].thing == thing]
            if order == "until-ack":
                held = [one for one in offered if one.state is State.PENDING]
                assert len(held) <= 1, f"{held} at once"
            elif order == "until-response":
                assert len([one for one in offered if one.state not in FINAL]) <= 1, f"{offered} at once"

    # ------------------------------------------------------------ the runtime

    async def _start(self, home: Path) -> None:
        """Start a runtime, and the caller's session in it, which goes on where it was."""
        self._starts += 1
        self._house_home = home
        home.mkdir(exist_ok=True)  # noqa: ASYNC240 - nothing else runs
        started: asyncio.Future[House] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        self._host = asyncio.create_task(self._hosted(home, started, self._end))
        self._host.add_done_callback(lambda host: started.done() or started.cancel())
        self._house = await started
        caller = RecordingSession(
            f"alice-{self._starts}",
            principal("alice"),
            sessions=self._house.runtime.sessions,
            on_report=self._seen.reports.append,
        )
        self._house.runtime.sessions.opened(caller)
        after = self._seen.reports[-1].seq if self._seen.reports else 0
        self._house.runtime.sessions.take_reports(caller, after)

    async def _hosted(self, home: Path, started: "asyncio.Future[House]", end: asyncio.Event) -> None:
        async with house(home, steady=lambda: self._now) as opened:
            started.set_result(opened)
            await end.wait()

    async def _stop(self) -> None:
        self._end.set()
        assert self._host is not None
        await self._host

    async def _crash(self, accepted: list[Request], turns: int) -> None:
        invoking = [asyncio.create_task(self._ask(one)) for one in accepted]
        for _ in range(turns):
            await asyncio.sleep(0)
        answered = [one for one, task in zip(accepted, invoking, strict=True) if task.done()]
        after = self._folder / str(self._starts)
        shutil.copytree(self._house_home, after, ignore=shutil.ignore_patterns("*-shm", "reserve"))
        for task in invoking:
            task.cancel()
        reported, received = len(self._seen.reports), len(self._seen.received)
        for task in invoking:
            with suppress(asyncio.CancelledError, SkepError):
                await task
        await self._stop()
        # What the dying one still said or handed over is what nobody heard.
        del self._seen.reports[reported:]
        del self._seen.received[received:]
        shutil.rmtree(self._house_home)
        for one in accepted:
            one.request_id = one.request_id if one in answered else ""
        for one in self._requests.values():
            one.has_seen_crash = True
            # What the dying one still handed over, nobody has had.
            one.was_handed = one.was_handed and one.request_id in self._seen.received
        await self._start(after)
        for one in answered:
            assert await self._house.twin.ledger.get(one.request_id) is not None, f"{one} was accepted and is lost"
        for one in accepted:
            await self._ask(one)

    async def _all_end(self) -> None:
        """After the longest clock has run out, nothing is left over; and the caller has been told all of it once."""
        self._now += int((EXPIRES_S + DEADLINE_S) * 1e6)
        self._house.runtime._due_changed(0)
        for request in self._requests.values():
            if request.is_due(self._now):
                request.run_out()
        await self._settled()
        assert all(one.state in FINAL for one in self._requests.values())
        steps = []
        for request in self._requests.values():
            row = await self._house.twin.ledger.get(request.request_id)
            assert row is not None
            steps += [(step.seq, row.request_id, step.state) for step in row.transitions]
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while len(self._told()) < len(steps):
                    await self._patience()
        assert self._told() == sorted(steps)

    def _told(self) -> list[tuple[int, str, State]]:
        return [(one.seq, one.request_id, one.state) for one in self._seen.reports]


def lives(examples: int, *, alike: bool) -> None:
    """Live so many lives, `alike` every time or at random."""
    run_state_machine_as_test(
        LivesOfRequests,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=alike,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            database=None,
        ),
    )


def test_requests_end_once_and_in_order_whatever_happens() -> None:
    lives(SHORT, alike=True)


@pytest.mark.trial
def test_requests_end_once_and_in_order_in_many_random_lives() -> None:
    lives(LONG, alike=False)
