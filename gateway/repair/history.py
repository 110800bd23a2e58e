"""Files of hot history: their rows in new ones.

A row keeps its id where it is not sealed yet. Where sealing has gone on past it, because the runtime ran on without
the file, it would never be sealed under that id: it gets a new one behind all others, as if it arrived now; its times
stay. What the lake has already is left there.
"""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gateway.repair.databases import log_of
from gateway.repair.salvage import Salvaged, salvage
from gateway.repair.soundness import is_sound
from twin.history import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What the lake has: everything up to `mark` that was there then."""

    mark: int
    has: Callable[[int, int], set[int]]
    """The row ids between two (inclusive) that it holds."""


@dataclass(slots=True, kw_only=True)
class Remade:
    """The new files of a damaged one; each may be without rows, and is None then."""

    found: Salvaged
    kept: Path | None = None
    """Its rows that are not sealed, under their ids."""
    moved: Path | None = None
    """Its rows that got new ids."""
    sealed: int = 0
    """Rows that the lake has."""
    last: int = 0
    """The last id that was given."""


def made_again(
    path: Path, scratch: Path, sealed: Sealed, *, others: Sequence[tuple[int, int]], last: int, stamp: int
) -> Remade:
    """Files in `scratch` with the rows that can be read of the one at `path`. `others`: row ids (first, last) of other
    files; `last`: the last that may have been given away. Neither can be ids of this one."""
    day = path.name.partition(".")[0]
    whole = files.create(scratch, day, 1, stamp=stamp)
    with closing(sqlite3.connect(whole.path)) as connection:
        connection.execute("DELETE FROM span")
        found = salvage(path, log_of(path), connection, is_sound=is_sound)
        found.rows.pop("span", None)
        with connection:
            lost = connection.execute("DELETE FROM rows WHERE key NOT IN (SELECT key FROM keys)").rowcount
            for first, end in (*others, (-files.MAX_INTEGER, 0), (last + 1, files.MAX_INTEGER)):
                lost += connection.execute("DELETE FROM rows WHERE row_id BETWEEN ? AND ?", (first, end)).rowcount
        found.refused["rows"] += lost
        found.rows["rows"] -= lost
        remade = Remade(found=found, last=last)
        first, end = connection.execute("SELECT min(row_id), max(row_id) FROM rows").fetchone()
        if first is None:
            whole.path.unlink()
            return remade
        behind = connection.execute("SELECT row_id FROM rows WHERE row_id <= ?", (sealed.mark,)).fetchall()
        has = sealed.has(first, min(end, sealed.mark)) if behind else set[int]()
        moved = [(row_id,) for (row_id,) in behind if row_id not in has]
        remade.sealed = len(behind) - len(moved)
        if moved:
            remade.moved = _moved(connection, moved, scratch, day, last + 1, stamp)
            remade.last = last + len(moved)
        with connection:
            connection.execute("DELETE FROM rows WHERE row_id <= ?", (sealed.mark,))
            (first,) = connection.execute("SELECT min(row_id) FROM rows").fetchone()
            connection.execute("DELETE FROM span")
            connection.execute("INSERT INTO span (first) VALUES (?)", (first or 1,))
    if first is None:
        whole.path.unlink()
    else:
        remade.kept = whole.path
    return remade


def _moved(
    source: sqlite3.Connection, row_ids: list[tuple[int]], scratch: Path, day: str, first: int, stamp: int
) -> Path:
    file = files.create(scratch, day, first, stamp=stamp)
    with closing(sqlite3.connect(file.path)) as connection:
        columns = "key, created, mid, value, received, quality, td_version, source_time"
        with connection:
            keys = source.execute("SELECT key, thing_id, kind, name FROM keys")
            connection.executemany("INSERT INTO keys (key, thing_id, kind, name) VALUES (?,?,?,?)", keys)
            for row_id, (old,) in enumerate(row_ids, start=first):
                row = source.execute(f"SELECT {columns} FROM rows WHERE row_id = ?", (old,)).fetchone()
                connection.execute(f"INSERT INTO rows (row_id, {columns}) VALUES (?{', ?' * 8})", (row_id, *row))
    return file.path
