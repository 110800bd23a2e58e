"""Calls under way: each ends once, by its answer, its deadline or the loss of its session."""

import asyncio

import pytest

from runtime.requests.calls import Call, Calls
from tests.runtime.doubles import RecordingSession, agent_principal
from things.delivery import DeliveryStatus, Reason, State

pytestmark = pytest.mark.anyio


class Watched:
    """Calls, and how they ended."""

    def __init__(self) -> None:
        self.ended: list[DeliveryStatus] = []
        self.calls = Calls(lambda _call, status: self.ended.append(status), lambda: 7)
        self.session = RecordingSession("s1", agent_principal("mill"))

    def begin(self, request_id: str = "r", deadline_s: float = 60, session: RecordingSession | None = None) -> Call:
        call = Call(
            request_id=request_id,
            caller="ann",
            caller_ref="ref",
            caller_session="",
            agent="mill",
            session=session or self.session,
        )
        self.calls.begin(call, deadline_s)
        return call


async def test_second_final_status_is_ignored() -> None:
    watched = Watched()
    call = watched.begin()
    done = DeliveryStatus(request_id="r", state=State.COMPLETED, output=1)

    watched.calls.end(call, done)
    watched.calls.end(call, DeliveryStatus(request_id="r", state=State.FAILED))

    assert watched.ended == [done]
    assert watched.calls.final("r") is done
    assert watched.calls.get("r") is None
    assert len(watched.calls) == 0


async def test_call_that_is_not_answered_ends_by_its_deadline() -> None:
    watched = Watched()
    watched.begin(deadline_s=0.0)

    async with asyncio.timeout(5):
        while not watched.ended:  # noqa: ASYNC110 - a timer of the loop
            await asyncio.sleep(0.001)

    (status,) = watched.ended
    assert (status.state, status.reason, status.caller_ref) == (State.FAILED, Reason.TIMEOUT, "ref")


async def test_lost_session_ends_its_calls_and_no_others() -> None:
    watched = Watched()
    other = RecordingSession("s2", agent_principal("mill"))
    watched.begin("a")
    watched.begin("b", session=other)
    watched.begin("c")

    watched.calls.lost(watched.session)

    assert [(one.request_id, one.reason) for one in watched.ended] == [
        ("a", Reason.NOT_CONNECTED),
        ("c", Reason.NOT_CONNECTED),
    ]
    assert watched.calls.get("b") is not None
    watched.calls.lost(other)


async def test_call_that_could_not_be_handed_over_is_forgotten_and_its_timer_with_it() -> None:
    watched = Watched()
    call = watched.begin()

    watched.calls.withdraw(call)

    assert call.timer is not None
    assert call.timer.cancelled()
    assert not watched.ended
    assert len(watched.calls) == 0


async def test_finals_are_remembered_for_a_bounded_number_of_calls() -> None:
    watched = Watched()

    for number in range(1_001):
        call = watched.begin(str(number))
        watched.calls.end(call, DeliveryStatus(request_id=str(number), state=State.COMPLETED))

    assert watched.calls.final("0") is None
    assert watched.calls.final("1000") is not None
