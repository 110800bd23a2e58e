"""Coroutines with an owner that outlive the call that started them, and fail alone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """Runs coroutines in a task group; whoever holds the future reads the failure, the group never sees it."""

    __slots__ = ("_group",)

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """Start it now, after those started before; the future ends with it."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._group.create_task(_run(coroutine, future))
        return future


async def _run(coroutine: Coroutine[Any, Any, T], future: "asyncio.Future[T]") -> None:
    try:
        result = await coroutine
    except asyncio.CancelledError:
        future.cancel()
        raise
    except Exception as error:
        if not future.cancelled():
            future.set_exception(error)
    else:
        if not future.cancelled():
            future.set_result(result)
