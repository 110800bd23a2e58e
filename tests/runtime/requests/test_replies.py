"""Waiting for a final status changes nothing, and misses none."""

import asyncio

import pytest

from runtime.requests.replies import Replies
from things.delivery import DeliveryStatus, State

pytestmark = pytest.mark.anyio

PENDING = DeliveryStatus(request_id="r", state=State.PENDING)
DONE = DeliveryStatus(request_id="r", state=State.COMPLETED)


def replies(known: DeliveryStatus | None = PENDING) -> Replies:
    async def standing(_request_id: str) -> DeliveryStatus | None:
        return known

    return Replies(standing)


async def test_everyone_who_waits_gets_the_final_status() -> None:
    waiting = replies()
    callers = [asyncio.ensure_future(waiting.final("r", 5)) for _ in range(3)]
    other = asyncio.ensure_future(waiting.final("other", 5))
    await asyncio.sleep(0)

    waiting.resolve(DONE)

    assert await asyncio.gather(*callers) == [DONE] * 3
    assert not other.done()
    other.cancel()


async def test_final_status_that_is_known_is_the_answer_at_once() -> None:
    assert await replies(DONE).final("r", 0) is DONE


async def test_status_that_comes_while_the_known_one_is_looked_up_is_not_missed() -> None:
    waiting: Replies

    async def looked_up(_request_id: str) -> DeliveryStatus:
        waiting.resolve(DONE)
        return PENDING

    waiting = Replies(looked_up)

    assert await waiting.final("r", 5) is DONE


@pytest.mark.parametrize("known", [PENDING, None])
async def test_wait_that_ends_first_is_answered_by_nothing_and_leaves_nothing(known: DeliveryStatus | None) -> None:
    waiting = replies(known)

    assert await waiting.final("r", 0.01) is None
    assert await waiting.final("r", -1) is None

    assert not waiting._waiting


async def test_caller_that_leaves_takes_its_place_along() -> None:
    waiting = replies()
    caller = asyncio.ensure_future(waiting.final("r", 5))
    await asyncio.sleep(0)

    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)

    assert not waiting._waiting
    waiting.resolve(DONE)
