"""`skep lake`: how the sealed history stands, and what its gateway does by itself, done now."""

import click

from skep.cli.access import Access, access_options
from skep.cli.failures import Unsuccessful
from skep.cli.history import call_lake
from skep.cli.output import print_json, print_table
from things.messages import JSONValue


@click.group()
def lake() -> None:
    """The sealed history: how it stands, merging, checks."""


@lake.command(epilog="Example: skep lake status --home ./site")
@access_options
def status(access: Access) -> None:
    """Show what is sealed, and how many files it is in."""
    _shown(access, call_lake(access, "status"))


@lake.command(epilog="Example: skep lake compact --home ./site")
@click.option("--day", "days", multiple=True, metavar="YYYY-MM-DD", help="Only this day; may be given again.")
@access_options
def compact(access: Access, days: tuple[str, ...]) -> None:
    """Merge small parts now, all of them; the gateway itself does it bit by bit."""
    _shown(access, call_lake(access, "compact", {"days": list(days)}))


@lake.command(epilog="Example: skep lake vacuum --home ./site")
@access_options
def vacuum(access: Access) -> None:
    """Remove now what was replaced longer ago than `history.grace_s`; the gateway itself does it every now and then."""
    _shown(access, call_lake(access, "vacuum"))


@lake.command(epilog="Example: skep lake mend --home ./site")
@access_options
def mend(access: Access) -> None:
    """Make damaged parts again from rows that are still hot. Exit code 1: something stays damaged.

    `skep repair lake --from BACKUP` takes them from a backup, while nothing runs.
    """
    found = call_lake(access, "mend")
    left = found.get("left") if isinstance(found, dict) else None
    if access.json or not isinstance(found, dict) or not isinstance(left, list):
        print_json(found)
    else:
        click.echo(f"{found.get('parts')} parts with {found.get('rows')} rows are whole again")
        _print_parts(left, ("path", "first", "last", "rows", "detail"), empty="nothing else is damaged")
    if left:
        raise Unsuccessful


@lake.command(epilog="Example: skep lake verify --home ./site")
@click.option("--quarantine", is_flag=True, help="Set damaged parts aside, so that the others can be read again.")
@access_options
def verify(access: Access, quarantine: bool) -> None:
    """Read every part and compare it with what the manifest says. Exit code 1: something is damaged."""
    found = call_lake(access, "verify", {"quarantine": quarantine})
    problems = found.get("problems") if isinstance(found, dict) else None
    if access.json or not isinstance(found, dict) or not isinstance(problems, list):
        print_json(found)
    else:
        empty = f"all {found.get('parts')} parts are as they were written"
        _print_parts(problems, ("path", "first", "last", "code", "detail"), empty=empty)
    if problems:
        raise Unsuccessful


def _print_parts(parts: list[JSONValue], columns: tuple[str, ...], *, empty: str) -> None:
    rows = ([one.get(column) for column in columns] for one in parts if isinstance(one, dict))
    print_table(columns, rows, empty=empty)


def _shown(access: Access, found: JSONValue) -> None:
    if access.json or not isinstance(found, dict):
        print_json(found)
    else:
        print_table(("", ""), ((key, value) for key, value in found.items()))
