"""Prepared statements that several stores need."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Engine, Insert, Table
from sqlalchemy.dialects import sqlite

from twin.database import Prepared

_COUNTS = (256, 64, 16, 4, 1)


class Rows:
    """An insert of any number of rows.

    SQLite gets statements of many rows: its driver lets other threads run at every step of a statement and waits for
    its turn afterwards, so that with a row a step a busy event loop makes that the greater part of a commit.
    """

    __slots__ = ("_is_sqlite", "_names", "_statements")

    def __init__(self, statement: Insert, engine: Engine) -> None:
        sql = str(statement.compile(dialect=engine.dialect))
        self._names = tuple(column.name for column in statement.table.c)
        self._is_sqlite = engine.dialect.name == "sqlite"
        one = f"({', '.join('?' * len(self._names))})"
        self._statements = [(count, sql.replace(one, ", ".join([one] * count), 1)) for count in _COUNTS]

    def run(self, connection: Connection, rows: Sequence[Sequence[object]]) -> int:
        """Insert rows of all columns in the table's order; how many were inserted or replaced."""
        driver = connection.connection.driver_connection
        assert driver is not None
        if not self._is_sqlite:
            with driver.cursor() as cursor:
                cursor.executemany(self._statements[-1][1], [dict(zip(self._names, row, strict=True)) for row in rows])
                return int(cursor.rowcount)
        done = first = 0
        for count, sql in self._statements:
            while len(rows) - first >= count:
                done += driver.execute(sql, list(chain.from_iterable(rows[first : first + count]))).rowcount
                first += count
        return done


def inserting(engine: Engine) -> Callable[[Table], Any]:
    """What makes an INSERT of the engine's dialect, with its ON CONFLICT."""
    if engine.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # with its drivers, which a gateway without a server never needs

        return postgresql.insert
    return sqlite.insert


def upsert(into: Table, engine: Engine) -> Prepared:
    """Insert a row, or replace all but the key of the one that is there. Parameters are the table's columns."""
    row = inserting(engine)(into)
    keys = [column.name for column in into.primary_key]
    rest = {column.name: row.excluded[column.name] for column in into.c if column.name not in keys}
    return Prepared(row.on_conflict_do_update(index_elements=keys, set_=rest), engine)
