"""Which rows the lake has, read in this process: nothing runs meanwhile."""

from pathlib import Path

from gateway.config import Config
from gateway.home import gateway_id
from gateway.repair.history import Sealed
from runtime.clocks import wall_clock
from things.lake import READINGS, SET_ASIDE, TABLES


def sealed_rows(home: Path, config: Config) -> Sealed:
    """Raises StorageDamaged, StorageFailed where the lake cannot say it."""
    from twin.lake.manifest import Manifest  # with Arrow
    from twin.lake.parts import dataset_of, files_of, naming
    from twin.lake.places import place_of
    from twin.lake.tables import arrow_schema

    place = place_of(config.history.lake or home / "lake")
    snapshot = Manifest(place, gateway_id(home), wall_clock).snapshot()

    def has(first: int, last: int) -> set[int]:
        found = set[int]()
        for table in (READINGS, SET_ASIDE):
            parts = [one for one in snapshot.parts if one.table == table and one.first <= last and one.last >= first]
            files = files_of(place, parts)
            with naming(files, str(place.url)):
                batches = dataset_of(files, arrow_schema(TABLES[table])).to_batches(columns=["row_id"])
                found.update(row_id for batch in batches for row_id in batch.column(0).to_pylist())
        return found

    return Sealed(mark=snapshot.sealed, has=has)
