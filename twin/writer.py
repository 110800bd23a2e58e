"""Group commit: one writer thread for each database, one synced commit for everything that waits.

`GroupThread` owns the thread and the queue; what a group is written with is given to it. Promises: jobs run in the
order they were submitted; a job's end is reported only after the commit that holds it; those of a group by one
call into the loop. After a failed commit nothing is acknowledged any more (the kernel may have dropped the pages whose
sync failed, so a later success would prove nothing). A full disk refuses writes and ends by itself when there is room
again; so does a shortage of descriptors or memory, which is tried again with back-off.
"""

import asyncio
import errno
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy.exc import DBAPIError

from things.errors import QueueFull, SkepError, StorageDamaged, StorageFailed, StorageFull, Unavailable
from things.latencies import Latencies
from twin.gathering import Gathering
from twin.reserve import Reserve

log = logging.getLogger(__name__)

J = TypeVar("J")
R = TypeVar("R")

MAX_WAITING_JOBS = 100_000
"""Jobs submitted but not committed; more are refused, so that a stalled disk cannot fill the memory."""

MAX_GROUP_JOBS = 4_096
"""Jobs after which no more join a transaction; bounds how long the first of them waits for the last."""

RESOLVED_PER_TURN = 256
"""Ends of jobs that are reported in one turn of the loop; publications are passed on behind them."""

ENOUGH_JOBS = 8
"""Jobs of one turn of the loop with which an idle thread begins, so that it commits while the loop goes on."""

