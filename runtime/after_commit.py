"""What follows a commit happens even if the caller has left."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from things.errors import SkepError

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


def followed(
    done: "asyncio.Future[T]",
    follow: "Callable[[T], R | asyncio.Future[R]]",
    failed: Callable[[], None] | None = None,
) -> "asyncio.Future[R]":
    """The answer for the caller: what `follow` makes of an outcome, at once or in its time, or why there is none,
    after `failed`. Without a task: nothing is waited for but the commit."""
    answer: asyncio.Future[R] = done.get_loop().create_future()
    done.add_done_callback(partial(_follow, follow, failed, answer))
    return answer


def _follow(
    follow: "Callable[[T], R | asyncio.Future[R]]",
    failed: Callable[[], None] | None,
    answer: "asyncio.Future[R]",
    done: "asyncio.Future[T]",
) -> None:
    try:
        outcome = done.result()
    except BaseException as error:
        if failed is not None:
            failed()
        _refuse(answer, error)
        return
    try:
        followed_by = follow(outcome)
    except Exception as error:
        _refuse(answer, error)
    else:
        if isinstance(followed_by, asyncio.Future):
            followed_by.add_done_callback(partial(_answer, answer))
        elif not answer.done():
            answer.set_result(followed_by)


def _answer(answer: "asyncio.Future[R]", done: "asyncio.Future[R]") -> None:
    try:
        outcome = done.result()
    except BaseException as error:
        _refuse(answer, error)
    else:
        if not answer.done():
            answer.set_result(outcome)


def _refuse(answer: "asyncio.Future[R]", error: BaseException) -> None:
    if answer.done():
        log.warning("refused after the caller had left", exc_info=None if isinstance(error, SkepError) else error)
    elif isinstance(error, asyncio.CancelledError):
        answer.cancel()
    else:
        answer.set_exception(error)
