"""What clients published themselves and asked not to be given (MQTT 5's no local), for whoever reads it again.

A publication says who published it, its row of history does not. So the rows are noted as they are withheld, and looked
up when a session is given what it has missed.
"""

from array import array
from bisect import bisect_left

from things.bounded import Recent

MAX_ROWS = 8_192
"""Of one client; the oldest are forgotten first."""
MAX_CLIENTS = 1_000

Key = tuple[str, str]
"""Account and client id: a session goes on with another connection."""


class OwnRows:
    """Rows of each client, the latest of each and those of the latest clients. Eight bytes each."""

    def __init__(self) -> None:
        self._rows: Recent[Key, array[int]] = Recent(MAX_CLIENTS)

    def add(self, key: Key, row_id: int) -> None:
        """Note one; rows rise."""
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = array("q")
        elif len(rows) >= MAX_ROWS:
            del rows[: MAX_ROWS // 4]
        rows.append(row_id)

    def has(self, key: Key, row_id: int) -> bool:
        """Whether it was noted."""
        rows = self._rows.get(key)
        if rows is None:
            return False
        place = bisect_left(rows, row_id)
        return place < len(rows) and rows[place] == row_id
