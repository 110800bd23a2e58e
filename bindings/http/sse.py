"""Server-sent events: their spelling, encoded once a publication, and the one ticker that pings every stream.

The hot path is raw ASGI: what waits for a client leaves in one body chunk. Streams of requests and statuses are few
and answered one by one; `bindings.http.replies` sends those through sse-starlette.
"""

import asyncio
from enum import Enum
from typing import Protocol

from runtime.ports import Publication
from things.addresses import encode_segment
from things.delivery import DeliveryStatus
from things.documents import status_document
from things.jsontext import encode
from things.times import rfc3339

OPENING, PING = b": ok\n", b": ping\n"
"""Comments (WHATWG HTML, 9.2.5) without a blank line behind them, which would end an event that has no data."""


class Spelling(Enum):
    """How a stream writes its events."""

    MANY = "many"
    """Named by kind, a document that says Thing, kind and name: one stream for many subscriptions."""
    NAMED = "named"
    """Named by affordance, the bare value (W3C HTTP SSE Profile)."""
    UNNAMED = "unnamed"
    """The bare value without a name, for clients that only listen to `message`."""
    MANY_UNNAMED = "many-unnamed"


class EventEncoder:
    """Spells publications; the last one's bytes are shared by all its streams.

    Fan-out hands one publication to all its sessions in a row, so remembering one is enough. `id` is the history row;
    what has none (descriptions, progress of actions) repeats the last row's, so that a client resumes after it.
    """

    def __init__(self) -> None:
        self._publication: Publication | None = None
        self._spelled: dict[Spelling, bytes] = {}
        self._last_row = 0

    def spell(self, publication: Publication, spelling: Spelling) -> bytes:
        if self._publication is not publication:
            self._publication = publication
            self._spelled = {}
            self._last_row = max(self._last_row, publication.row_id)
        spelled = self._spelled.get(spelling)
        if spelled is None:
            spelled = self._spelled[spelling] = event_bytes(publication, spelling, publication.row_id or self._last_row)
        return spelled


def event_bytes(publication: Publication, spelling: Spelling, row_id: int) -> bytes:
    """One publication as an event with this id (0: without one)."""
    payload = publication.payload or b"null"
    if b"\n" in payload or b"\r" in payload:
        payload = encode(publication.value)
    if spelling in (Spelling.MANY, Spelling.MANY_UNNAMED):
        payload = b'{"thingID":%s,"kind":"%s","name":%s,"value":%s,"created":"%s"}' % (
            encode(publication.thing_id),
            publication.kind.encode(),
            encode(publication.name),
            payload,
            rfc3339(publication.created).encode(),
        )
    match spelling:
        case Spelling.MANY:
            name = publication.kind.value
        case Spelling.NAMED:
            name = publication.name
        case Spelling.UNNAMED | Spelling.MANY_UNNAMED:
            name = ""
    return event(payload, name=name, id_=str(row_id) if row_id else "")


def status_bytes(status: DeliveryStatus) -> bytes:
    """A status within a stream of other things, whose ids are rows: its own number is `seq` in the document."""
    return event(encode(status_document(status)), name="status")


def event(data: bytes, *, name: str = "", id_: str = "") -> bytes:
    """One event; `data` is a single line."""
    fields = []
    if name:
        # A name with a line break could forge fields of the event.
        fields.append(b"event: %s\n" % (name if name.isprintable() else encode_segment(name)).encode())
    if id_:
        fields.append(b"id: %s\n" % id_.encode())
    fields.append(b"data: %s\n\n" % data)
    return b"".join(fields)


class Pinged(Protocol):
    """A stream that wants a sign of life in every interval."""

    def ping(self) -> None: ...


class PingTicker:
    """Pings all streams from one task: at thousands of streams a timer each would cost more than the pings."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._streams: set[Pinged] = set()

    def add(self, stream: Pinged) -> None:
        self._streams.add(stream)

    def discard(self, stream: Pinged) -> None:
        self._streams.discard(stream)

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            self.tick()

    def tick(self) -> None:
        for stream in tuple(self._streams):
            stream.ping()
