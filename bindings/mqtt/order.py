"""What one client publishes may not overtake what it published before, where the runtime would let it.

Publishes of one client are handled at once, so that they share commits, and TDs, values and statuses are committed in
different stores. Two of them depend on each other: what follows a Thing's TD is judged by that TD, and a status is told
after the values that came before it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class PublishOrder:
    """The order of one client's publishes; everything here returns at once unless there is something to wait for."""

    __slots__ = ("_committing", "_reporting", "_storing", "_turns", "unstarted")

    def __init__(self) -> None:
        self.unstarted = 0
        """Publishes whose handling is a task that has not begun, so that what it waits for is not known yet."""
        self._committing: asyncio.Future[Any] | None = None
        # An empty set takes three times the memory of an empty dict.
        self._storing: dict[asyncio.Future[Any], None] = {}
        self._reporting: asyncio.Lock | None = None
        self._turns: dict[str, _Turn] = {}

    def may_pass(self, thing: str) -> bool:
        """Whether a value of the Thing need not wait: not for its TD, nor for what has not even begun."""
        return not self.unstarted and thing not in self._turns

    def storing_until(self, committed: "asyncio.Future[Any]") -> None:
        """A value or event is being stored until its commit. The last one is remembered alone: commits end in order,
        and only one that was refused at once ends before those that wait."""
        if not committed.done():
            self._committing = committed

    @contextmanager
    def storing(self) -> Iterator[None]:
        """While the block runs, values or events are being stored."""
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._storing[stored] = None
        try:
            yield
        finally:
            self._storing.pop(stored, None)
            stored.set_result(None)

    async def wait_stored(self) -> None:
        """Return when what came before is stored and told, in the order of the calls."""
        if self._reporting is None:
            self._reporting = asyncio.Lock()
        if self._unstored() or self._reporting.locked():
            async with self._reporting:
                if unstored := self._unstored():
                    await asyncio.wait(unstored)

    def _unstored(self) -> "Sequence[asyncio.Future[Any]]":
        if self._committing is not None and self._committing.done():
            self._committing = None
        return (*self._storing, *(() if self._committing is None else (self._committing,)))

    @asynccontextmanager
    async def describing(self, thing: str) -> AsyncIterator[None]:
        """While the block runs, the Thing's TD is being stored; TDs of one Thing take turns."""
        async with self._in_turn(thing, self._turns.setdefault(thing, _Turn())):
            yield

    async def wait_described(self, thing: str | None = None) -> None:
        """Return when the Thing's TD (of any Thing, if None) that came before is stored, in the order of the calls."""
        for each in (thing,) if thing is not None else tuple(self._turns):
            turn = self._turns.get(each)
            if turn is not None:
                async with self._in_turn(each, turn):
                    pass

    @asynccontextmanager
    async def _in_turn(self, thing: str, turn: _Turn) -> AsyncIterator[None]:
        turn.users += 1
        try:
            # Waiters of a lock are served in the order in which they came, and none passes them.
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[thing]
