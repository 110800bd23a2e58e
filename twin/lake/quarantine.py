"""Damaged parts that were taken out of their tables: their bytes, as far as there are any, under `_quarantine/`, and
beside them what the manifest said of each, so that one that turns up again can be put back."""

from collections.abc import Sequence

from pydantic_core import from_json

from things.errors import StorageDamaged
from things.jsontext import encode
from things.lake import Commit, Part, Snapshot, part_document, part_of
from twin.lake.manifest import Manifest

QUARANTINE = "_quarantine"
_RECORD = ".json"


def set_aside(manifest: Manifest, snapshot: Snapshot, damaged: Sequence[Part]) -> Snapshot:
    """Take live parts out of their tables, by one commit. Nothing is deleted before a day has passed."""
    place = manifest.place
    for part in damaged:
        if place.exists(part.path):
            data = place.read(part.path)
            place.write(f"{QUARANTINE}/{part.path}", lambda file, data=data: file.write(data))  # type: ignore[misc]
        record = encode(part_document(part))
        place.write(_record_of(part), lambda file, record=record: file.write(record))  # type: ignore[misc]
    commit = Commit(
        gateway=snapshot.gateway,
        seq=snapshot.seq + 1,
        first=snapshot.sealed + 1,
        last=snapshot.sealed,
        replaces=tuple(part.path for part in damaged),
    )
    return manifest.commit(snapshot, commit)


def records(manifest: Manifest, snapshot: Snapshot) -> list[Part]:
    """The parts that are set aside. Raises StorageDamaged for a record that is none."""
    live = {part.path for part in snapshot.parts}
    found = []
    for file in manifest.place.walk(QUARANTINE):
        if not file.path.endswith(_RECORD) or f"/gateway={manifest.gateway}/" not in file.path:
            continue
        try:
            part = part_of(from_json(manifest.place.read(file.path)))
        except (KeyError, TypeError, ValueError) as error:
            raise StorageDamaged(f"{file.path} does not name a part: {error!r}") from error
        # A part whose commit did not come about is set aside anew, if it has to be.
        if part.path not in live:
            found.append(part)
    return found


def forget(manifest: Manifest, part: Part) -> None:
    """Remove what is set aside of a part whose rows are in their table again."""
    manifest.place.remove(f"{QUARANTINE}/{part.path}")
    manifest.place.remove(_record_of(part))


def _record_of(part: Part) -> str:
    return f"{QUARANTINE}/{part.path}{_RECORD}"
