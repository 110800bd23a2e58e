"""What is known of time across runs, so that it never goes back when a gateway starts with its clock in the past.

`clock.json` holds the latest time seen. A clock that is earlier is not trusted: time goes on from there until the clock
has caught up. So no credential that has ended lives again, nothing is taken for older than it is, and the steady clock
by which requests end continues where it was, whatever the clock on the wall says in between.

A clock that is set back while the runtime runs is followed, since it was wrong before as often as it is now; what was
stamped with later times is then said to be (`problem`). What is the latest value does not depend on it.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.home import write_whole
from runtime.clocks import SteadyClock, wall_clock
from things.errors import StorageDamaged
from things.lateness import SET_BACK_US
from things.times import rfc3339

log = logging.getLogger(__name__)

FILE = "clock.json"


@dataclass(frozen=True, slots=True)
class _Seen:
    """How the clocks stood when they were noted last, µs UTC."""

    now: int
    steady: int
    trusted: bool


class Timekeeping:
    """The clocks of one run; `steady` is right once `resume` was called."""

    def __init__(self, home: Path, wall: Callable[[], int] = wall_clock) -> None:
        """Raises StorageDamaged for a note that cannot be read."""
        self._path = home / FILE
        self._wall = wall
        self._began = time.monotonic_ns()
        self._seen = _read(self._path)
        self._latest = self._seen.now if self._seen is not None else 0
        self._stamped = self._latest
        """The latest time that was given out."""
        self.was_trusted = self.is_trusted
        """The same when `now` was asked last, for who is asked for every message: it costs no look at the clock."""
        self.steady: SteadyClock
        if not self.is_trusted:
            log.warning("the clock is earlier than when this runtime last ran", extra={"seen": rfc3339(self._latest)})

    @property
    def is_trusted(self) -> bool:
        """The clock is not earlier than in former runs."""
        return self._wall() >= self._latest

    @property
    def behind_us(self) -> int:
        """By how much the clock is behind times that were stamped already; 0 if it is not."""
        behind = self._stamped - self._wall()
        return behind if behind > SET_BACK_US else 0

    @property
    def problem(self) -> str | None:
        """What is wrong with the clock, or was: it is not trusted, or it is behind times that were stamped already."""
        if not self.is_trusted:
            return (
                f"the clock is earlier than {rfc3339(self._latest)}, when this runtime last ran: time goes on from "
                f"there until the clock is set (if that time was wrong: stop, remove {self._path}, start)"
            )
        if self.behind_us:
            return (
                f"the clock was set back by {self.behind_us / 1e6:.0f} s: values are stamped up to "
                f"{rfc3339(self._stamped)}; what arrives is the latest value all the same"
            )
        return None

    def now(self) -> int:
        """µs UTC by the clock on the wall; while that is not trusted, since the latest time seen."""
        wall = self._wall()
        self.was_trusted = wall >= self._latest
        if wall < self._stamped:
            if self.was_trusted:
                return wall
            wall = self._latest + (time.monotonic_ns() - self._began) // 1_000
        self._stamped = wall
        return wall

    def stamped(self, at: int) -> None:
        """Take note that something kept was stamped with this time."""
        self._stamped = max(self._stamped, at)

    def resume(self, *, is_awaited: bool) -> SteadyClock:
        """Set the steady clock going: where it would be by now if something waits for its time (`is_awaited`), else by
        the clock on the wall. How long the runtime was off is known only if the clock was trusted before and after."""
        start, seen = self.now(), self._seen
        if is_awaited and seen is not None:
            start = seen.steady + (start - seen.now if seen.trusted and self.is_trusted else 0)
        self.steady = SteadyClock(start)
        return self.steady

    def note(self) -> None:
        """Write down how the clocks stand. Raises StorageFailed."""
        document = {"now": self.now(), "steady": self.steady(), "trusted": self.is_trusted}
        write_whole(self._path, json.dumps(document).encode() + b"\n")


def _read(path: Path) -> _Seen | None:
    try:
        found = json.loads(path.read_text("utf-8"))
        return _Seen(now=int(found["now"]), steady=int(found["steady"]), trusted=bool(found["trusted"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageDamaged(f"{path} cannot be read (if the clock is right, remove it): {error}") from error
