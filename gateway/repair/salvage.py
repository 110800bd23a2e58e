"""Rows of a damaged SQLite file into a new one with the same tables."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from gateway.repair.logs import Log
from gateway.repair.pages import Field, Found, Pages

Row = Mapping[str, Field]


@dataclass(slots=True, kw_only=True)
class Salvaged:
    """What came out of one file: rows by table, those that were read but cannot be right or are there already, and what
    could not be read."""

    rows: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    bad_pages: int = 0
    bad_rows: int = 0
    bad_frames: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is known to be lost."""
        return not (self.bad_pages or self.bad_rows or self.bad_frames or self.refused)

    def __str__(self) -> str:
        kept = ", ".join(f"{count} {table}" for table, count in sorted(self.rows.items())) or "no rows"
        lost = [
            f"{count} {what}"
            for count, what in (
                (self.bad_pages, "pages"),
                (self.bad_rows, "rows"),
                (self.bad_frames, "pages of the log"),
                (self.refused.total(), "rows that cannot be right"),
            )
            if count
        ]
        return f"{kept} salvaged; " + (f"not read: {', '.join(lost)}" if lost else "nothing is known to be lost")


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    columns: tuple[str, ...]
    alias: int | None
    """The column that is the rowid."""
    kinds: tuple[tuple[type, ...], ...]

    def fits(self, row: Found) -> bool:
        """Whether a row can be of this table, by number and kind of its columns."""
        if len(row.fields) > len(self.columns):
            return False
        return all(isinstance(one, kinds) for one, kinds in zip(row.fields, self.kinds, strict=False))

    def named(self, row: Found) -> dict[str, Field]:
        values = dict(zip(self.columns, row.fields, strict=False))
        if self.alias is not None:
            values[self.columns[self.alias]] = row.rowid
        return values


def salvage(
    damaged: Path,
    log: Path,
    into: sqlite3.Connection,
    *,
    but: Collection[str] = (),
    is_sound: Callable[[str, Row], bool],
) -> Salvaged:
    """Copy what can be read of `damaged` and its write-ahead log into the tables of `into`, a fresh database whose
    tables have all columns of the old one, and commit. Tables in `but` are left as they are; rows that are not sound
    are refused. Nothing is written to the damaged files."""
    report, read = Salvaged(), Log(log)
    tables = [_table(into, name) for (name,) in into.execute(_NAMES).fetchall()]
    with closing(Pages(damaged, read)) as pages, into:
        roots = pages.roots()
        for table in tables:
            if table.name in roots:
                fitting = (row for row in pages.rows(roots[table.name]) if _counted(table.fits(row), table, report))
                _take(into, table, fitting, but, is_sound, report)
        for name, root in roots.items():  # what is not a table of ours is known, too, and belongs to none of ours
            if name not in {table.name for table in tables}:
                for _ in pages.rows(root):
                    pass
        for rows in pages.stray():
            owners = [table for table in tables if rows and all(table.fits(row) for row in rows)]
            if len(owners) == 1:
                _take(into, owners[0], rows, but, is_sound, report)
        report.bad_pages, report.bad_rows = len(pages.bad_pages), pages.bad_rows
    report.bad_frames = read.bad_frames
    return report


_NAMES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid"
_KINDS: Mapping[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "BIGINT": (int,),
    "BOOLEAN": (int,),
    "DOUBLE PRECISION": (int, float),
    "BLOB": (bytes,),
}


def _table(into: sqlite3.Connection, name: str) -> _Table:
    columns, kinds, alias = [], [], None
    found = into.execute(f'PRAGMA table_info("{name}")').fetchall()
    for number, column, kind, is_needed, _, key in found:
        columns.append(column)
        allowed = _KINDS.get(kind, (str,))
        if kind == "INTEGER" and key and sum(1 for other in found if other[5]) == 1:
            alias, allowed = number, (type(None), int)
        kinds.append(allowed if is_needed or key else (*allowed, type(None)))
    return _Table(name, tuple(columns), alias, tuple(kinds))


def _counted(fits: bool, table: _Table, report: Salvaged) -> bool:
    if not fits:
        report.refused[table.name] += 1
    return fits


def _take(
    into: sqlite3.Connection,
    table: _Table,
    rows: Iterable[Found],
    but: Collection[str],
    is_sound: Callable[[str, Row], bool],
    report: Salvaged,
) -> None:
    for row in rows:
        if table.name in but:
            continue
        values = table.named(row)
        if not is_sound(table.name, values):
            report.refused[table.name] += 1
            continue
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        statement = f'INSERT OR IGNORE INTO "{table.name}" ({names}) VALUES ({marks})'
        stored = into.execute(statement, tuple(values.values())).rowcount
        (report.rows if stored else report.refused)[table.name] += 1
