"""What kept sessions and shared groups have missed: rows of history, as the deliveries they would have been.

The cursor is that of a session, kept by the engine, or of a group; each row is looked up, matched and judged anew, so
that filters and rights are those of the moment at which it is delivered. How much may be missed is bounded in time and
bytes, and by what is still hot: whatever lies beyond is a gap, which is counted, logged and told to the client.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from bindings.mqtt.clients import ClientSession
from bindings.mqtt.engines.seam import Missed, Publish, SubscribeOptions
from runtime.ports import ByPattern, Pattern, Publication, Session, Sink
from things.addresses import Kind
from things.errors import SkepError
from things.frozen import record

log = logging.getLogger(__name__)

PIECE_ROWS, PIECE_BYTES = 512, 262_144
"""Read at a time; of values, one more than fits."""
ROWS_PER_MESSAGE = 16
"""Rows that cost an account's budget as much as a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How far back is given what was missed."""

    seconds: float
    max_bytes: int


DEFAULT_DEPTH = Depth(seconds=7 * 86_400.0, max_bytes=67_108_864)

_Told = TypeVar("_Told", Publication, Publish)


@record
class Rows:
    """A piece of what was missed: publications by rising row, and the row after which to go on. `gap`: how many rows of
    history were left out before it, of which some were missed."""

    publications: Sequence[Publication]
    last_row: int
    has_more: bool
    gap: int = 0


class MissedRows:
    """Reads for the sessions and groups of one binding."""

    def __init__(self, sink: Sink, depth: Depth) -> None:
        self._sink = sink
        self._depth = depth
        self.gaps = 0
        """How often something lay beyond the bounds."""

    async def after(self, session: Session, patterns: Sequence[Pattern], after: int, *, is_first: bool) -> Rows:
        """The next piece of what patterns match; what cannot be read is a gap too."""
        sessions = self._sink.sessions
        try:
            start = await self._start(patterns, after) if is_first else after
            found = await sessions.missed(session.principal, patterns, start, PIECE_ROWS, max_bytes=PIECE_BYTES)
        except SkepError as error:
            log.error("what was missed cannot be read", extra={"code": error.code, "reason": error.detail})
            self._gap(session, after, sessions.published_row, error.code)
            return Rows(publications=(), last_row=sessions.published_row, has_more=False)
        self._sink.charge(session.principal, max(1, len(found.publications) / ROWS_PER_MESSAGE))
        if start > after:
            self._gap(session, after, start, "beyond-bounds")
        return Rows(
            publications=found.publications, last_row=found.last_row, has_more=found.has_more, gap=start - after
        )

    async def _start(self, patterns: Sequence[Pattern], after: int) -> int:
        since = self._sink.clock() - int(self._depth.seconds * 1e6)
        return await self._sink.sessions.horizon(patterns, after, max_bytes=self._depth.max_bytes, received=since)

    def _gap(self, session: Session, after: int, until: int, reason: str) -> None:
        self.gaps += 1
        self._sink.sessions.dropped(session, "event", reason)
        log.warning(
            "a session has missed more than it can be given",
            extra={
                "account": session.principal.account,
                "session": session.session_id,
                "afterRow": after,
                "untilRow": until,
                "reason": reason,
            },
        )


async def missed_by(
    session: ClientSession,
    filters: Mapping[str, SubscribeOptions],
    after: int,
    rows: MissedRows,
    *,
    is_first: bool,
) -> Missed | None:
    """The next piece for a kept session (`engines.seam.Gate.missed`); None if it asks for nothing that history has.
    A group's filters are the group's (`bindings.mqtt.group`)."""
    asked = [(pattern, text) for text, options in filters.items() if options.qos for pattern in session.patterns(text)]
    if not asked:
        return None
    begin = max(after, min(filters[text].since_row for _, text in asked))
    found = await rows.after(session, [pattern for pattern, _ in asked], begin, is_first=is_first)
    deliveries = _deliveries(session, found, ByPattern(asked), filters)
    return Missed(deliveries=deliveries, last_row=found.last_row, has_more=found.has_more)


def _deliveries(
    session: ClientSession, found: Rows, asked: ByPattern[str], filters: Mapping[str, SubscribeOptions]
) -> Iterator[Publish | None]:
    """One for each publication, by the filters that stand when it is made; those that were added since read on their
    own (`since_row`)."""
    matching: dict[tuple[str, Kind, str], Sequence[str]] = {}
    gap = found.gap
    for publication in found.publications:
        series = (publication.thing_id, publication.kind, publication.name)
        texts = matching.get(series)
        if texts is None:
            texts = matching[series] = asked.matching(publication.twin, publication.kind, publication.name)
        row_id = publication.row_id
        options = [
            each
            for text in texts
            if (each := filters.get(text)) is not None
            and each.qos
            and row_id > each.since_row
            and not (each.no_local and session.is_own(row_id))
        ]
        delivery = session.delivery(publication, options) if options else None
        if delivery is not None and gap:
            delivery, gap = with_gap(delivery, gap), 0
        yield delivery


def with_gap(first: _Told, rows: int) -> _Told:
    """The first delivery behind a gap says so: of how many rows of history some were missed."""
    return replace(first, user_properties=(*first.user_properties, ("gap", str(rows))))
