"""How many acts of one account, or of one address without one, are written in full.

Over the budget, acts of a kind are counted, and the next that is written says how many were left out (`omitted`);
where none comes, a line for their sake does. So a flood is seen, with its size, and costs little room.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from authn.audit.acts import Class
from authn.throttle import network_of
from things.bounded import Recent

BURST = 1_000
PER_SECOND = 1.0
STRANGERS = ""
"""Whose budget all who are unknown share, beside that of their address: names and addresses cost them nothing."""
STRANGERS_PER_SECOND = 5.0
TOLD_EVERY_S = 60.0
MAX_KEPT = 4_096

Kind = tuple[str, str, str]
"""Act, by whom, outcome."""


@dataclass(slots=True)
class _Bucket:
    per_second: float
    level: float
    at: float

    def takes(self, now: float) -> bool:
        self.level = min(BURST, self.level + (now - self.at) * self.per_second)
        self.at = now
        if self.level < 1:
            return False
        self.level -= 1
        return True


@dataclass(slots=True)
class _Omitted:
    class_: Class
    since: float
    acts: int = 0


@dataclass(slots=True)
class Budgets:
    """`monotonic` in seconds. Not thread-safe."""

    monotonic: Callable[[], float]
    _buckets: Recent[tuple[Class, str], _Bucket] = field(init=False)
    _omitted: dict[Kind, _Omitted] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._buckets = Recent(MAX_KEPT)

    def admits(self, class_: Class, act: str, by: str, outcome: str, source: str | None) -> int | None:
        """How many of the kind were left out before this one, which is to be written; None: leave this out too."""
        now = self.monotonic()
        if class_ is Class.REFUSALS:
            # Names are for anybody to make up, and are counted together for their address.
            by, source = "?", network_of(source)
            taken = self._takes(class_, source, PER_SECOND, now) and self._takes(
                class_, STRANGERS, STRANGERS_PER_SECOND, now
            )
            kind = (act, source, outcome)
        else:
            taken = self._takes(class_, by, PER_SECOND, now)
            kind = (act, by, outcome)
        if taken:
            found = self._omitted.pop(kind, None)
            return found.acts if found else 0
        if kind not in self._omitted and len(self._omitted) >= MAX_KEPT:
            kind = (act, "?", outcome)
        self._omitted.setdefault(kind, _Omitted(class_, now)).acts += 1
        return None

    def due(self, *, everything: bool = False) -> Iterator[tuple[Class, Kind, int]]:
        """What was left out a minute ago and is not reported yet; `everything`: at the end. It counts as reported."""
        if not self._omitted:
            return
        now = self.monotonic()
        for kind, found in list(self._omitted.items()):
            if everything or now - found.since >= TOLD_EVERY_S:
                del self._omitted[kind]
                yield found.class_, kind, found.acts

    @property
    def is_owing(self) -> bool:
        """Something was left out and is not reported yet."""
        return bool(self._omitted)

    def _takes(self, class_: Class, who: str, per_second: float, now: float) -> bool:
        bucket = self._buckets.get((class_, who))
        if bucket is None:
            bucket = self._buckets[class_, who] = _Bucket(per_second, BURST, now)
        return bucket.takes(now)
