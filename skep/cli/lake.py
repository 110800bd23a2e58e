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
        columns = ("path", "first", "last", "code", "detail")
        print_table(
            columns,
            ([one.get(column) for column in columns] for one in problems if isinstance(one, dict)),
            empty=f"all {found.get('parts')} parts are as they were written",
        )
    if problems:
        raise Unsuccessful


def _shown(access: Access, found: JSONValue) -> None:
    if access.json or not isinstance(found, dict):
        print_json(found)
    else:
        print_table(("", ""), ((key, value) for key, value in found.items()))