PATIENCE_S = 0.01
"""How long a job that nobody waits for may lie until others make its group larger."""

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between two tries while the machine is short of descriptors or memory."""

_FULL = frozenset({"SQLITE_FULL"})
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
_SHORT_OF = ("SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_IOERR_NOMEM", "SQLITE_IOERR_SHMOPEN", "SQLITE_IOERR_SHMMAP")
"""A file could not be opened or no memory was had: nothing was written, so nothing can have been lost."""
_PG_FULL = "53100"
_OF_THE_JOB = frozenset({"DataError", "IntegrityError", "ProgrammingError"})


class _Job(NamedTuple):
    job: Any
    done: "asyncio.Future[Any]"
    frees: bool


class GroupThread(Generic[J, R]):
    """Runs `write` on groups of jobs in a thread of its own.

    `write` gets the jobs of one group, commits them together and returns one result or exception for each; raising
    means that nothing of the group was stored. `finish` runs last, in the same thread. With `gives_up` a failed group
    is the last one that was tried. A job may wait up to `max_wait_s` for others, where that brings any
    (`twin.gathering`).
    """

    def __init__(
        self,
        name: str,
        write: Callable[[Sequence[J]], Sequence[R | BaseException]],
        *,
        finish: Callable[[], None] = lambda: None,
        reserve: Reserve | None = None,
        gives_up: bool = True,
        max_waiting: int = MAX_WAITING_JOBS,
        max_group: int = MAX_GROUP_JOBS,
        max_wait_s: float = 0.0,
    ) -> None:
        self._name = name
        self._write = write
        self._finish = finish
        self._reserve = reserve
        self._gives_up = gives_up
        self._max_waiting = max_waiting
        self._max_group = max_group
        self.commit_s = Latencies()
        """How long groups took to be written and synced."""
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._gathered: list[_Job] = []
        self._handing_over: asyncio.Handle | None = None
        self._gathering = Gathering(max_wait_s)
        self._is_soon = False
        """What was gathered is handed over at the end of this turn of the loop."""
        self._is_gathering = False
        """It is handed over when its time is over, or enough came."""
        self._is_idle = False
        self._waiting = 0
        self._resolving: deque[tuple[_Job, Any]] = deque()
        """Jobs that are committed and whose end is not reported yet; bounded like those that wait."""
        self._closed = False
        self._full = False
        self._failure: SkepError | None = None
        self._shortage: SkepError | None = None
        self._pause_s, self._pauses_until = 0.0, 0.0
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=f"writer of {name}", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> SkepError | None:
        """Why nothing is acknowledged, for good or until the next try; None while the store works."""
        if self._failure is None and time.monotonic() < self._pauses_until:
            return self._shortage
        return self._failure

    @property
    def is_full(self) -> bool:
        """Whether writes are refused for lack of space."""
        return self._full

    @property
    def waiting(self) -> int:
        """Jobs submitted and not yet committed."""
        return self._waiting

    def submit(self, job: J, *, frees: bool = False, soon: bool = True) -> "asyncio.Future[R]":
        """Queue a job; the future ends when its group is committed, or with why it was not. `frees` marks jobs that
        are let through on a full disk because they make room. Not `soon`: nobody waits for it, let others join."""
        done: asyncio.Future[R] = self._loop.create_future()
        if self._failure is not None:
            done.set_exception(self._failure)
        elif self._closed:
            done.set_exception(Unavailable(f"{self._name} is closed"))
        elif self._waiting >= self._max_waiting:
            done.set_exception(QueueFull(self._name, self._max_waiting))
        else:
            self._waiting += 1
            self._gathered.append(_Job(job, done, frees))
            if self._is_soon:
                if self._is_idle and len(self._gathered) >= ENOUGH_JOBS:
                    self._hand_over()
            elif self._is_gathering:
                if len(self._gathered) >= self._gathering.enough:
                    self._hand_over_soon()
            elif soon:
                self._gather()
            elif self._handing_over is None:
                self._handing_over = self._loop.call_later(PATIENCE_S, self._hand_over)
        return done

    async def close(self) -> None:
        """Write what waits, then end the thread. Idempotent."""
        if not self._closed:
            self._closed = True
            self._hand_over()
            self._queue.put(None)
        await asyncio.shield(self._ended)

    def _gather(self) -> None:
        """Somebody waits for a job: hand over what there is now, or with what comes in the next moment."""
        wait_s = self._gathering.begin()
        if not wait_s:
            self._hand_over_soon()
            return
        if self._handing_over is not None:
            self._handing_over.cancel()
        self._is_gathering = True
        self._handing_over = self._loop.call_later(wait_s, self._hand_over)

    def _hand_over_soon(self) -> None:
        if self._handing_over is not None:
            self._handing_over.cancel()
        self._is_soon = True
        # What the loop brings in one turn wakes the thread once and shares a commit; the first of it alone would make
        # the others wait for a commit of its own.
        self._handing_over = self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        if self._handing_over is not None:
            self._handing_over.cancel()
        if self._is_gathering or self._is_soon:
            self._gathering.handed_over(len(self._gathered))
        self._handing_over, self._is_soon, self._is_gathering, self._is_idle = None, False, False, False
        gathered, self._gathered = self._gathered, []
        for first in range(0, len(gathered), self._max_group):
            self._queue.put(gathered[first : first + self._max_group])

    # ------------------------------------------------------------ in the writer thread

    def _run(self) -> None:
        more = True
        while more:
            group, more = self._next_group()
            if group:
                self._resolve_in_loop(group, self._outcomes(group))
        try:
            self._finish()
        except Exception:
            log.exception("closing a store failed", extra={"store": self._name})
        self._call_loop(self._end)

    def _next_group(self) -> tuple[list[_Job], bool]:
        group: list[_Job] = []
        self._is_idle = True
        more = self._queue.get()
        self._is_idle = False
        while more is not None:
            group += more
            if len(group) >= self._max_group:
                return group, True
            try:
                more = self._queue.get_nowait()
            except Empty:
                return group, True
        return group, False

    def _outcomes(self, group: list[_Job]) -> Sequence[R | BaseException]:
        if self._failure is not None:
            return [self._failure] * len(group)
        if self._shortage is not None and time.monotonic() < self._pauses_until:
            return [self._shortage] * len(group)
        if self._full and not self._has_room():
            refused = StorageFull()
            freeing = [job for job in group if job.frees]
            done = dict(zip(map(id, freeing), self._written(freeing), strict=True)) if freeing else {}
            return [done.get(id(job), refused) for job in group]
        return self._written(group)

    def _written(self, group: list[_Job]) -> Sequence[R | BaseException]:
        try:
            began = time.perf_counter()
            outcomes = self._write([job.job for job in group])
            self.commit_s.note(time.perf_counter() - began)
            self._end_shortage()
            return outcomes
        except BaseException as error:
            if is_shortage(error):
                return [self._run_short(storage_error(error, self._name))] * len(group)
            if not is_storage_error(error):
                # A bug, or a value that cannot be stored: nothing of the group was, and the store is none the worse.
                log.error("a group of writes was given up", extra={"store": self._name}, exc_info=error)
                return [error] * len(group)
            refusal = storage_error(error, self._name)
            if isinstance(refusal, StorageFull):
                self._run_full()
            else:
                if self._gives_up and not isinstance(refusal, Unavailable):
                    self._failure = refusal
                log.critical(
                    "a store failed; what waited is not acknowledged",
                    extra={"store": self._name, "reason": refusal.detail, "givesUp": self._failure is not None},
                    exc_info=error,
                )
            return [refusal] * len(group)

    def _run_short(self, refusal: SkepError) -> SkepError:
        if self._shortage is None:
            log.error(
                "the machine is short of descriptors or memory: writes are refused and tried again",
                extra={"store": self._name, "reason": refusal.detail},
            )
        self._shortage = refusal
        self._pause_s = min(max(2 * self._pause_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)
        self._pauses_until = time.monotonic() + self._pause_s
        return refusal

    def _end_shortage(self) -> None:
        if self._shortage is not None:
            self._shortage, self._pause_s, self._pauses_until = None, 0.0, 0.0
            log.warning("writes are accepted again", extra={"store": self._name})

    def _run_full(self) -> None:
        if not self._full:
            log.warning("no space left: writes are refused until there is", extra={"store": self._name})
        self._full = True
        if self._reserve is not None:
            self._reserve.release()

    def _has_room(self) -> bool:
        if self._reserve is not None and not self._reserve.restore():
            return False
        self._full = False
        log.warning("there is space again: writes are accepted", extra={"store": self._name})
        return True

    def _resolve_in_loop(self, group: list[_Job], outcomes: Sequence[R | BaseException]) -> None:
        self._call_loop(self._resolve, group, outcomes)

    def _call_loop(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.debug("the loop ended before its writer", extra={"store": self._name})

    # ------------------------------------------------------------ in the loop

    def _resolve(self, group: list[_Job], outcomes: Sequence[R | BaseException]) -> None:
        self._gathering.committed(len(group))
        was_idle = not self._resolving
        self._resolving.extend(zip(group, outcomes, strict=True))
        if was_idle:
            self._resolve_some()

    def _resolve_some(self) -> None:
        """Tell the ends of some jobs, in their order; the others in later turns, since much may follow each."""
        for _ in range(min(RESOLVED_PER_TURN, len(self._resolving))):
            (_, done, _), outcome = self._resolving.popleft()
            self._waiting -= 1
            if done.done():  # cancelled by who waited; what was written stays written
                continue
            if isinstance(outcome, BaseException):
                done.set_exception(outcome)
            else:
                done.set_result(outcome)
        if self._resolving:
            self._loop.call_soon(self._resolve_some)

    def _end(self) -> None:
        if self._resolving:
            self._loop.call_soon(self._end)
        elif not self._ended.done():
            self._ended.set_result(None)


def storage_error(error: BaseException, name: str) -> SkepError:
    """What a database's exception means for those who wait: full, held, damaged or failed."""
    if isinstance(error, SkepError):
        return error
    original = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(original, OSError) and original.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull()
    if isinstance(original, UnicodeDecodeError):  # the driver could not decode what the database says of itself
        return StorageDamaged(f"{name} is damaged: {original}")
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorname", "") or ""
        if code in _FULL:
            return StorageFull()
        if code.startswith("SQLITE_BUSY"):
            return Unavailable(f"{name} is held by another program")
        # SQLITE_ERROR, or none: text that is none, or a schema that lacks what the migrations made.
        if code.startswith(_DAMAGED) or (
            isinstance(original, sqlite3.OperationalError) and code in ("", "SQLITE_ERROR")
        ):
            return StorageDamaged(f"{name} is damaged: {original}")
    if getattr(original, "sqlstate", None) == _PG_FULL:
        return StorageFull()
    return StorageFailed(f"{name} could not be written: {original}")


def is_shortage(error: BaseException) -> bool:
    """Whether the machine had no descriptor or memory left, which passes."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(original, OSError):
        return original.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
    if isinstance(original, sqlite3.Error):
        return (getattr(original, "sqlite_errorname", None) or "").startswith(_SHORT_OF)
    return isinstance(original, MemoryError)


def is_storage_error(error: BaseException) -> bool:
    """Whether the database itself failed, rather than the one job that asked something impossible of it."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    if isinstance(original, (OSError, StorageFull, StorageFailed, StorageDamaged)):
        return True
    kinds = {kind.__name__ for kind in type(original).__mro__}
    # Every DB-API driver has these names; psycopg may not be installed.
    return bool(kinds & {"DatabaseError", "InterfaceError"}) and not kinds & _OF_THE_JOB
