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
from runtime.ports import Pattern, Publication, Session, Sink
from things.addresses import Kind, TwinID
from things.errors import SkepError
from things.frozen import record

log = logging.getLogger(__name__)

PIECE_ROWS = 512
"""Read at a time."""
ROWS_PER_MESSAGE = 16
"""Rows that cost an account's budget as much as a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How far back is given what was missed."""

    seconds: float
    max_bytes: int


DEFAULT_DEPTH = Depth(seconds=7 * 86_400.0, max_bytes=67_108_864)

_Asked = Sequence[tuple[Sequence[Pattern], SubscribeOptions]]
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
            found = await sessions.missed(session.principal, patterns, start, PIECE_ROWS)
        except SkepError as error:
            log.error("what was missed cannot be read", extra={"code": error.code, "reason": error.detail})
            self._gap(session, after, sessions.told_row, error.code)
            return Rows(publications=(), last_row=sessions.told_row, has_more=False)
        self._sink.charge(session.principal, PIECE_ROWS / ROWS_PER_MESSAGE if found.has_more else 1)
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
    asked = _asked(session, filters)
    if not asked:
        return None
    begin = max(after, min(options.since_row for _, options in asked))
    found = await rows.after(session, [one for patterns, _ in asked for one in patterns], begin, is_first=is_first)
    return Missed(deliveries=_deliveries(session, found, asked), last_row=found.last_row, has_more=found.has_more)


def _asked(session: ClientSession, filters: Mapping[str, SubscribeOptions]) -> _Asked:
    """What is asked for that history may have; QoS 0 promises nothing."""
    return [
        (patterns, options) for text, options in filters.items() if options.qos and (patterns := session.patterns(text))
    ]


def _deliveries(session: ClientSession, found: Rows, asked: _Asked) -> Iterator[Publish | None]:
    gap = found.gap
    for publication in found.publications:
        delivery = _delivery(session, publication, asked)
        if delivery is not None and gap:
            delivery, gap = told_of_gap(delivery, gap), 0
        yield delivery


def told_of_gap(first: _Told, rows: int) -> _Told:
    """The first delivery behind a gap says so: of how many rows of history some were missed."""
    return replace(first, user_properties=(*first.user_properties, ("gap", str(rows))))


def _delivery(session: ClientSession, publication: Publication, asked: _Asked) -> Publish | None:
    options = [
        each
        for patterns, each in asked
        if publication.row_id > each.since_row and any(_takes(one, publication) for one in patterns)
    ]
    return session.delivery(publication, options) if options else None


def _takes(pattern: Pattern, publication: Publication) -> bool:
    twin: TwinID = publication.twin
    kind: Kind = publication.kind
    return (
        pattern.agent in (None, twin.account)
        and pattern.thing in (None, twin.thing)
        and pattern.kind in (None, kind)
        and pattern.name in (None, publication.name)
    )
