"""The lake as DataFrames, exactly as its manifest says: the bulk path of all our jobs.

The manifest is resolved on the driver into a list of files, pruned by gateway and day, and Spark reads those. A plain
`read.parquet` of the folder would also see files that a killed writer left and both sides of a compaction.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from spark import schemas
from spark.checks import compare
from spark.descriptions import INTERVALS, declared_intervals
from things import lake as layout
from things.errors import StorageDamaged
from things.lake import MANIFEST, Part, Snapshot
from things.manifest import HEAD, head_of, needed, snapshot_from

_PART = re.compile(r"(readings/gateway=[^/\s]+/day=[\d-]+/part-(\d+)-(\d+)-\d+\.parquet)")
_LOOKS = 3
_URL = re.compile(r"[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


def readings(
    session: SparkSession,
    lake: str | Path,
    *,
    things: Sequence[str] = (),
    names: Sequence[str] = (),
    kinds: Sequence[str] = (),
    days: tuple[str, str] | None = None,
    gateways: Sequence[str] = (),
    rows: Mapping[str, tuple[int, int]] | None = None,
) -> DataFrame:
    """Readings with `gateway` and `day`; empty selections mean all. `days` is the first and the last, inclusive, and so
    are `rows`, the row ids by gateway: of gateways that are not there, none.

    Raises StorageDamaged or NewerSchema where the lake is not what its manifest says.
    """
    parts = [
        part
        for snapshot in snapshots(session, lake, gateways)
        for part in snapshot.parts
        if part.table == layout.READINGS
        and (days is None or days[0] <= part.day <= days[1])
        and (rows is None or _holds(part, snapshot.gateway, rows))
    ]
    frame = _read(session, lake, layout.READINGS, parts, schemas.READINGS)
    for column, wanted in (("thing_id", things), ("name", names), ("kind", kinds)):
        if wanted:
            frame = frame.where(F.col(column).isin(list(wanted)))
    if rows is not None:
        bounds = [(F.col("gateway") == one) & F.col("row_id").between(*span) for one, span in rows.items()]
        frame = frame.where(reduce(or_, bounds, F.lit(False)))
    return frame


def table(session: SparkSession, lake: str | Path, name: str, *, gateways: Sequence[str] = ()) -> DataFrame:
    """One of the small tables (`things`, `presence`, `requests`), each row once."""
    schema = {
        layout.THINGS: schemas.THINGS,
        layout.PRESENCE: schemas.PRESENCE,
        layout.REQUESTS: schemas.REQUESTS,
    }[name]
    parts = [part for found in snapshots(session, lake, gateways) for part in found.parts if part.table == name]
    return _read(session, lake, name, parts, schema)


def snapshots(session: SparkSession, lake: str | Path, gateways: Sequence[str] = ()) -> Sequence[Snapshot]:
    """What each gateway's manifest amounts to now, by gateway."""
    for _ in range(_LOOKS - 1):
        # Listing and reading take a while, in which a commit may come: then the head is beyond what was listed.
        try:
            return _snapshots(session, lake, gateways)
        except StorageDamaged:
            continue
    return _snapshots(session, lake, gateways)


def _snapshots(session: SparkSession, lake: str | Path, gateways: Sequence[str]) -> Sequence[Snapshot]:
    local = _local(str(lake))
    found = _manifest_here(local, gateways) if local is not None else _manifest_there(session, str(lake), gateways)
    missing = set(gateways) - set(found)
    if missing:
        raise StorageDamaged(f"the lake at {lake} has no manifest of gateway {', '.join(sorted(missing))}")
    return [_snapshot(gateway, files) for gateway, files in sorted(found.items())]


def intervals(session: SparkSession, lake: str | Path, *, gateways: Sequence[str] = ()) -> DataFrame | None:
    """Expected intervals that Thing Descriptions declare (`skep:interval`): `gateway, thing_id, kind, name,
    interval_us`, from the newest version of each; None when there is none."""
    parts = [
        part for found in snapshots(session, lake, gateways) for part in found.parts if part.table == layout.THINGS
    ]
    if not parts:
        return None
    described = _read(session, lake, layout.THINGS, parts, schemas.THINGS)
    # One small scan: finding the newest with Spark would shuffle, and a job that rolls up waits for this first.
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for row in described.select("gateway", "thing_id", "td_version", "td").collect():
        key = (row.gateway, row.thing_id)
        if row.td_version >= newest.get(key, (0, ""))[0]:
            newest[key] = (row.td_version, row.td)
    found = [
        (gateway, thing_id, kind, name, interval)
        for (gateway, thing_id), (_, td) in newest.items()
        if "skep:interval" in td
        for kind, name, interval in declared_intervals(td)
    ]
    return session.createDataFrame(found, INTERVALS) if found else None


