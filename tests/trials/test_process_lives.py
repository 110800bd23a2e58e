"""Random lives of requests in a real runtime process that is killed and started again, against a small model.

Actions and property writes, agents that come, acknowledge, answer, repeat themselves and vanish before or after an
answer, callers that cancel and repeat, clocks that run out, SIGKILL while all of this goes on. The model says in which
state a request is; where nobody can know (a word said just before the connection was lost), it says what may be.
Time is the process's own: what its clocks did is judged by the times in the ledger.
"""

import asyncio
import json
import math
import os
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyFailure, FlakyStrategyDefinition
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from runtime.clocks import wall_clock
from tests.trials.manual_agent import ManualAgent
from tests.trials.process import DOWN, furnished, runtime_process
from tests.trials.world import ACTIONS, BRIEF_S, KINDS, ORDERS, TDS, Request, World, due_of
from things.delivery import FINAL, Reason, State, is_legal
from things.times import parse_time

SHORT = 2
LONG = int(os.environ.get("SKEP_TRIAL_PROCESS_LIVES", "20"))
STEPS = 60
MAX_ENDS = 1
"""How often the runtime is ended in one life, apart from the kill at the end of each; a start takes seconds."""
SETTLE_S = 10.0
LATE_US = 1_000_000
WHICH = st.integers(0, 1_000)
"""Chooses among what there is then: what is drawn must not depend on times."""


