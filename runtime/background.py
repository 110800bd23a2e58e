"""Work that belongs to the runtime: the caller may leave, and it ends with the runtime."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager

from runtime.ports import Handler
from things.delivery import DeliveryStatus
from things.errors import SkepError, Unavailable
from things.messages import Message

log = logging.getLogger(__name__)


class Background:
    """The tasks of one runtime while it runs."""

    def __init__(self) -> None:
        self._tasks: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        """While the block runs, work can be started; at its end what has not finished is waited for."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                yield tasks
            finally:
                self._tasks = None

    def start(self, work: Awaitable[None]) -> None:
        """Run work in a task; what fails is logged."""
        if self._tasks is None:
            # Shutting down: what is not done now is done at the next start, from the ledger.
            if isinstance(work, Coroutine):
                work.close()
            return
        self._tasks.create_task(_guarded(work))

    def refused_when_stopped(self, handler: Handler) -> Handler:
        """The handler while the runtime runs: for one that finishes what it begins by itself, even if the caller has
        left. Raises Unavailable at other times."""

        def begin(message: Message) -> Awaitable[DeliveryStatus]:
            if self._tasks is None:
                raise Unavailable("the runtime is not running")
            return handler(message)

        return begin

    def detached(self, handler: Handler) -> Handler:
        """The handler in a task: what follows a commit happens even if the caller has left. Raises Unavailable while
        the runtime does not run."""

        async def finish(message: Message) -> DeliveryStatus:
            if self._tasks is None:
                raise Unavailable("the runtime is not running")
            answer: asyncio.Future[DeliveryStatus] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(_answered(handler(message), answer))
            return await answer

        return finish


async def _answered(work: Awaitable[DeliveryStatus], answer: "asyncio.Future[DeliveryStatus]") -> None:
    try:
        status = await work
    except asyncio.CancelledError:
        answer.cancel()
        raise
    except Exception as error:
        if answer.done():
            log.warning("refused after the caller had left", exc_info=not isinstance(error, SkepError))
        else:
            answer.set_exception(error)
    else:
        if not answer.done():
            answer.set_result(status)


async def _guarded(work: Awaitable[None]) -> None:
    """Background work that fails is logged; it must not end the runtime."""
    try:
        await work
    except SkepError as error:
        log.error("background work failed", extra={"code": error.code, "detail": error.detail})
    except Exception:
        log.exception("background work failed")
