"""Verification: every file the manifest names is there, is the one that was written, and holds the rows it should.

What is damaged can be set aside under `_quarantine/`, by a commit that says so: readers then go on without it, and
nothing is deleted.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from things.lake import SCHEMA_KEY, SCHEMA_VERSION, TABLES, Commit, Part
from twin.lake.manifest import Manifest

QUARANTINE = "_quarantine"
CHUNK = 1 << 20


class Verified(NamedTuple):
    """What was looked at, and what is wrong: `{path, first, last, rows, code, detail}` each."""

    parts: int
    rows: int
    problems: list[dict[str, Any]]
    unlisted: list[str]
    """Files that no commit names: left by a killed writer, or foreign. They are no part of any table."""
    quarantined: int


def verify(manifest: Manifest, *, quarantine: bool = False) -> Verified:
    """Check all live files; with `quarantine`, take the damaged ones out of the tables."""
    snapshot = manifest.snapshot()
    problems = []
    rows = 0
    damaged: list[Part] = []
    for part in snapshot.parts:
        fault = _fault(manifest, part)
        if fault is None:
            rows += part.rows
            continue
        damaged.append(part)
        code, detail = fault
        problems.append(
            {
                "path": part.path,
                "first": part.first,
                "last": part.last,
                "rows": part.rows,
                "code": code,
                "detail": detail,
            }
        )
    unlisted = list(_unlisted(manifest, {part.path for part in snapshot.parts}))
    if quarantine and damaged:
        for part in damaged:
            if manifest.place.exists(part.path):
                data = manifest.place.read(part.path)
                manifest.place.write(f"{QUARANTINE}/{part.path}", lambda file, data=data: file.write(data))  # type: ignore[misc]
        manifest.commit(
            snapshot,
            Commit(
                gateway=snapshot.gateway,
                seq=snapshot.seq + 1,
                first=snapshot.sealed + 1,
                last=snapshot.sealed,
                replaces=tuple(part.path for part in damaged),
            ),
        )
    return Verified(len(snapshot.parts), rows, problems, unlisted, len(damaged) if quarantine else 0)


def _fault(manifest: Manifest, part: Part) -> tuple[str, str] | None:
    place = manifest.place
    if not place.exists(part.path):
        return "missing", "the file is not there"
    digest = hashlib.sha256()
    with place.filesystem.open_input_stream(part.path) as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != part.sha256:
        return "damaged", "the content is not what was written"
    try:
        with place.filesystem.open_input_file(part.path) as file:
            metadata = pq.read_metadata(file)
    except (OSError, pa.ArrowException) as error:
        return "unreadable", str(error)
    version = (metadata.metadata or {}).get(SCHEMA_KEY.encode())
    if version is not None and int(version) > SCHEMA_VERSION:
        return "newer-schema", f"written with schema {version.decode()}"
    if metadata.num_rows != part.rows:
        return "damaged", f"holds {metadata.num_rows} rows"
    return None


def _unlisted(manifest: Manifest, live: set[str]) -> Iterator[str]:
    known = live | {path for path, _ in manifest.replaced()}
    for table in TABLES:
        if table == "rollups":
            continue  # jobs write there, each under its own rules
        for file in manifest.place.walk(f"{table}/gateway={manifest.gateway}"):
            if file.path not in known:
                yield file.path
