"""What all jobs are told on the command line, and how they answer: a table for people, JSON for programs."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from pydantic_core import to_json
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DateType, TimestampType

from things.errors import Invalid
from things.times import rfc3339

PIPE_COLUMNS = 200
"""Into a file or a pipe rows are not folded at the 80 columns of a small terminal."""


def parser(name: str, about: str) -> argparse.ArgumentParser:
    """The options every job has."""
    made = argparse.ArgumentParser(prog=f"skep spark {name}", description=about)
    where = made.add_mutually_exclusive_group(required=True)
    where.add_argument("--home", type=Path, metavar="DIR", help="a gateway's folder; its lake is DIR/lake")
    where.add_argument("--lake", metavar="URL", help="a lake on any filesystem that Spark can reach")
    made.add_argument("--master", help="where to run, e.g. local[2] or spark://host:7077")
    made.add_argument("--remote", help="a Spark Connect server, e.g. sc://host:15002")
    made.add_argument("--thing", action="append", default=[], dest="things", metavar="ID", help="only this Thing")
    made.add_argument("--name", action="append", default=[], dest="names", metavar="NAME", help="only this name")
    made.add_argument("--gateway", action="append", default=[], dest="gateways", help="only this gateway")
    made.add_argument("--days", nargs=2, metavar=("FIRST", "LAST"), help="UTC days, both included: YYYY-MM-DD")
    made.add_argument("--json", action="store_true", help="print a JSON array of rows")
    made.add_argument("--out", metavar="URL", help="also write the table as Parquet, replacing the days it covers")
    made.add_argument(
        "--publish", metavar="THING", help="also publish the rows as a Thing of the account of SKEP_TOKEN"
    )
    made.add_argument("--url", help="with --publish: the gateway, https://HOST:PORT")
    made.add_argument("--ca", metavar="FILE", help="with --publish: who signed the gateway's certificate")
    made.add_argument("--steps", action="store_true", help="instead of the table, print how it goes as lines of JSON")
    return made


def lake_of(options: argparse.Namespace) -> str:
    """The lake that the options name. Raises Invalid when it is not there."""
    lake = options.lake or Path(options.home) / "lake"
    if ":/" not in str(lake) and not Path(lake).is_dir():
        raise Invalid(f"there is no lake at {lake}; has anything been sealed? (`skep history seal`)")
    return str(lake)


def selection_of(options: argparse.Namespace) -> dict[str, Any]:
    """The selection as `spark.lake.readings` takes it."""
    days = tuple(options.days) if options.days else None
    for day in days or ():
        try:
            datetime.strptime(day, "%Y-%m-%d")
        except ValueError as error:
            raise Invalid(f"{day[:20]!r} is not a day such as 2026-03-31") from error
    return {"things": options.things, "names": options.names, "gateways": options.gateways, "days": days}


def rows_of(frame: DataFrame) -> Iterator[dict[str, Any]]:
    """The rows as plain values, times as RFC 3339 text in UTC, fetched partition by partition."""
    # Python's naive datetimes would be in the local zone of whoever runs this; µs have no zone.
    columns = [
        F.unix_micros(field.name).alias(field.name)
        if isinstance(field.dataType, TimestampType)
        else F.date_format(field.name, "yyyy-MM-dd").alias(field.name)
        if isinstance(field.dataType, DateType)
        else F.col(field.name)
        for field in frame.schema.fields
    ]
    times = {field.name for field in frame.schema.fields if isinstance(field.dataType, TimestampType)}
    for row in frame.select(*columns).toLocalIterator():
        yield {
            name: rfc3339(value) if name in times and value is not None else value
            for name, value in row.asDict().items()
        }


def show(frame: DataFrame, *, as_json: bool, title: str, out: IO[str] | None = None) -> int:
    """Print the rows; how many there were."""
    out = sys.stdout if out is None else out
    return _show_json(rows_of(frame), out) if as_json else _show_table(rows_of(frame), frame.columns, title, out)


def _show_json(rows: Iterable[dict[str, Any]], out: IO[str]) -> int:
    count = 0
    out.write("[")
    for row in rows:
        out.write(",\n" if count else "\n")
        out.write(to_json(row, inf_nan_mode="null").decode())
        count += 1
    out.write("\n]\n" if count else "]\n")
    out.flush()
    return count


def _show_table(rows: Iterable[dict[str, Any]], columns: Sequence[str], title: str, out: IO[str]) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in columns:
        table.add_column(name, overflow="fold")
    count = 0
    for row in rows:
        table.add_row(*map(_cell, row.values()))
        count += 1
    Console(file=out, width=None if out.isatty() else PIPE_COLUMNS).print(table)
    return count


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
