"""Message ids seen lately, so that a repeated message is recognised even where it does not say when it happened."""

from collections import OrderedDict

MAX_RECENT = 100_000
RECENT_US = 600_000_000

Series = tuple[str, str, str]


class RecentIDs:
    """Row ids by (series, hashed message id), for the last ids and minutes; used by the writer thread alone."""

    def __init__(self, *, max_ids: int = MAX_RECENT, max_age_us: int = RECENT_US) -> None:
        self._max_ids = max_ids
        self._max_age_us = max_age_us
        self._rows: OrderedDict[tuple[Series, int], tuple[int, int]] = OrderedDict()

    def find(self, series: Series, mid: int, now: int) -> int | None:
        """The row that has this message, if it came within the time."""
        found = self._rows.get((series, mid))
        if found is None or abs(now - found[1]) > self._max_age_us:
            return None
        return found[0]

    def add(self, series: Series, mid: int, row_id: int, received: int) -> None:
        """Remember one committed row; the oldest is forgotten over the bound."""
        self._rows[series, mid] = (row_id, received)
        if len(self._rows) > self._max_ids:
            self._rows.popitem(last=False)
