"""What was published while its subscriber was away, read again from history: the one cursor of every binding.

A row id is the cursor. Rows come in the order in which they were delivered, each as a publication, judged by the rights
of the moment at which it is read again. What has no row (descriptions, presence, progress of actions) is not missed: it
is asked for as it is now.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from runtime.ports import ByPattern, History, Missed, Pattern, Publication, StoredPublication
from things.addresses import Kind, TwinID, is_twin
from things.bounded import Bounded
from things.lake import Quality
from things.records import HistoryQuery, Row

_STORED = (Kind.EVENT, Kind.PROPERTY)
_SERIES = 4_096
"""Series of one question whose match is remembered."""
SLICE_S = 0.002
"""How long rows become publications before others have their turn of the loop."""


class Matching:
    """Which series a set of subscriptions asks for; pure, so that a thread that reads may ask."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._asked = ByPattern((one, one) for one in patterns)
        self._known: Bounded[tuple[str, str, str], bool] = Bounded(_SERIES)

    def __call__(self, thing_id: str, kind: str, name: str) -> bool:
        series = (thing_id, kind, name)
        known = self._known.get(series)
        if known is None:
            is_asked = is_twin(thing_id) and bool(self._asked.matching(TwinID.parse(thing_id), kind, name))
            known = self._known[series] = is_asked
        return known


def is_stored(patterns: Sequence[Pattern]) -> bool:
    """Whether history can hold anything of these."""
    return any(one.kind is None or one.kind in _STORED for one in patterns)


@dataclass(slots=True)
class MissedRows:
    """Reads again what was published."""

    history: History
    published_row: int
    """The row of the last publication that was delivered, of anything."""

    async def horizon(self, patterns: Sequence[Pattern], after: int, *, max_bytes: int, received: int) -> int:
        """The row after which to go on so that no more than so many bytes come, and nothing that was received earlier
        (µs); `after` itself if all that came after it is still here and within both."""
        if not is_stored(patterns) or after >= self.published_row:
            return after
        query = HistoryQuery(after_row=after, takes=Matching(patterns))
        return await self.history.horizon(query, max_bytes=max_bytes, received=received)

    async def after(
        self,
        patterns: Sequence[Pattern],
        after: int,
        *,
        limit: int,
        max_bytes: int | None = None,
        may_see: Callable[[str, Kind, str], bool],
    ) -> Missed:
        """The publications among at most `limit` rows after a row, in their order; all of those rows but the last have
        less than `max_bytes` of values."""
        told = self.published_row
        if not is_stored(patterns) or after >= told:
            return Missed(publications=(), last_row=max(after, told), has_more=False)
        query = HistoryQuery(after_row=after, takes=Matching(patterns), limit=limit, max_bytes=max_bytes)
        rows = await self.history.read(query)
        has_more = len(rows) >= limit or (max_bytes is not None and sum(len(row.value) for row in rows) >= max_bytes)
        last = rows[-1].row_id if has_more else max(told, rows[-1].row_id if rows else 0)
        publications = await self._publications(rows, may_see)
        # What is committed and not delivered yet comes to the subscribers when it is.
        published = self.published_row
        if rows and rows[-1].row_id > published:
            publications = [each for each in publications if each.row_id <= published]
        return Missed(publications=publications, last_row=min(last, published), has_more=has_more)

    async def _publications(
        self, rows: Sequence[Row], may_see: Callable[[str, Kind, str], bool]
    ) -> Sequence[Publication]:
        """What subscribers got of these rows and may be seen."""
        seen: dict[tuple[str, str, str], bool] = {}
        publications = []
        until = perf_counter() + SLICE_S
        for row in rows:
            if perf_counter() > until:
                await asyncio.sleep(0)
                until = perf_counter() + SLICE_S
            if _is_late(row):
                continue
            series = (row.thing_id, row.kind, row.name)
            if series not in seen:
                seen[series] = may_see(row.thing_id, Kind(row.kind), row.name)
            if seen[series]:
                publications.append(_publication(row))
        return publications


def _is_late(row: Row) -> bool:
    """A value that was older than the latest one when it came: no subscriber got it."""
    return bool(row.quality & Quality.LATE) and row.kind == Kind.PROPERTY


def _publication(row: Row) -> Publication:
    return StoredPublication(
        twin=TwinID.parse(row.thing_id),
        thing_id=row.thing_id,
        kind=Kind(row.kind),
        name=row.name,
        value=None,
        payload=row.value,
        created=row.created,
        row_id=row.row_id,
    )
