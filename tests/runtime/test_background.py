"""Work of the runtime: finished whoever leaves, refused while nothing runs."""

import asyncio
import logging

import pytest

from runtime.background import Background
from tests.runtime.doubles import principal
from things.delivery import DeliveryStatus, State
from things.errors import Rejected, Unavailable
from things.messages import Message, Operation

pytestmark = pytest.mark.anyio

ASKED = Message(operation=Operation.CANCEL, principal=principal("ann"), thing_id="", name="r", received=1)
DONE = DeliveryStatus(request_id="r", state=State.COMPLETED)


async def test_detached_handler_finishes_though_its_caller_has_left() -> None:
    background, may_end, seen = Background(), asyncio.Event(), list[str]()

    async def handle(_message: Message) -> DeliveryStatus:
        await may_end.wait()
        seen.append("done")
        return DONE

    async with background.running():
        caller = asyncio.ensure_future(background.detached(handle)(ASKED))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        may_end.set()

    assert seen == ["done"]
    assert caller.cancelled()


async def test_detached_handler_answers_and_raises_like_itself() -> None:
    background = Background()

    async def answer(_message: Message) -> DeliveryStatus:
        return DONE

    async def refuse(_message: Message) -> DeliveryStatus:
        raise Rejected("no")

    async with background.running():
        assert await background.detached(answer)(ASKED) is DONE
        with pytest.raises(Rejected):
            await background.detached(refuse)(ASKED)


async def test_handlers_are_refused_before_the_runtime_runs_and_after() -> None:
    background = Background()

    async def answer(_message: Message) -> DeliveryStatus:
        return DONE

    async def both() -> None:
        with pytest.raises(Unavailable):
            await background.detached(answer)(ASKED)
        with pytest.raises(Unavailable):
            await background.refused_when_stopped(answer)(ASKED)

    await both()
    async with background.running():
        assert await background.refused_when_stopped(answer)(ASKED) is DONE
    await both()


async def test_work_that_fails_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    background, seen = Background(), list[str]()

    async def fail() -> None:
        raise ZeroDivisionError

    async def work() -> None:
        seen.append("worked")

    with caplog.at_level(logging.ERROR, "runtime.background"):
        async with background.running():
            background.start(fail())
            background.start(work())

    assert seen == ["worked"]
    assert [record.message for record in caplog.records] == ["background work failed"]


async def test_work_given_after_the_end_is_dropped_without_a_warning() -> None:
    background, seen = Background(), list[str]()

    async def work() -> None:
        seen.append("worked")

    background.start(work())

    assert not seen