def damage(text: str) -> StorageDamaged | None:
    """What Spark's own words say of a file of this lake that it could not read; None where they say nothing of one."""
    found = _PART.search(text)
    if found is None:
        return None
    path, first, last = found.groups()
    return StorageDamaged(f"{path}, rows {int(first)} to {int(last)}, cannot be read: `skep history verify` says more")


def _holds(part: Part, gateway: str, rows: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a file can hold some of these rows."""
    first, last = rows.get(gateway, (0, -1))
    return part.first <= last and part.last >= first


def _snapshot(gateway: str, files: Mapping[str, Callable[[], bytes]]) -> Snapshot:
    try:
        head = head_of(files[HEAD](), gateway) if HEAD in files else None
        return snapshot_from(gateway, files.keys(), head, lambda name: files[name]())
    except FileNotFoundError as error:
        raise StorageDamaged(f"{error.filename} vanished while it was read") from error


def _manifest_here(lake: Path, gateways: Sequence[str]) -> dict[str, dict[str, Callable[[], bytes]]]:
    """The files of each manifest by name, to be read where they are needed."""
    found: dict[str, dict[str, Callable[[], bytes]]] = {}
    for gateway in gateways or ("*",):
        for path in sorted(lake.glob(f"{MANIFEST}/gateway={gateway}/*.json")):
            found.setdefault(path.parent.name.removeprefix("gateway="), {})[path.name] = path.read_bytes
    return found


def _manifest_there(
    session: SparkSession, lake: str, gateways: Sequence[str]
) -> dict[str, dict[str, Callable[[], bytes]]]:
    """The same of a lake that only Spark can see: the driver needs no client for the filesystem. What is not needed is
    listed and not read."""
    base = f"{lake.rstrip('/')}/{MANIFEST}"
    listed: dict[str, list[str]] = {}
    for gateway in gateways or ("*",):
        for path in _paths(session, f"{base}/gateway={gateway}/*.json"):
            folder, _, name = path.rpartition("/")
            listed.setdefault(folder.rpartition("gateway=")[2], []).append(name)
    wanted = [
        f"{base}/gateway={gateway}/{name}"
        for gateway, names in listed.items()
        for name in [*needed(names), *(one for one in names if one == HEAD)]
    ]
    texts = {}
    if wanted:
        read = (
            session.read.option("wholetext", True)
            .text(wanted)
            .select(F.col("_metadata.file_path").alias("path"), "value")
        )
        texts = {_unquoted(row.path): row.value.encode() for row in read.collect()}
    by_name = {tuple(path.rpartition("gateway=")[2].split("/", 1)): text for path, text in texts.items()}

    def reading(gateway: str, name: str) -> Callable[[], bytes]:
        return lambda: by_name[gateway, name]

    return {gateway: {name: reading(gateway, name) for name in names} for gateway, names in listed.items()}


def _paths(session: SparkSession, pattern: str) -> Sequence[str]:
    try:
        # Of binary files the content is read only where it is selected.
        found = (
            session.read.format("binaryFile").load(pattern).select(F.col("_metadata.file_path").alias("path")).collect()
        )
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return [_unquoted(row.path) for row in found]


def _unquoted(path: str) -> str:
    return path.replace("%3D", "=")


def _read(
    session: SparkSession, lake: str | Path, table_name: str, parts: Sequence[Part], schema: StructType
) -> DataFrame:
    if not parts:
        return session.createDataFrame([], schema)
    base = str(lake).rstrip("/")
    local = _local(base)
    if local is not None:
        base = str(local.absolute())
        for part in parts:
            if not (local / part.path).exists():
                raise StorageDamaged(
                    f"{part.path}, rows {part.first} to {part.last}, is in the manifest but not in the lake {lake}"
                )
    compare(session, base, parts, local)
    files = [f"{base}/{part.path}" for part in parts]
    return session.read.schema(schema).option("basePath", f"{base}/{table_name}").parquet(*files)


def _local(lake: str) -> Path | None:
    """The lake as a folder that this process can see; None when only Spark can."""
    text = lake.removeprefix("file://")
    if _URL.match(text):
        return None
    path = Path(text)
    return path if path.is_dir() else None
