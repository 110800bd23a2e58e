"""The sessions behind streams and long polls: bounded queues between the runtime and one HTTP response.

A channel is open exactly while somebody reads its response (long polls of agents live in `bindings.http.routes.polls`).
Overflow: event streams close and are resumed by event id; property streams keep the newest value per name; requests
and statuses are refused, stay in the ledger and come again when there is room.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from bindings.http.sse import EventEncoder, Spelling, status_bytes
from runtime.ports import Pattern, Publication, Request, Sessions
from things.addresses import Kind
from things.delivery import DeliveryStatus
from things.errors import QueueFull, Unauthenticated
from things.identity import Principal
from things.places import Place

log = logging.getLogger(__name__)

_CUT_OFF = frozenset({"revoked", "ended", "token-expired"})
"""Why a channel was closed whose client is not to have what came."""
CHUNK_BYTES = 65_536
"""At most this much is written at once, so that a client that stops reading holds little of ours."""


class Channel:
    """What all channels have in common: who reads, whether it is open, and waking its reader."""

    binding = "http"

    def __init__(self, sessions: Sessions, principal: Principal, *, session_id: str, source: str | None) -> None:
        self.session_id = session_id
        self.principal = principal
        self.source = source
        self.place: Place | None = None
        """Set where TDs may come: they name the addresses that hold there."""
        self.closed_because: str | None = None
        self.wake = asyncio.Event()
        self._sessions = sessions

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Register for as long as the block runs."""
        self._sessions.opened(self)
        try:
            yield
        finally:
            self._sessions.closed(self)

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        """Nothing is subscribed unless a channel says how it queues publications."""

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return False

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        # Statuses without a row (RPC) are awaited by the exchange that called; others stay in the ledger.
        return False

    def close(self, reason: str) -> None:
        if self.closed_because is None:
            self.closed_because = reason
            self._sessions.closed(self)
            self.wake.set()

    def _as_seen(self, publication: Publication) -> Publication | None:
        """What waited, as rights are now; None for what may not be seen any more."""
        thing_id, kind = publication.thing_id, publication.kind
        if not self._sessions.may_see(self.principal, thing_id, kind, publication.name):
            return None
        if kind is not Kind.TD or not publication.payload:
            return publication
        # What a description shows hangs on rights too.
        twin = publication.twin
        found = self._sessions.latest(self.principal, Pattern(twin.account, twin.thing, Kind.TD), self.place)
        return next((one for one in found if one is not None), None)


class StreamChannel(Channel):
    """Publications on their way into one event stream, already spelled.

    While `holding`, history is being replayed: what comes meanwhile is committed too, so that when the queue is full
    it is dropped and replayed instead.
    """

    def __init__(
        self,
        sessions: Sessions,
        principal: Principal,
        *,
        session_id: str,
        source: str | None,
        encoder: EventEncoder,
        spelling: Spelling,
        coalesce: bool,
        max_events: int,
        max_bytes: int,
        abort: Callable[[], None] | None,
        with_statuses: bool = False,
    ) -> None:
        super().__init__(sessions, principal, session_id=session_id, source=source)
        self.spelling = spelling
        self.with_statuses = with_statuses
        """Whether statuses of the caller's own requests come too; without room they wait in the ledger."""
        self.holding = False
        self.missed = False
        self.writing = False
        """Set while a chunk is being written: closing then has to cut the connection."""
        self.dropped = 0
        self._encoder = encoder
        self._coalesce = coalesce
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._abort = abort
        self._queue: deque[tuple[Publication, bytes]] = deque()
        self._rights: int | None = None
        """The rights by which all that waits was let in; None if it has to be judged when it leaves."""
        self._bytes = 0
        self._pinged = False
        self._statuses: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._refused = False

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        if self.closed_because is not None:
            return
        spelled = self._encoder.spell(publication, self.spelling)
        if not self._queue:
            self._rights = self._sessions.rights
        self._queue.append((publication, spelled))
        self._bytes += len(spelled)
        if len(self._queue) > self._max_events or self._bytes > self._max_bytes:
            self._overflow()
        self.wake.set()

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        # A status without a row (RPC) is the answer to the call itself.
        if not self.with_statuses or not status.seq or self.closed_because is not None:
            return False
        if len(self._statuses) >= self._max_events:
            self._refused = True
            return False
        self._statuses.append((status_bytes(status), delivered))
        self.wake.set()
        return True

    def ping(self) -> None:
        if not self._queue and not self._statuses:
            self._pinged = True
            self.wake.set()

    def take(self, ping: bytes) -> bytes:
        """The next chunk, or a ping if nothing waits and one is due; b"" for neither."""
        if not self._queue and not self._statuses:
            due, self._pinged = self._pinged, False
            return ping if due else b""
        self._pinged = False
        chunk = self._taken_statuses() if self._statuses else []
        size = 0
        is_judged = self._rights is not None and self._rights == self._sessions.rights
        while self._queue and size < CHUNK_BYTES:
            publication, spelled = self._queue.popleft()
            size += len(spelled)
            chunk.append(spelled if is_judged else self._shown(publication, spelled))
        self._bytes -= size
        if not self._queue and not self._statuses:
            self.wake.clear()
        return b"".join(chunk)

    def _taken_statuses(self) -> list[bytes]:
        chunk: list[bytes] = []
        size = 0
        while self._statuses and size < CHUNK_BYTES:
            spelled, delivered = self._statuses.popleft()
            delivered()
            size += len(spelled)
            chunk.append(spelled)
        if self._refused and len(self._statuses) <= self._max_events // 2:
            self._refused = False
            self._sessions.drained(self)
        return chunk

    def _shown(self, publication: Publication, spelled: bytes) -> bytes:
        """What waited, as rights are now; nothing of what may not be seen any more."""
        now = self._as_seen(publication)
        if now is publication:
            return spelled
        return b"" if now is None else self._encoder.spell(now, self.spelling)

    def skip_to(self, row_id: int) -> None:
        """Forget held events that a replay up to `row_id` has already sent."""
        kept = [item for item in self._queue if item[0].row_id == 0 or item[0].row_id > row_id]
        self._queue = deque(kept)
        self._bytes = sum(len(spelled) for _, spelled in kept)

    def close(self, reason: str) -> None:
        if self.closed_because is not None:
            return
        self._queue.clear()
        self._statuses.clear()
        self._bytes = 0
        super().close(reason)
        # A client that does not read would never see the end of its stream.
        if self.writing and self._abort is not None:
            self._abort()

    def _overflow(self) -> None:
        if self.holding:
            self.missed = True
            self._queue.clear()
            self._bytes = 0
            return
        if self._coalesce:
            newest = {(item[0].thing_id, item[0].name): item for item in self._queue}
            self.dropped += len(self._queue) - len(newest)
            self._queue = deque(newest.values())
            self._bytes = sum(len(spelled) for _, spelled in self._queue)
            if len(self._queue) <= self._max_events and self._bytes <= self._max_bytes:
                return
        log.info("stream closed: its client is too slow", extra={"session": self.session_id})
        for publication, _ in self._queue:
            self._sessions.dropped(self, publication.kind, "queue-full")
        self.close("queue-full")


