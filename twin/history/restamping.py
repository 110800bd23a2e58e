"""Rows that a wrong clock stamped: where they are, and their times set right.

The order of rows is that of their ids, whatever the clock said. Where `received` falls from one row to the next, the
clock was set back, and the rows before that were stamped ahead; where flagged rows end, it was not trusted until then.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from things.lake import Quality
from things.lateness import SET_BACK_US
from twin.history.files import DayFile, close_span, reader, writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubtful:
    """Rows next to each other whose times are wrong by about as much."""

    first: int
    last: int
    by: int
    """What to add (µs); off by how long nothing came when the clock was set."""


def doubtful(files: Sequence[DayFile]) -> list[Doubtful]:
    """The rows that a wrong clock stamped, as far as they show it themselves. Reads all of them."""
    found: list[Doubtful] = []
    rises: list[tuple[int, int]] = []
    """Rows before which nothing came for a while, or the clock was set ahead; and their times."""
    flagged: int | None = None
    last, at = 0, -SET_BACK_US - 1
    for row_id, received, is_flagged in _rows(files):
        if flagged is not None and not is_flagged:
            found.append(Doubtful(first=flagged, last=last, by=received - at))
        elif at - received > SET_BACK_US:
            ahead = next((first for first, began in rises if began > received), last)
            found.append(Doubtful(first=ahead, last=last, by=received - at))
        if not is_flagged:
            flagged = None
        elif flagged is None:
            flagged = row_id
        if at - received > SET_BACK_US:
            rises.clear()
        elif received - at > SET_BACK_US:
            rises.append((row_id, received))
        last, at = row_id, received
    return found


def restamp(files: Sequence[DayFile], first: int, last: int, by: int) -> int:
    """Add `by` (µs) to the times that the gateway gave to rows, both inclusive; how many they are. What an agent said
    of the time of a reading stays. The rows are flagged, and `source_time` keeps what stood there. Each file in one
    transaction; nothing may run."""
    changed = 0
    for file in files:
        if file.last < first or file.first > last:
            continue
        with closing(writer(file)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            changed += connection.execute(_RESTAMP, {"first": first, "last": last, "by": by}).rowcount
            connection.execute("COMMIT")
        if file.min_created is not None:
            close_span(file)
    return changed


_RESTAMP = f"""UPDATE OR IGNORE rows SET
    source_time = CASE WHEN created = received THEN coalesce(source_time, created) ELSE source_time END,
    created = CASE WHEN created = received THEN created + :by ELSE created END,
    received = received + :by, quality = quality & ~{int(Quality.CLOCK)} | {int(Quality.RESTAMPED)}
    WHERE row_id BETWEEN :first AND :last"""


def _rows(files: Sequence[DayFile]) -> Iterator[tuple[int, int, bool]]:
    """Row id, `received`, and whether it is flagged as of a wrong clock."""
    for file in files:
        with reader(file.path) as connection:
            for row_id, received, quality in connection.execute(
                "SELECT row_id, received, quality FROM rows ORDER BY row_id"
            ):
                yield row_id, received, bool(quality & Quality.CLOCK)