class LivesInAProcess(RuleBasedStateMachine):
    """The rules are what agents, callers, time and misfortune do."""

    def __init__(self, runner: asyncio.Runner, world: World) -> None:
        super().__init__()
        self._runner, self._world = runner, world
        world.lives += 1
        self._requests: dict[str, Request] = {}
        self._agent: ManualAgent | None = None
        self._spoken: set[str] = set()
        """What the agent of this session has said a word about."""
        self._received: list[str] = []
        """Request ids as agents first got them."""
        self._ends = 0

    # ------------------------------------------------------------ agents

    @precondition(lambda self: self._agent is None)
    @rule()
    def agent_connects(self) -> None:
        self._run(self._connect())

    @precondition(lambda self: self._agent is not None)
    @rule()
    def agent_is_lost(self) -> None:
        self._run(self._lose_agent())

    @precondition(lambda self: self._agent is not None and self._requests)
    @rule(which=WHICH)
    def agent_acknowledges(self, which: int) -> None:
        request = self._pick(which, self._unacknowledged)
        if request is not None and self._agent is not None:
            self._agent.acknowledge(request.request_id)
            if request.state is State.PENDING:
                request.state = State.DELIVERED

    @precondition(lambda self: self._agent is not None and self._requests)
    @rule(
        which=WHICH,
        state=st.sampled_from([State.RUNNING, State.WAITING, State.APPLIED, State.COMPLETED, State.FAILED]),
        times=st.integers(1, 2),
    )
    def agent_reports(self, which: int, state: State, times: int) -> None:
        """For any request it was ever given: also late, and twice."""
        request = self._pick(which, self._given)
        for _ in range(times):
            if request is not None and self._agent is not None:
                self._run(self._report(request, state))

    @precondition(lambda self: self._agent is not None and self._requests)
    @rule(which=WHICH, state=st.sampled_from([State.RUNNING, State.COMPLETED, State.FAILED]))
    def agent_is_lost_after_a_word(self, which: int, state: State) -> None:
        request = self._pick(which, self._given)
        if request is not None and self._agent is not None:
            self._unheard(request, state)
            self._run(self._lose_agent((request.request_id, state)))

    @precondition(lambda self: self._requests)
    @rule(which=WHICH)
    def stranger_reports(self, which: int) -> None:
        request = self._pick(which, list(self._requests.values()))
        if request is not None:
            reply = self._run(self._send("POST", f"/agent/status/{request.request_id}", {"state": "completed"}, "eve"))
            assert (reply.status_code, reply.json()["code"]) == (404, "unknown-request")

    # ------------------------------------------------------------ callers

    @rule(thing=st.sampled_from(sorted(ORDERS)), kind=st.sampled_from(ACTIONS), count=st.integers(1, 3))
    def caller_invokes(self, thing: str, kind: str, count: int) -> None:
        for _ in range(count):
            self._run(self._ask(self._new(thing, kind)))

    @rule(thing=st.sampled_from(sorted(ORDERS)))
    def caller_writes(self, thing: str) -> None:
        """A newer write takes the place of those that wait for an agent and are not on their way to it."""
        goes_at_once = self._goes_at_once(thing)
        older = self._replaceable(thing)
        self._run(self._ask(self._new(thing, "level")))
        if not goes_at_once:
            for one in older:
                one.state, one.reason = State.CANCELLED, Reason.SUPERSEDED

    @precondition(lambda self: self._requests)
    @rule(which=WHICH)
    def caller_repeats(self, which: int) -> None:
        request = self._pick(which, list(self._requests.values()))
        if request is not None:
            self._run(self._ask(request))

    @precondition(lambda self: self._requests)
    @rule(which=WHICH)
    def caller_cancels(self, which: int) -> None:
        request = self._pick(which, list(self._requests.values()))
        if request is None:
            return
        reply = self._run(self._send("DELETE", f"/requests/{request.request_id}"))
        if reply.status_code == 409:
            self._run(self._settled())  # its clock may have been faster
            assert request.is_over, reply.text
            return
        assert reply.status_code == 204, reply.text
        assert not request.is_over
        if request.state is State.PENDING:
            request.state = State.CANCELLED

    # ------------------------------------------------------------ time and misfortune

    @precondition(lambda self: self._requests)
    @rule()
    def clocks_run_out(self) -> None:
        """Until every request with a brief clock that runs is over."""
        self._run(self._settled(until_due=True))

    @precondition(lambda self: self._requests and self._ends < MAX_ENDS)
    @rule(
        thing=st.sampled_from(sorted(ORDERS)),
        kinds=st.lists(st.sampled_from(sorted(KINDS)), max_size=4),
        which=WHICH,
        milliseconds=st.integers(0, 30),
        gently=st.booleans(),
    )
    def runtime_ends(self, thing: str, kinds: list[str], which: int, milliseconds: int, gently: bool) -> None:
        """While requests are being accepted and an answer is on its way; callers then repeat what they ask."""
        self._ends += 1
        asked = [self._new(thing, kind) for kind in kinds]
        self._run(self._end_runtime(asked, self._pick(which, self._given), milliseconds / 1e3, gently))

    # ------------------------------------------------------------ what must always hold

    @invariant()
    def ledger_is_the_model(self) -> None:
        self._run(self._settled())
        self._in_order_within_each_thing()

    def teardown(self) -> None:
        self._run(self._all_end())

    # ------------------------------------------------------------ what the model says

    @property
    def _given(self) -> list[Request]:
        """What agents ever got."""
        return [one for one in self._requests.values() if one.request_id in self._received]

    @property
    def _unacknowledged(self) -> list[Request]:
        handed = self._agent.handed if self._agent is not None else {}
        return [
            one
            for one in self._requests.values()
            if one.request_id in handed and not handed[one.request_id].is_acknowledged
        ]

    def _is_handed(self, request: Request) -> bool:
        return self._agent is not None and request.request_id in self._agent.handed

    def _of(self, thing: str) -> list[Request]:
        """In the order in which they were accepted; what has just been asked comes last."""
        mine = [one for one in self._requests.values() if one.thing == thing]
        return sorted(mine, key=lambda one: one.opened or math.inf)

    def _goes_at_once(self, thing: str) -> bool:
        if self._agent is None:
            return False
        order, mine = ORDERS[thing], self._of(thing)
        if order == "burst":
            return True
        if order == "until-ack":
            return not any(one.state is State.PENDING for one in mine)
        return not any(self._is_handed(one) and not one.is_over for one in mine)

    def _replaceable(self, thing: str) -> list[Request]:
        return [
            one
            for one in self._of(thing)
            if one.kind == "level" and one.state is State.PENDING and not one.attempts and not self._is_handed(one)
        ]

    def _owed(self) -> list[Request]:
        """What a connected agent should have been handed by now."""
        if self._agent is None:
            return []
        owed: list[Request] = []
        for thing, order in ORDERS.items():
            mine = self._of(thing)
            pending = [one for one in mine if one.state is State.PENDING]
            if order == "until-response" and any(
                self._is_handed(one) and not one.is_over for one in mine if one not in pending[:1]
            ):
                continue
            owed += [one for one in (pending if order == "burst" else pending[:1]) if not self._is_handed(one)]
        return owed

    def _unheard(self, request: Request, state: State) -> None:
        """A word of which nobody knows whether the runtime heard it; what is not final it forgets with the session."""
        if not request.is_over and state in FINAL:
            request.may_be.add(state)

    def _agent_is_gone(self, *, everything: bool) -> None:
        """What it had and did not answer goes back; after a start, whoever had it."""
        for request in self._requests.values():
            known = everything or self._is_handed(request) or request.request_id in self._spoken
            if known and not request.is_over:
                request.state = State.PENDING
        self._agent = None
        self._spoken.clear()

    def _in_order_within_each_thing(self) -> None:
        by_id = {one.request_id: one for one in self._requests.values()}
        for thing, order in ORDERS.items():
            numbers = [by_id[one].opened for one in self._received if by_id[one].thing == thing]
            assert numbers == sorted(numbers), f"{thing} got {numbers}"
            handed = [one for one in self._of(thing) if self._is_handed(one)]
            if order == "until-ack":
                assert len([one for one in handed if one.state is State.PENDING]) <= 1
            elif order == "until-response":
                assert len([one for one in handed if not one.is_over]) <= 1

    # ------------------------------------------------------------ what is done

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._runner.run(work)
        except Exception as error:
            self._world.failures.append(error)
            raise

    @staticmethod
    def _pick(which: int, among: list[Request]) -> Request | None:
        return among[which % len(among)] if among else None

    def _new(self, thing: str, kind: str) -> Request:
        number = len(self._requests)
        request = Request(f"life-{self._world.lives}-{number}", thing, kind, number)
        self._requests[request.reference] = request
        self._world.requests += 1
        return request

    async def _send(self, method: str, path: str, body: Any = None, who: str = "ann", **headers: str) -> Any:
        given = {"authorization": f"Bearer {self._world.accounts[who].token}", **headers}
        content = None if body is None else json.dumps(body)
        if content is not None:
            given["content-type"] = "application/json"
        url = f"{self._world.process.http}{path}"
        return await self._world.client.request(method, url, content=content, headers=given)

    async def _ask(self, request: Request) -> None:
        place, method = ("properties", "PUT") if request.kind == "level" else ("actions", "POST")
        path = f"/things/dtw:works:{request.thing}/{place}/{request.kind}"
        more = {"prefer": "wait=0"} if method == "PUT" else {}
        reply = await self._send(method, path, request.number, **{"idempotency-key": request.reference, **more})
        document = reply.json() if reply.content else {}
        request_id = document.get("requestID") or reply.headers.get("location", "").rpartition("/")[2]
        assert request_id, f"{reply.status_code} {reply.text}"
        assert request.request_id in ("", request_id)
        request.request_id = request_id

    async def _connect(self) -> None:
        self._agent = await ManualAgent.arrived(self._world.process.mqtt_address, self._world.accounts["works"])

    async def _lose_agent(self, *last_words: tuple[str, str]) -> None:
        assert self._agent is not None
        self._note_received(self._agent)
        await self._agent.hang_up(*last_words)
        self._agent_is_gone(everything=False)

    async def _report(self, request: Request, state: State) -> None:
        assert self._agent is not None
        if await self._agent.say(request.request_id, state):
            assert not request.is_over, f"{request} took {state}"
            request.state = state
            request.reason = Reason.AGENT_ERROR if state is State.FAILED else None
            self._spoken.add(request.request_id)
        else:
            await self._settled()  # its clock may have been faster
            assert request.is_over, f"{request} did not take {state}"

    async def _end_runtime(self, asked: list[Request], answered: Request | None, after_s: float, gently: bool) -> None:
        older = {
            one.reference: one
            for request in asked
            if request.kind == "level"
            for one in self._replaceable(request.thing)
        }
        asking = [asyncio.create_task(self._ask(one)) for one in asked]
        agent = self._agent
        if agent is not None and answered is not None:
            self._unheard(answered, State.COMPLETED)
            asking.append(asyncio.create_task(_said(agent, answered.request_id)))
        await asyncio.sleep(after_s)
        await (self._world.process.terminate() if gently else self._world.process.kill())
        for task in asking:
            with suppress(*DOWN, AssertionError):  # also a refusal of what is going down
                await task
        if agent is not None:
            await agent.hang_up()
        self._note_received(agent)
        self._agent_is_gone(everything=True)
        accepted = [one for one in asked if one.request_id]
        await self._world.process.start()
        for one in accepted:
            assert (await self._row(one)) is not None, f"{one} was accepted and is lost"
        for one in asked:
            await self._ask(one)
        # Whether a write that was on its way took the place of another, nobody knows.
        for one in [*older.values(), *(one for one in asked if one.kind == "level")]:
            one.may_be.add(State.CANCELLED)

    def _note_received(self, agent: ManualAgent | None) -> None:
        known = {one.request_id for one in self._requests.values()}
        for request_id in agent.handed if agent is not None else ():
            if request_id in known and request_id not in self._received:
                self._received.append(request_id)

    # ------------------------------------------------------------ what the ledger says

    async def _row(self, request: Request) -> dict[str, Any]:
        reply = await self._send("GET", f"/requests/{request.request_id}")
        assert reply.status_code == 200, f"{request} is lost: {reply.text}"
        found: dict[str, Any] = reply.json()
        return found

    async def _open_rows(self) -> dict[str, dict[str, Any]]:
        states = "&".join(f"state={state}" for state in State if state not in FINAL)
        reply = await self._send("GET", f"/requests?{states}&limit=200")
        return {row["requestID"]: row for row in reply.json()["items"]}

    async def _settled(self, *, until_due: bool = False) -> None:
        """Until the ledger says what the model says, and the agent was handed what it should have been."""
        differences: list[str] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while differences := await self._differences(until_due=until_due):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.005)
        assert differences == [], f"{differences}\n{self._world.process.said()}"

    async def _differences(self, *, until_due: bool) -> list[str]:
        found = []
        rows = await self._open_rows()
        for request in [one for one in self._requests.values() if not one.is_over]:
            row = rows.get(request.request_id) or await self._row(request)
            request.opened, request.attempts = row["transitions"][0]["seq"], row["attempts"]
            if not self._ran_out(request, row):
                self._turned_out(request, row)
            if row["state"] != request.state:
                found.append(f"{request} is {row['state']} {row.get('reason')}")
            elif request.request_id in self._received and not request.attempts:
                found.append(f"{request} was handed over and is not counted")
            elif until_due and not request.is_over and due_of(request, row) <= wall_clock() + int(2 * BRIEF_S * 1e6):
                found.append(f"{request} is still to end")
        self._note_received(self._agent)
        return found + [f"{one} was not handed over" for one in self._owed()]

    def _ran_out(self, request: Request, row: dict[str, Any]) -> bool:
        """Whether its clock ended it: not before its time, and no later than a second after it."""
        due = due_of(request, row)
        if row["state"] != State.FAILED or row.get("reason") not in (Reason.EXPIRED, Reason.TIMEOUT):
            late = wall_clock() - max(due, self._back_since(due))
            assert row["state"] in FINAL or late <= LATE_US + 500_000, f"{request} is {late / 1e6:.1f} s late"
            return False
        if request.request_id in self._received or self._is_handed(request):
            assert row["reason"] == Reason.TIMEOUT, f"{request} was handed over and is said never to have been"
        assert row["reason"] == (Reason.TIMEOUT if row["attempts"] else Reason.EXPIRED)
        at = parse_time(row["transitions"][-1]["at"])
        assert due <= at <= max(due, self._back_since(due)) + LATE_US, f"{request} ended {(at - due) / 1e6:.1f} s late"
        request.state, request.reason = State.FAILED, Reason(row["reason"])
        return True

    def _back_since(self, due: int) -> int:
        """When there was a runtime that could have seen that this is due."""
        away = self._world.process.away
        return max((until for since, until in away if until > due and since < due + LATE_US), default=0)

    def _turned_out(self, request: Request, row: dict[str, Any]) -> None:
        """Learn which of the things that may be is so."""
        state = State(row["state"])
        if state in request.may_be:
            request.state = state
            request.reason = Reason(row["reason"]) if row.get("reason") else None

    async def _all_end(self) -> None:
        """A last kill; then the agent comes back for good and answers what it is given: nothing is left, and each life
        was legal."""
        await self._end_runtime([], None, 0.0, gently=False)
        await self._connect()
        async with asyncio.timeout(3 * SETTLE_S):
            while left := [one for one in self._requests.values() if not one.is_over]:
                await self._settled()
                for request in left:
                    if self._is_handed(request) and not request.is_over:
                        await self._report(request, State.COMPLETED)
        await self._lose_agent()
        await self._every_life_was_legal()

    async def _every_life_was_legal(self) -> None:
        steps = []
        for request in self._requests.values():
            row = await self._row(request)
            states = [State(step["state"]) for step in row["transitions"]]
            numbers = [step["seq"] for step in row["transitions"]]
            assert states[0] is State.PENDING
            assert all(is_legal(one, next_one) for one, next_one in pairwise(states)), states
            assert (states[-1], row.get("reason")) == (request.state, request.reason), f"{request}: {row}"
            assert numbers == sorted(set(numbers))
            if request.state is State.COMPLETED:
                assert request.request_id in self._received
            steps += [(seq, request.request_id, state.value) for seq, state in zip(numbers, states, strict=True)]
        mine = {one.request_id for one in self._requests.values()}
        told: list[tuple[int, str, str]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while len(told) < len(steps):
                    await asyncio.sleep(0.005)
                    told = [one for one in self._world.told if one[1] in mine]
        assert told == sorted(steps)


async def _said(agent: ManualAgent, request_id: str) -> None:
    await agent.say(request_id, State.COMPLETED)


def lives(home: Path, count: int, *, alike: bool, engine: str = "native") -> str:
    """Live so many lives in one process, `alike` every time or at random; what came of it, in one line."""
    with asyncio.Runner() as runner:
        people = {"works": "agent", "eve": "agent", "ann": "manager"}
        accounts = runner.run(furnished(home, people, TDS, f'[mqtt]\nengine = "{engine}"\n'))
        hosting = runtime_process(home)
        process = runner.run(hosting.__aenter__())
        try:
            client = httpx2.AsyncClient(trust_env=False, timeout=20)
            world = World(process, accounts, client)
            listening = runner.get_loop().create_task(world.listen())

            class Lives(LivesInAProcess):
                def __init__(self) -> None:
                    super().__init__(runner, world)

            # Nobody lives twice: when the machine is asked for the same life again, another error may come of it.
            try:
                run_state_machine_as_test(
                    Lives,
                    settings=settings(
                        max_examples=count,
                        stateful_step_count=STEPS,
                        deadline=None,
                        derandomize=alike,
                        suppress_health_check=list(HealthCheck),
                        phases=[Phase.generate],
                        database=None,
                    ),
                )
            except (FlakyFailure, FlakyStrategyDefinition):
                if not world.failures:
                    raise
            if world.failures:
                raise world.failures[0]
            listening.cancel()
            runner.run(client.aclose())
        finally:
            runner.run(hosting.__aexit__(None, None, None))
    return f"0 lost of {world.requests} requests in {world.lives} lives over {process.kills} kills"


@pytest.mark.timeout(300)  # it starts the runtime half a dozen times
def test_requests_end_once_and_in_order_in_a_process_that_is_killed(tmp_path: Path) -> None:
    print(lives(tmp_path / "home", SHORT, alike=True))


@pytest.mark.trial
@pytest.mark.parametrize("engine", ["native", "amqtt"])
def test_requests_end_once_and_in_order_in_a_process_that_is_killed_often(tmp_path: Path, engine: str) -> None:
    print(lives(tmp_path / "home", LONG, alike=False, engine=engine))
