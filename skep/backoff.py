"""How long to wait before the next attempt: doubling, bounded and jittered, so that a thousand clients spread out."""

import random


class Backoff:
    """Delays of an unsteady connection; `reset` after it has worked."""

    def __init__(self, first_s: float = 0.2, most_s: float = 30.0, *, seed: int | None = None) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._next_s = first_s
        self._random = random.Random(seed)

    def delay_s(self) -> float:
        """The next delay: between half of the step and the whole of it."""
        step, self._next_s = self._next_s, min(self._next_s * 2, self._most_s)
        return step * self._random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next_s = self._first_s
