"""Whether parts are what was written, before Spark's own Parquet reader, which cannot tell, reads them.

Each part is hashed once in a session: a local lake by the driver, any other by Spark itself, where the files are.
"""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from things.errors import StorageDamaged
from things.lake import Part

_HASHERS = 4
_known: dict[tuple[str, int, int, int], str] = {}
"""Hashes of local files, by path, inode, size and time of the last change."""
_seen: set[tuple[str, str]] = set()
"""URL and hash of files elsewhere that were compared: parts are never changed."""


def compare(session: SparkSession, base: str, parts: Sequence[Part], local: Path | None) -> None:
    """Raises StorageDamaged, naming the first part whose content is not what its commit says."""
    if local is not None:
        with ThreadPoolExecutor(_HASHERS, "hash") as hashing:
            found = list(hashing.map(lambda part: _hash(local / part.path), parts))
    else:
        new = [part for part in parts if (f"{base}/{part.path}", part.sha256) not in _seen]
        hashes = {part.path: part.sha256 for part in parts} | (_hashes(session, base, new) if new else {})
        found = [hashes[part.path] for part in parts]
    for part, digest in zip(parts, found, strict=True):
        if digest != part.sha256:
            raise StorageDamaged(
                f"{part.path}, rows {part.first} to {part.last}, cannot be read: the content is not what was written"
            )
    if local is None:
        _seen.update((f"{base}/{part.path}", part.sha256) for part in parts)


def _hash(path: Path) -> str:
    status = path.stat()
    key = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
    if key not in _known:
        with path.open("rb") as file:
            _known[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _known[key]


def _hashes(session: SparkSession, base: str, parts: Sequence[Part]) -> dict[str, str]:
    """By the part's path; all are of one table."""
    frame = session.read.format("binaryFile").load([f"{base}/{part.path}" for part in parts])
    rows = frame.select("path", F.sha2("content", 256).alias("digest")).collect()
    found = {row.path.replace("%3D", "="): row.digest for row in rows}
    by_path = {path[path.rindex(f"/{parts[0].table}/") + 1 :]: digest for path, digest in found.items()}
    return {part.path: by_path.get(part.path, "") for part in parts}
