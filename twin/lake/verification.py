"""Verification: every file the manifest names is there, is the one that was written, and holds the rows it should.

What is damaged can be set aside (`twin.lake.quarantine`): readers then go on without it.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from things.lake import SCHEMA_KEY, SCHEMA_VERSION, TABLES, Part
from twin.lake.manifest import Manifest
from twin.lake.quarantine import set_aside

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
        fault = fault_of(manifest, part)
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
        set_aside(manifest, snapshot, damaged)
    return Verified(len(snapshot.parts), rows, problems, unlisted, len(damaged) if quarantine else 0)


def fault_of(manifest: Manifest, part: Part) -> tuple[str, str] | None:
    """What is wrong with a part, as code and detail; None if it is what was written."""
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
