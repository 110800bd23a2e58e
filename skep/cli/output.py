"""What commands print: tables for people, JSON for programs."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import click
from pydantic import JsonValue
from pydantic_core import to_json

from skep.cli.plain import plain

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 200


@cache
def console() -> "Console":
    """The console of the standard output; plain where that is no terminal, or with NO_COLOR."""
    from rich.console import Console

    # Into a file or a pipe, rows are not folded at the 80 columns rich would take.
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def print_json(value: object) -> None:
    """The whole answer as one JSON document."""
    click.echo(to_json(value, indent=2).decode())


def print_line(value: object) -> None:
    """One JSON document a line, for streams."""
    click.echo(to_json(value).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing") -> None:
    """Rows under headings; `empty` in their place."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(cell(item) for item in row))
    if table.row_count:
        console().print(table)
    else:
        console().print(empty, style="dim")


def cell(value: object) -> str:
    """A value in a table: text as it is, everything else as JSON; brackets are not markup."""
    from rich.markup import escape

    if value is None:
        return ""
    return escape(plain(value if isinstance(value, str) else to_json(value).decode()))


def items_of(document: JsonValue) -> list[Mapping[str, JsonValue]]:
    """The items of a listing."""
    found = document.get("items") if isinstance(document, dict) else document
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def short_time(text: object) -> str:
    """A wire time to the second, for tables."""
    return text[:19].replace("T", " ") if isinstance(text, str) else ""
