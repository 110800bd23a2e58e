"""The runtime's side of its search processes: started with the first search, ended when there is none for a while.

A search holds its interpreter for as long as it takes, and strangers choose what it looks at: in a process of its own
it delays no one, can be stopped, and gives its memory back. A process that is late or misbehaves is killed; the next
search starts another.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

import anyio
from anyio import CapacityLimiter
from pydantic_core import from_json

from things.errors import Invalid, QueueFull, SkepError, TooLarge, Unavailable
from things.jsontext import encode

log = logging.getLogger(__name__)

DEADLINE_S = 30.0
"""To take what it is given, and from the last Thing to the answer; the process itself stops much earlier, except inside
a regular expression. How long the Things take to be gathered is not its fault."""
IDLE_S = 30.0
MAX_WAITING = 16
MAX_WAITING_EACH = 4
"""Searches of one account at the same time; one of them runs."""
_PIECE_BYTES = 65_536

Things = AsyncGenerator[Sequence[bytes], None]
"""The Things that a caller may see, as JSON texts, page by page."""


class Searches:
    """Runs at most `at_once` searches at a time, one of each account; more wait for their turn, up to a bound."""

    def __init__(self, at_once: int, *, deadline_s: float = DEADLINE_S, idle_s: float = IDLE_S) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._deadline_s = deadline_s
        self._idle_s = idle_s
        self._asked: Counter[str] = Counter()
        self._turns: dict[str, anyio.Lock] = {}
        self._idle: list[tuple[_Worker, asyncio.TimerHandle]] = []

    @property
    def idle(self) -> Sequence[int]:
        """The process ids of workers without work."""
        return [worker.pid for worker, _ in self._idle]

    async def find(self, account: str, language: str, query: str, things: Things) -> bytes:
        """What the query finds, as a JSON array. Raises Invalid for what is not a query or looks at too much, TooLarge
        for too long an answer, QueueFull, and Unavailable if there is no process."""
        if self._asked[account] >= MAX_WAITING_EACH:
            raise QueueFull(account, MAX_WAITING_EACH)
        if self._asked.total() >= MAX_WAITING:
            raise QueueFull("the search", MAX_WAITING)
        self._asked[account] += 1
        turn = self._turns.setdefault(account, anyio.Lock())
        try:
            async with turn, self._limiter:
                return await self._found(language, query, things)
        finally:
            self._asked[account] -= 1
            if not self._asked[account]:
                del self._asked[account], self._turns[account]

    async def close(self) -> None:
        """End the processes that have nothing to do."""
        ended, self._idle = self._idle, []
        for worker, ending in ended:
            ending.cancel()
            worker.kill()
        with anyio.move_on_after(2.0):
            for worker, _ in ended:
                await worker.ended()

    async def _found(self, language: str, query: str, things: Things) -> bytes:
        worker = await self._worker()
        try:
            found = await worker.search(language, query, things, self._deadline_s)
        except TimeoutError:
            log.warning("a search process was stopped", extra={"after_s": self._deadline_s})
            raise Invalid("the query looks at too much; narrow it down") from None
        except EOFError:
            log.warning("a search process ended", extra={"returncode": worker.returncode})
            raise Unavailable("the search process ended; narrow the query down") from None
        finally:
            if worker.is_ready:
                ending = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)
                self._idle.append((worker, ending))
            else:
                worker.kill()
        if isinstance(found, SkepError):
            raise found
        return found

    async def _worker(self) -> "_Worker":
        while self._idle:
            worker, ending = self._idle.pop()
            ending.cancel()
            if worker.returncode is None:
                return worker
        try:
            return _Worker(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "bindings.http.search_worker", stdin=PIPE, stdout=PIPE
                )
            )
        except OSError as error:
            raise Unavailable(f"the search process cannot be started: {error.strerror}") from error

    def _end_idle(self) -> None:
        # The one that waits longest is first.
        worker, _ = self._idle.pop(0)
        worker.kill()


class _Worker:
    """One process, which carries out one search at a time."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        self.pid = process.pid
        self.is_ready = True
        """Whether it can carry out another search."""

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def search(self, language: str, query: str, things: Things, deadline_s: float) -> bytes | SkepError:
        """What is found, or why nothing is. Raises EOFError when the process is gone, TimeoutError when it is late, and
        what `things` raises."""
        self.is_ready = False
        self._stdin.write(encode({"language": language, "query": query}) + b"\n")
        async with asyncio.timeout(deadline_s):
            answer = await self._line()
        if "error" in answer:
            self.is_ready = True
            return _refused(answer["error"])
        try:
            async with asyncio.TaskGroup() as tasks, aclosing(things):
                answering = tasks.create_task(self._answer())
                await self._give(things, answering, deadline_s)
                async with asyncio.timeout(deadline_s):
                    await answering
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return answering.result()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def ended(self) -> None:
        """Return when the process is no more."""
        await self._process.wait()

    async def _give(self, things: Things, answering: "asyncio.Task[bytes | SkepError]", deadline_s: float) -> None:
        async for page in things:
            if answering.done():
                break
            self._stdin.write(b"".join(part for text in page for part in (len(text).to_bytes(4, "big"), text)))
            await self._taken(deadline_s)
        self._stdin.write(bytes(4))
        await self._taken(deadline_s)

    async def _taken(self, deadline_s: float) -> None:
        async with asyncio.timeout(deadline_s):
            with suppress(ConnectionError):  # it is gone, which the answer says
                await self._stdin.drain()

    async def _answer(self) -> bytes | SkepError:
        answer = await self._line()
        self.is_ready = not answer.get("last", False)
        if "error" in answer:
            return _refused(answer["error"])
        size, pieces = int(answer["bytes"]), list[bytes]()
        while size:
            piece = await self._stdout.read(min(size, _PIECE_BYTES))
            if not piece:
                self.is_ready = False
                raise EOFError
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    async def _line(self) -> dict[str, Any]:
        line = await self._stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        answer: dict[str, Any] = from_json(line)
        return answer


def _refused(error: Mapping[str, str]) -> SkepError:
    if error["code"] != TooLarge.code:
        return Invalid(error["detail"])
    refused = TooLarge(0)
    # The sentence was built on the other side already.
    refused.args, refused.detail = (error["detail"],), error["detail"]
    return refused
