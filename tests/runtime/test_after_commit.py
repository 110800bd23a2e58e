"""What follows a commit happens once, whoever still waits for it."""

import asyncio

import pytest

from runtime.after_commit import followed
from things.errors import StorageFull

pytestmark = pytest.mark.anyio


def commit() -> "asyncio.Future[int]":
    return asyncio.get_running_loop().create_future()


async def test_the_answer_is_what_follows_the_outcome() -> None:
    done = commit()
    answer = followed(done, lambda number: f"row {number}")

    done.set_result(7)

    assert await answer == "row 7"


async def test_what_follows_may_take_its_time() -> None:
    done, later = commit(), commit()
    answer: asyncio.Future[int] = followed(done, lambda _number: later)

    done.set_result(7)
    await asyncio.sleep(0)
    assert not answer.done()
    later.set_result(8)

    assert await answer == 8


async def test_what_follows_happens_though_the_caller_has_left() -> None:
    done, seen = commit(), list[int]()
    answer = followed(done, seen.append)
    answer.cancel()

    done.set_result(7)
    await asyncio.sleep(0)

    assert seen == [7]


async def test_failed_commit_is_raised_after_it_was_told_and_nothing_follows() -> None:
    done, seen = commit(), list[str]()
    answer = followed(done, lambda _number: seen.append("followed"), lambda: seen.append("failed"))

    done.set_exception(StorageFull())

    with pytest.raises(StorageFull):
        await answer
    assert seen == ["failed"]


async def test_failure_of_what_follows_is_the_answer() -> None:
    done = commit()
    answer = followed(done, lambda number: number // 0)

    done.set_result(7)

    with pytest.raises(ZeroDivisionError):
        await answer
