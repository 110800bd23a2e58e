"""How much hot history is kept: days and bytes, by whole files, oldest first.

The file that is written stays, and so does what the lake does not have yet, unless told otherwise: a budget that is too
small then shows as `over`, for an operator to see, instead of as missing readings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from twin.history.files import DayFile, day_of

DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HotBudget:
    """What may be kept; None is no bound. `drop_unsealed` lets readings go that are nowhere else."""

    days: float | None = None
    bytes: int | None = None
    drop_unsealed: bool = False


class Excess(NamedTuple):
    """Files that go, and how many bytes and days the rest is still over budget."""

    files: Sequence[DayFile]
    over_bytes: int
    over_days: int


def excess(files: Sequence[DayFile], budget: HotBudget, *, now: int, sealed: int) -> Excess:
    """What of `files` (by rising row id, the last one being written) is beyond the budget. `sealed` is the last row the
    lake has."""
    kept = sum(file.size_bytes for file in files)
    first_day = "" if budget.days is None else day_of(now - int(budget.days * DAY_US))
    going: list[DayFile] = []
    for file in files[:-1]:
        too_much = budget.bytes is not None and kept > budget.bytes
        if not (too_much or file.day < first_day):
            continue
        if file.last > sealed and not budget.drop_unsealed:
            break  # what is newer is not sealed either
        going.append(file)
        kept -= file.size_bytes
    rest = [file for file in files if file not in going]
    over_bytes = 0 if budget.bytes is None else max(0, kept - budget.bytes)
    over_days = 0
    if first_day and rest and rest[0].day < first_day:
        over_days = (date.fromisoformat(first_day) - date.fromisoformat(rest[0].day)).days
    return Excess(going, over_bytes, over_days)
