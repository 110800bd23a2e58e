"""What the filters of a kept session have missed: rows of history, as the deliveries they would have been.

The cursor is the session's, kept by the engine; each row is looked up, matched and judged anew, so that filters and
rights are those of the moment at which it is delivered. How much may be missed is bounded in time and bytes, and by
what is still hot: whatever lies beyond is a gap, which is counted, logged and told to the client.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from bindings.mqtt.clients import ClientSession
from bindings.mqtt.engines.seam import Missed, Publish, SubscribeOptions
from bindings.mqtt.groups import Groups
from bindings.mqtt.topics import SharedFilter, ThingsFilter, parse_filter
from runtime.ports import Pattern, Publication, Sink
from things.addresses import Kind, TwinID
from things.errors import SkepError

log = logging.getLogger(__name__)

ROWS_PER_MESSAGE = 16
"""Rows that cost an account's budget as much as a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How far back a kept session is given what it has missed."""

    seconds: float
    max_bytes: int


DEFAULT_DEPTH = Depth(seconds=7 * 86_400.0, max_bytes=67_108_864)

_Filters = Sequence[tuple[Sequence[Pattern], SubscribeOptions]]


class MissedDeliveries:
    """Reads for the sessions of one binding."""

    def __init__(self, sink: Sink, depth: Depth, groups: Groups) -> None:
        self._sink = sink
        self._groups = groups
        self._depth = depth
        self.gaps = 0
        """How often something lay beyond the bounds."""

    async def after(
        self,
        session: ClientSession | None,
        filters: Mapping[str, SubscribeOptions],
        after: int,
        limit: int,
        *,
        is_first: bool,
    ) -> Missed:
        """The next piece (`engines.seam.Gate.missed`); what cannot be read is a gap too."""
        sessions = self._sink.sessions
        if session is None:
            return Missed(deliveries=(), last_row=after, has_more=False)
        asked = self._asked(session, filters, after)
        if not asked:
            return Missed(deliveries=(), last_row=sessions.told_row, has_more=False)
        patterns = [pattern for patterns, _ in asked for pattern in patterns]
        begin = max(after, min(options.since_row for _, options in asked))
        try:
            start = await self._start(patterns, begin) if is_first else begin
            found = await sessions.missed(session.principal, patterns, start, limit)
        except SkepError as error:
            log.error("what a session has missed cannot be read", extra={"code": error.code, "reason": error.detail})
            self._gap(session, after, sessions.told_row, error.code)
            return Missed(deliveries=(), last_row=sessions.told_row, has_more=False)
        self._sink.charge(session.principal, limit / ROWS_PER_MESSAGE if found.has_more else 1)
        deliveries = [
            delivery
            for publication in found.publications
            if (delivery := _delivery(session, publication, asked)) is not None
        ]
        if start > begin:
            self._gap(session, begin, start, "beyond-bounds")
            if deliveries:
                deliveries[0] = _told_of_gap(deliveries[0], start - begin)
        return Missed(deliveries=deliveries, last_row=found.last_row, has_more=found.has_more)

    def _asked(self, session: ClientSession, filters: Mapping[str, SubscribeOptions], after: int) -> _Filters:
        """What is asked for that history may have; QoS 0 promises nothing, and a group is owed it once."""
        asked: list[tuple[Sequence[Pattern], SubscribeOptions]] = []
        for text, options in filters.items():
            if options.qos:
                with suppress(SkepError):
                    parsed = parse_filter(text, session.principal.account)
                    if isinstance(parsed, ThingsFilter):
                        asked.append((parsed.patterns, options))
                    elif isinstance(parsed, SharedFilter) and self._groups.owed(session, text, after):
                        asked.append((parsed.shared.patterns, options))
        return asked

    async def _start(self, patterns: Sequence[Pattern], after: int) -> int:
        since = self._sink.clock() - int(self._depth.seconds * 1e6)
        return await self._sink.sessions.horizon(patterns, after, max_bytes=self._depth.max_bytes, received=since)

    def _gap(self, session: ClientSession, after: int, until: int, reason: str) -> None:
        self.gaps += 1
        self._sink.sessions.dropped(session, "event", reason)
        log.warning(
            "a session has missed more than it can be given",
            extra={
                "account": session.principal.account,
                "client": session.link.client_id,
                "afterRow": after,
                "untilRow": until,
                "reason": reason,
            },
        )


def _delivery(session: ClientSession, publication: Publication, asked: _Filters) -> Publish | None:
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


def _told_of_gap(delivery: Publish, rows: int) -> Publish:
    """The first delivery behind a gap says so: of how many rows of history some were this session's."""
    return replace(delivery, user_properties=(*delivery.user_properties, ("gap", str(rows))))
