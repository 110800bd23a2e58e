"""Acknowledgements of one client's publishes: commits overlap, acknowledgements keep the order of arrival.

`Gate.received` answers with an awaitable per publish. They all run at once, so that many publishes share one group
commit; the head of this queue is acknowledged when it is done, and whatever is done behind it follows. A publish
whose commit failed and for which there is no answer is never acknowledged: `failed` is called once and everything
behind it is abandoned, since the client will send those again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType
from typing import Any

from bindings.mqtt.engines.seam import ACCEPTED, Outcome, Publish

log = logging.getLogger(__name__)

Start = Callable[[Coroutine[Any, Any, object]], "asyncio.Future[Any]"]
"""Starts a coroutine as a task somebody owns; its exception is read here."""


class Acknowledgements:
    """The publishes of one client that the runtime has not answered yet, in order of arrival.

    `acknowledge(qos, packet_id, outcome)` runs for each QoS 1 and 2 publish, in order; `refused(message, error)` says
    the outcome of one whose answer raised, or raises; `failed(error)` runs at most once.
    QoS 0 publishes may be added too: they count as unanswered, need no acknowledgement, and may fail alone.
    `advanced()` runs whenever the queue got shorter, so that a socket that was not read for its length is read again.
    """

    __slots__ = ("_acknowledge", "_advanced", "_failed", "_idle", "_queue", "_refused", "_start", "broken")

    def __init__(
        self,
        acknowledge: Callable[[int, int, Outcome], None],
        refused: Callable[[Publish, Exception], Outcome],
        failed: Callable[[BaseException], None],
        start: Start,
        advanced: Callable[[], None] | None = None,
    ) -> None:
        self._acknowledge = acknowledge
        self._refused = refused
        self._failed = failed
        self._start = start
        self._advanced = advanced
        self._queue: deque[tuple[asyncio.Future[Any], Publish, int]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self.broken = False
        """A commit failed; nothing more is acknowledged."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, message: Publish, packet_id: int, answer: Awaitable[object]) -> int:
        """Take the answer to the next publish in order; one that is ready at the head is acknowledged at once. How many
        are unanswered now."""
        if isinstance(answer, asyncio.Future):
            future = answer
            if not self._queue and future.done():
                self._settle(future, message, packet_id)
                return 0
        else:
            future = self._start(answer if isinstance(answer, CoroutineType) else _run(answer))
        self._queue.append((future, message, packet_id))
        # Only the head is waited for: whatever is done behind it follows in the same step.
        if len(self._queue) == 1:
            future.add_done_callback(self._advance)
        return len(self._queue)

    async def settled(self) -> None:
        """Return when every publish so far has been answered or abandoned."""
        if self._queue:
            if self._idle is None or self._idle.done():
                self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _advance(self, _done: "asyncio.Future[Any]") -> None:
        queue = self._queue
        while queue:
            head = queue[0][0]
            if not head.done():
                head.add_done_callback(self._advance)
                break
            self._settle(*queue.popleft())
        if not queue and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._advanced is not None:
            self._advanced()

    def _settle(self, future: "asyncio.Future[Any]", message: Publish, packet_id: int) -> None:
        qos = message.qos
        try:
            try:
                outcome = future.result()
            except Exception as error:
                outcome = self._refused(message, error)
        except BaseException as error:  # what the future holds, CancelledError too; nothing is awaited here
            if self.broken:
                return
            if qos:
                self.broken = True
                self._failed(error)
            else:
                log.warning("a QoS 0 publish was lost", extra={"error": repr(error)})
        else:
            if qos and not self.broken:
                self._acknowledge(qos, packet_id, outcome if isinstance(outcome, Outcome) else ACCEPTED)


async def _run(answer: Awaitable[object]) -> object:
    return await answer
