"""Log lines of refusals, sampled: a client that is refused the same again and again fills no disk.

The first refusal of an account (or source address) with a code is written in full. Those that follow are counted, and
the count is written with the next one when a minute has passed, or by `tell` when none comes any more.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

EVERY_S = 60.0
MAX_KNOWN = 1_000
"""Refusals that are counted apart; beyond it, those of one kind and code are counted together."""
MAX_CHARS = 200
"""Of each field: topics and names are the client's own words."""
OTHERS = "(others)"


@dataclass(slots=True)
class _Sampled:
    log: logging.Logger
    level: int
    written: float
    count: int = 0
    """Since the last line."""


class Refusals:
    """Counts refusals and writes some of them; one for a process, as the log is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[tuple[str, str, str], _Sampled] = OrderedDict()

    def note(
        self,
        log: logging.Logger,
        what: str,
        *,
        who: str | None,
        code: str,
        level: int = logging.INFO,
        **fields: object,
    ) -> None:
        """Count a refusal, and write it if it is the first of its kind or its minute. `who`: the account, or the source
        address before login."""
        if not log.isEnabledFor(level):
            return
        now = self._clock()
        key = (what, who or "", code)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._forget(now)
                if len(self._known) >= MAX_KNOWN:
                    key = (what, OTHERS, code)
                    known = self._known.get(key)
            if known is None:
                self._known[key] = _Sampled(log, level, now)
                log.log(level, what, extra=_extra(key, fields))
                return
        known.count += 1
        if now - known.written >= EVERY_S:
            log.log(level, what, extra=_extra(key, fields) | {"since_last_line": known.count})
            known.written, known.count = now, 0
            self._known.move_to_end(key)

    def tell(self) -> None:
        """Write the counts that stand for a minute, and forget what was refused no more; called now and then."""
        now = self._clock()
        while self._known:
            key, known = next(iter(self._known.items()))
            if now - known.written < EVERY_S:
                return
            del self._known[key]
            if known.count:
                known.log.log(known.level, key[0], extra=_extra(key, {}) | {"since_last_line": known.count})
                self._known[key] = _Sampled(known.log, known.level, now)

    def _forget(self, now: float) -> None:
        """Make room, at the cost of what is written already."""
        for key, known in list(self._known.items()):
            if not known.count and now - known.written >= EVERY_S:
                del self._known[key]


def _extra(key: tuple[str, str, str], fields: dict[str, object]) -> dict[str, object]:
    shown = {name: value[:MAX_CHARS] if isinstance(value, str) else value for name, value in fields.items()}
    return {"who": key[1], "code": key[2], **shown}


REFUSALS = Refusals()
