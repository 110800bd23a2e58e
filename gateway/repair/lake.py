"""The lake's damaged parts, from a backup or from rows that are still hot. Nothing runs meanwhile."""

from collections.abc import Iterable, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.backup.contents import LAKE
from gateway.backup.places import Source
from gateway.config import Config
from gateway.home import gateway_id
from gateway.inventory import HISTORY
from runtime.clocks import wall_clock
from things.lake import MANIFEST

if TYPE_CHECKING:
    from twin.lake.mending import Mended


def has_lake(home: Path, config: Config) -> bool:
    """Whether there is one in the data folder; one elsewhere may be large and far, and is mended when it is named."""
    return config.history.lake is None and (home / LAKE / MANIFEST).is_dir()


def mended_lake(home: Path, config: Config, backup: Source | None) -> "Mended":
    """Read every part and mend what is damaged. Raises StorageDamaged, StorageFailed where the manifest, or the backup,
    cannot be read."""
    from twin.lake.hot import HotFiles
    from twin.lake.manifest import Manifest
    from twin.lake.mending import Mender  # with Arrow
    from twin.lake.places import place_of

    manifest = Manifest(place_of(config.history.lake or home / LAKE), gateway_id(home), wall_clock)
    copies = None if backup is None else partial(_copies, backup)
    return Mender(manifest, HotFiles(home / HISTORY)).mend(copies)


def _copies(backup: Source, wanted: Set[str]) -> Iterable[tuple[str, bytes]]:
    for path, content in backup.contents():
        folder, _, inside = path.partition("/")
        if folder == LAKE and inside in wanted:
            yield inside, content.read()
