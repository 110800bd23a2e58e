"""The loop's time, shared among connections that have more to do than fits one turn of it.

A connection works in slices. What is left waits here and goes on in later turns, so that what one client sends delays
the others by a slice and not by its backlog. As with the new and old flows of FQ-CoDel (RFC 8290), connections that had
nothing to do before come ahead of those that go on, of which one at least is served each turn.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

SLICE_S = 0.002
SLICE_STEPS = 128
"""What one connection may do before others have their turn."""
TURN_S = 0.004
"""What connections that wait may do in one turn of the loop, and once more those whose bytes arrive in it."""
LONG_TURN_S = 0.008
"""A turn took longer than it should: what was read in it caused tasks, commits or deliveries that ran behind it."""
MIN_STEPS, MAX_STEPS = 32, 512
"""Packets or latest values in one turn of the loop; fewer while turns are long."""


class Worker(Protocol):
    """Something that works in slices."""

    def work(self) -> None:
        """Do a slice; add yourself again if there is more."""


class Turns:
    """Who goes on in the next turn of the loop, and what is left of this one."""

    __slots__ = ("_call_soon", "_due_since", "_new", "_old", "_spent_s", "_spent_steps", "_steps")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._new: deque[Worker] = deque()
        self._old: deque[Worker] = deque()
        self._due_since: float | None = None
        """When the next turn was asked for."""
        self._spent_s = 0.0
        self._spent_steps = 0
        self._steps = MAX_STEPS

    @property
    def has_time(self) -> bool:
        """Whether a connection whose bytes have arrived may handle them at once."""
        return self._spent_s < TURN_S and self._spent_steps < self._steps

    def spend(self, steps: int, seconds: float) -> None:
        """Count a slice."""
        self._spent_steps += steps
        self._spent_s += seconds
        if self._due_since is None and not self.has_time:
            self._schedule()

    def add(self, worker: Worker, *, is_new: bool) -> None:
        """Let a worker that is not waiting yet do a slice in a later turn."""
        (self._new if is_new else self._old).append(worker)
        if self._due_since is None:
            self._schedule()

    def _schedule(self) -> None:
        self._due_since = perf_counter()
        self._call_soon(self._run)

    def _run(self) -> None:
        since, self._due_since = self._due_since, None
        if since is not None and perf_counter() - since > LONG_TURN_S:
            self._steps = max(self._steps // 2, MIN_STEPS)
        else:
            self._steps = min(self._steps * 2, MAX_STEPS)
        self._spent_s, self._spent_steps = 0.0, 0
        # Those that add themselves again go behind everybody else.
        if self._old:
            self._old.popleft().work()
        while self.has_time and (waiting := self._new or self._old):
            waiting.popleft().work()
        self._spent_s, self._spent_steps = 0.0, 0
        if (self._new or self._old) and self._due_since is None:
            self._schedule()
