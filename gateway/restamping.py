"""`skep history restamp`: the times of rows that a wrong clock stamped, set right while nothing runs.

What is sealed keeps its times: parts of the lake never change. The next start writes what was done to the audit log.
"""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, text

from gateway.config import Config
from gateway.inventory import HISTORY, write_inventory
from gateway.repair.sealed import sealed_rows
from gateway.stocktaking import inventory_of
from things.errors import Invalid
from twin.history import files
from twin.history.restamping import Doubtful, doubtful, restamp

MAX_BY_S = 100 * 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Restamped:
    """What was done."""

    first: int
    """The first row that was not sealed."""
    last: int
    rows: int


def doubtful_rows(home: Path, config: Config) -> list[Doubtful]:
    """Rows of a held home, not sealed yet, that a wrong clock stamped. Raises StorageDamaged, StorageFailed."""
    mark = sealed_rows(home, config).mark
    found = doubtful(files.found_files(home / HISTORY)[0]) if (home / HISTORY).is_dir() else []
    return [Doubtful(first=max(one.first, mark + 1), last=one.last, by=one.by) for one in found if one.last > mark]


def restamp_rows(home: Path, config: Config, first: int, last: int, by_s: float) -> Restamped:
    """Add `by_s` to the gateway's own times of rows of a held home. Raises Invalid where all of them are sealed or
    their times would be none."""
    by = round(by_s * 1_000_000)
    if not by or abs(by_s) > MAX_BY_S:
        raise Invalid("rows are moved by a number of seconds, at most a hundred years")
    mark = sealed_rows(home, config).mark
    if last <= mark:
        raise Invalid(f"rows up to {mark} are sealed and keep their times")
    first = max(first, mark + 1)
    inventory = inventory_of(home)
    inventory.asked.append(f"restamp rows {first} to {last} by {by_s:g} s")
    write_inventory(home, inventory)
    changed = restamp(files.found_files(home / HISTORY)[0], first, last, by)
    engine = create_engine(config.database_url or f"sqlite:///{home / 'twin.db'}")
    try:
        with engine.begin() as connection:
            connection.execute(text(_LATEST), {"first": first, "last": last, "by": by})
    finally:
        engine.dispose()
    return Restamped(first=first, last=last, rows=changed)


_LATEST = """UPDATE latest SET received = received + :by,
    created = CASE WHEN created = received THEN created + :by ELSE created END
    WHERE row_id BETWEEN :first AND :last"""
