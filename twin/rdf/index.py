"""The runtime's side of the index process: what changes in the directory goes there, and queries come back answered.

The index is derived and kept nowhere: it is made with the first query, follows the directory, and goes when nobody has
asked for a while, with the memory it took. A process that ends is replaced by the next query.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import anyio
from anyio import CapacityLimiter
from anyio.abc import TaskStatus
from pydantic_core import from_json

from things.errors import QueueFull, Unavailable, error_named
from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue
from things.records import DirectoryChange, Entry
from things.times import rfc3339
from twin.directory import DirectoryStore
from twin.rdf.sights import Rights, Sights

log = logging.getLogger(__name__)

DEADLINE_S = 60.0
"""Of one query, the index made before it included."""
IDLE_S = 600.0
AT_ONCE = 2
MAX_WAITING = 16
MAX_WAITING_EACH = 4
"""Queries of one account at the same time; one of them runs."""
_TURN_S = 0.002
"""Of handing descriptions over before others have a turn in the loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a query found, and how it is spelled; without media type if its form has none of those accepted."""

    form: str
    """rows (SELECT), truth (ASK) or graph (CONSTRUCT, DESCRIBE)."""
    media_type: str | None
    text: bytes


@dataclass(slots=True)
class _Running:
    """One index process, and what is asked of it."""

    process: Process
    awaited: "dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]]" = field(default_factory=dict)
    dirty: dict[str, None] = field(default_factory=dict)
    """Things whose description is another one than it was told."""
    ended: bool = False


class RdfIndex:
    """SPARQL over the directory. Start `serve` in a task group, which owns the process."""

    def __init__(self, directory: DirectoryStore, rights: Rights, *, idle_s: float = IDLE_S) -> None:
        self._directory = directory
        self._sights = Sights(directory, rights)
        self._idle_s = idle_s
        self._limiter = CapacityLimiter(AT_ONCE)
        self._asked: Counter[str] = Counter()
        self._turns: dict[str, anyio.Lock] = {}
        self._telling = anyio.Lock()
        self._running: _Running | None = None
        self._readers: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._number = 0
        directory.on_changed(self._changed)

    @property
    def pid(self) -> int | None:
        """Of the index process; None while there is none."""
        return None if self._running is None else self._running.process.pid

    async def serve(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """End the process when cancelled."""
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self._end()

    async def ask(self, principal: Principal, query: str, accepted: Sequence[str] = ()) -> Answer:
        """What the query finds among the descriptions that the caller may see, in the first of the accepted media
        types that fits. Raises Invalid for what is no query or looks at too much, TooLarge for too long an answer,
        QueueFull, and Unavailable if there is no index."""
        async with self._turn(principal.account):
            try:
                with anyio.fail_after(DEADLINE_S):
                    head, body = await self._answered(principal, query, accepted)
            except TimeoutError:
                # What was made of the index by now is there for the next one who asks.
                log.warning("a query was not answered in time", extra={"after_s": DEADLINE_S})
                raise Unavailable("the index of the directory is being made; ask again later") from None
        if "error" in head:
            raise error_named(head["error"]["code"], head["error"]["detail"])
        return Answer(form=head["form"], media_type=head.get("mediaType"), text=body)

    @asynccontextmanager
    async def _turn(self, account: str) -> AsyncIterator[None]:
        if self._asked[account] >= MAX_WAITING_EACH:
            raise QueueFull(account, MAX_WAITING_EACH)
        if self._asked.total() >= MAX_WAITING:
            raise QueueFull("the search", MAX_WAITING)
        self._asked[account] += 1
        turn = self._turns.setdefault(account, anyio.Lock())
        try:
            async with turn, self._limiter:
                yield
        finally:
            self._asked[account] -= 1
            if not self._asked[account]:
                del self._asked[account], self._turns[account]

    async def _answered(
        self, principal: Principal, query: str, accepted: Sequence[str]
    ) -> tuple[dict[str, Any], bytes]:
        async with self._telling:
            self._rest()
            running = await self._told()
            sight = await self._sights.of(principal)
            self._number += 1
            number = self._number
            # A Thing may have come since it was told; of what nobody told nothing is found.
            frame = {"ask": number, "query": query, "accepted": list(accepted), "sight": sight}
            answer = running.awaited[number] = asyncio.get_running_loop().create_future()
            await self._send(running, frame)
        try:
            found: tuple[dict[str, Any], bytes] = await answer
            return found
        finally:
            running.awaited.pop(number, None)

    # ------------------------------------------------------------ the process

    async def _told(self) -> _Running:
        """The process, told of every description as it stands."""
        running = self._running
        if running is None or running.ended:
            running = self._running = await self._started()
        for thing_id in self._directory.ending():
            if self._directory.get(thing_id) is None:
                running.dirty[thing_id] = None
        begun = perf_counter()
        while running.dirty:
            thing_id = next(iter(running.dirty))
            del running.dirty[thing_id]
            entry = self._directory.get(thing_id)
            frame = {"remove": thing_id} if entry is None else _put(entry)
            try:
                running.process.stdin.write(_spelled(frame))  # type: ignore[union-attr]
            except BaseException:
                running.dirty[thing_id] = None
                raise
            if perf_counter() - begun > _TURN_S:
                await self._drained(running)
                # As much time for others as this takes.
                await asyncio.sleep(_TURN_S)
                begun = perf_counter()
        return running

    async def _started(self) -> _Running:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "twin.rdf.worker", stdin=PIPE, stdout=PIPE
            )
        except OSError as error:
            raise Unavailable(f"the index process cannot be started: {error.strerror}") from error
        running = _Running(process, dirty=dict.fromkeys(self._directory.ids()))
        reader = asyncio.create_task(self._read(running))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        return running

    async def _send(self, running: _Running, frame: dict[str, Any]) -> None:
        assert running.process.stdin is not None
        running.process.stdin.write(_spelled(frame))
        await self._drained(running)

    async def _drained(self, running: _Running) -> None:
        assert running.process.stdin is not None
        with suppress(ConnectionError):  # it is gone, which its reader tells
            await running.process.stdin.drain()
        if running.ended:
            raise Unavailable("the index process ended; ask again")

    async def _read(self, running: _Running) -> None:
        stdout = running.process.stdout
        assert stdout is not None
        try:
            while True:
                head = from_json(await stdout.readexactly(int.from_bytes(await stdout.readexactly(4), "big")))
                body = await stdout.readexactly(head.get("bytes", 0))
                answer = running.awaited.get(head["number"])
                if answer is not None and not answer.done():
                    answer.set_result((head, body))
        except asyncio.IncompleteReadError:
            running.ended = True
            for answer in running.awaited.values():
                if not answer.done():
                    answer.set_exception(Unavailable("the index process ended; ask again"))
            log.debug("the index process ended", extra={"returncode": await running.process.wait()})

    def _changed(self, change: DirectoryChange, before: Entry | None, after: Entry | None) -> None:
        if self._running is not None:
            self._running.dirty[change.thing_id] = None

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    def _end_idle(self) -> None:
        if self._asked:
            self._rest()
        else:
            self._end()

    def _end(self) -> None:
        running, self._running = self._running, None
        if self._idle is not None:
            self._idle.cancel()
        if running is not None and running.process.returncode is None:
            with suppress(ProcessLookupError):
                running.process.kill()


def _put(entry: Entry) -> dict[str, JSONValue]:
    registration: dict[str, JSONValue] = {"created": rfc3339(entry.created), "modified": rfc3339(entry.modified)}
    if entry.expires is not None:
        registration["expires"] = rfc3339(entry.expires)
    return {
        "put": entry.thing_id,
        "td": entry.td.text.decode(),
        "agent": entry.agent,
        "overlay": dict(entry.overlay),
        "registration": registration,
    }


def _spelled(frame: dict[str, Any]) -> bytes:
    text = encode(frame)
    return len(text).to_bytes(4, "big") + text
