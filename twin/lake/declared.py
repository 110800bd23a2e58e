"""What Thing Descriptions declare of each series, by version, read from the lake's own `things` table."""

from collections.abc import Iterable, Mapping
from typing import Any

from things.declared import UNKNOWN, Declared, series_of
from things.lake import THINGS, THINGS_COLUMNS, Snapshot
from twin.lake.parts import dataset_of, files_of, naming
from twin.lake.places import Place
from twin.lake.tables import arrow_schema


class SeriesTypes:
    """Answers for any (Thing, kind, name, TD version). A version that never reached the lake is answered by the newest
    older one, so a value is typed by what was known of it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._loaded: set[str] = set()
        self._series: dict[str, list[tuple[int, Mapping[tuple[str, str], Declared]]]] = {}

    def load(self, snapshot: Snapshot) -> None:
        """Take in the parts of `things` that are not known yet."""
        new = [part for part in snapshot.parts if part.table == THINGS and part.path not in self._loaded]
        if not new:
            return
        files = files_of(self._place, new)
        with naming(files, f"the Thing Descriptions of the lake at {self._place.url} cannot be read"):
            self.add(dataset_of(files, arrow_schema(THINGS_COLUMNS)).to_table().to_pylist())
        self._loaded.update(part.path for part in new)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in Thing Descriptions: rows with `thing_id`, `td_version` and `td`."""
        for row in rows:
            versions = self._series.setdefault(str(row["thing_id"]), [])
            version = int(row["td_version"])
            if all(version != known for known, _ in versions):
                versions.append((version, series_of(row["td"])))
                versions.sort(key=lambda item: item[0])

    def __call__(self, thing_id: str, kind: str, name: str, td_version: int) -> Declared:
        found = UNKNOWN
        for version, series in self._series.get(thing_id, ()):
            if version > td_version:
                break
            found = series.get((kind, name), UNKNOWN)
        return found
