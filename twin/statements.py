"""Prepared statements that several stores need."""

from sqlalchemy import Engine, Table
from sqlalchemy.dialects import postgresql, sqlite

from twin.database import Prepared


def upsert(into: Table, engine: Engine) -> Prepared:
    """Insert a row, or replace all but the key of the one that is there. Parameters are the table's columns."""
    row = (postgresql.insert if engine.dialect.name == "postgresql" else sqlite.insert)(into)
    keys = [column.name for column in into.primary_key]
    rest = {column.name: row.excluded[column.name] for column in into.c if column.name not in keys}
    return Prepared(row.on_conflict_do_update(index_elements=keys, set_=rest), engine)
