"""The open connections of one engine: how many there may be, and which one makes room.

Whoever means to log in does so within moments. Where there are too many connections, of all or of one source address,
the one that has waited longest without a login is cut off for the next.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from bindings.mqtt.engines.seam import Limits
from things.refusals import REFUSALS

log = logging.getLogger(__name__)

FULL_LOGGED_EVERY_S = 10.0
"""Between two lines of the log about connections that were refused."""


class Abortable(Protocol):
    """A connection, as far as its bounds are concerned."""

    @property
    def source(self) -> str | None: ...

    def abort(self) -> None:
        """Cut it off at once."""


C = TypeVar("C", bound=Abortable)


class OpenConnections(Generic[C]):
    """Every connection from its acceptance until its socket is gone."""

    def __init__(self, limits: Limits, counts: Counter[str], now: Callable[[], float]) -> None:
        """What is refused is added to `counts`; `now` is the engine's clock."""
        self.is_stopping = False
        """No connection is taken any more."""
        self._limits = limits
        self._counts = counts
        self._now = now
        self._open: dict[C, None] = {}
        self._unauthenticated: dict[C, None] = {}
        """Before their login, the longest waiting first."""
        self._unauthenticated_of: dict[str | None, dict[C, None]] = {}
        """The same by source address."""
        self._full_logged = -FULL_LOGGED_EVERY_S
        self._all_closed: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self._open))

    def __contains__(self, connection: C) -> bool:
        return connection in self._open

    @property
    def sources(self) -> int:
        """Source addresses of connections that have not logged in."""
        return len(self._unauthenticated_of)

    def take(self, connection: C) -> bool:
        """Take a new connection, which may cut another off; False if there is no room for it."""
        if self.is_stopping:
            return False
        if len(self._open) >= self._limits.max_connections:
            self._counts["too-many-connections"] += 1
            self._log_full()
            if not self._unauthenticated:
                return False
            self._cut(next(iter(self._unauthenticated)))
        mine = self._unauthenticated_of.get(connection.source)
        if mine is not None and len(mine) >= self._limits.max_unauthenticated_per_source:
            self._counts["too-many-of-a-source"] += 1
            REFUSALS.note(log, "too many connections without a login", who=connection.source, code="too-many")
            self._cut(next(iter(mine)))
        self._open[connection] = self._unauthenticated[connection] = None
        self._unauthenticated_of.setdefault(connection.source, {})[connection] = None
        return True

    def logged_in(self, connection: C) -> None:
        """It need not make room any more."""
        self._unauthenticated.pop(connection, None)
        mine = self._unauthenticated_of.get(connection.source)
        if mine is not None:
            mine.pop(connection, None)
            if not mine:
                del self._unauthenticated_of[connection.source]

    def forget(self, connection: C) -> None:
        """Its socket is gone; harmless if it was forgotten before."""
        self._open.pop(connection, None)
        self.logged_in(connection)
        if self._all_closed is not None and not self._open:
            self._all_closed.set()

    async def closed(self) -> None:
        """Return when none is open."""
        if self._open:
            self._all_closed = asyncio.Event()
            await self._all_closed.wait()

    def _cut(self, connection: C) -> None:
        self.forget(connection)
        connection.abort()

    def _log_full(self) -> None:
        now = self._now()
        if now - self._full_logged >= FULL_LOGGED_EVERY_S:
            self._full_logged = now
            log.warning(
                "too many MQTT connections: those without a login go first",
                extra={"open": len(self._open), "withoutLogin": len(self._unauthenticated)},
            )