class CollectingChannel(Channel):
    """What came during one long poll: publications or statuses, up to a limit."""

    def __init__(
        self, sessions: Sessions, principal: Principal, *, session_id: str, source: str | None, limit: int
    ) -> None:
        super().__init__(sessions, principal, session_id=session_id, source=source)
        self._publications: list[Publication] = []
        self._rights: int | None = None
        """The rights by which all that came was let in; None if it has to be judged when it is taken."""
        self._statuses: list[DeliveryStatus] = []
        self._limit = limit

    def publish(self, publication: Publication, tags: Sequence[object]) -> None:
        if not self._publications:
            self._rights = self._sessions.rights
        if len(self._publications) < self._limit:
            self._publications.append(publication)
            self.wake.set()

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        if not status.seq or len(self._statuses) >= self._limit:
            return False
        self._statuses.append(status)
        delivered()
        self.wake.set()
        return True

    async def wait(self, wait_s: float) -> None:
        """Until something came, the channel closed, or the wait ended."""
        try:
            async with asyncio.timeout(wait_s):
                await self.wake.wait()
        except TimeoutError:
            return

    def publications(self) -> list[Publication]:
        """What came, as rights are by now. Raises Unauthenticated if the client was cut off meanwhile."""
        self._check()
        if self._rights is not None and self._rights == self._sessions.rights:
            return self._publications
        return [shown for one in self._publications if (shown := self._as_seen(one)) is not None]

    def statuses(self) -> list[DeliveryStatus]:
        """What came. Raises Unauthenticated if the client was cut off meanwhile."""
        self._check()
        return self._statuses

    def _check(self) -> None:
        if self.closed_because in _CUT_OFF:
            raise Unauthenticated("this login has ended")


class QueueChannel(Channel):
    """Statuses or requests for one stream that is written one by one; `delivered` runs when each has been written."""

    def __init__(
        self,
        sessions: Sessions,
        principal: Principal,
        *,
        session_id: str,
        source: str | None,
        takes: type[Request] | type[DeliveryStatus],
        limit: int,
    ) -> None:
        super().__init__(sessions, principal, session_id=session_id, source=source)
        self._takes = takes
        self._limit = limit
        self._queue: deque[tuple[Request | DeliveryStatus, Callable[[], None]]] = deque()
        self._refused = False

    def request(self, request: Request, delivered: Callable[[], None]) -> bool:
        return self._takes is Request and self._put(request, delivered)

    def report(self, status: DeliveryStatus, delivered: Callable[[], None]) -> bool:
        return self._takes is DeliveryStatus and self._put(status, delivered)

    async def next(self) -> tuple[Request | DeliveryStatus, Callable[[], None]] | None:
        """The next one; None when the channel has closed."""
        while self.closed_because is None:
            if self._queue:
                item = self._queue.popleft()
                if self._refused and len(self._queue) <= self._limit // 2:
                    self._refused = False
                    self._sessions.drained(self)
                return item
            self.wake.clear()
            await self.wake.wait()
        return None

    def close(self, reason: str) -> None:
        self._queue.clear()
        super().close(reason)

    def _put(self, item: Request | DeliveryStatus, delivered: Callable[[], None]) -> bool:
        if self.closed_because is not None:
            return False
        if len(self._queue) >= self._limit:
            self._refused = True
            return False
        self._queue.append((item, delivered))
        self.wake.set()
        return True


class StreamCount:
    """How many streams and long polls each account has open; one that has its most is refused, others go on."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    @contextmanager
    def counted(self, account: str) -> Iterator[None]:
        """Hold one place for as long as the block runs; raises QueueFull when there is none."""
        if self._open[account] >= self._limit:
            raise QueueFull(f"account {account!r}", self._limit, "streams")
        self._open[account] += 1
        try:
            yield
        finally:
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]
