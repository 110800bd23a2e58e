"""`skep stores`: what the stores of a data folder hold, what was set aside, and how to go on without a store."""

from pathlib import Path

import click

from skep.cli.failures import Unsuccessful
from skep.cli.homes import entered_home
from skep.cli.output import print_json
from skep.cli.patience import held_in_time
from skep.cli.plain import plain
from things.errors import NotFound, Unavailable

_home_option = click.option(
    "--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]"
)


@click.group()
def stores() -> None:
    """The stores of a data folder: what they hold, what is gone, and how to go on."""


@stores.command(epilog="Example: skep stores ls --home ./site")
@_home_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls(home: Path | None, as_json: bool) -> None:
    """List what each store held when last noted, and what was found gone or set aside. Exit code 1: some was."""
    from gateway.inventory import read_inventory, read_notes

    folder = _folder(home)
    inventory, notes = read_inventory(folder), read_notes(folder)
    found = {} if inventory is None else inventory.stores
    if as_json:
        print_json(
            {
                "installation": None if inventory is None else inventory.installation,
                "stores": found,
                "setAside": [{"store": one.store, "detail": one.detail, "at": one.at} for one in notes],
            }
        )
    else:
        for name, marks in sorted(found.items()):
            click.echo(plain(f"{name:28} {' · '.join(f'{counter} {number}' for counter, number in marks.items())}"))
        for one in notes:
            click.echo(plain(f"gone  {one.at} {one.store}: {one.detail}"))
    if notes:
        raise Unsuccessful


@stores.command(epilog="Example: skep stores clear --home ./site")
@click.argument("name", required=False)
@_home_option
def clear(name: str | None, home: Path | None) -> None:
    """End the warnings about a store, or about all: somebody has seen them. Works while the runtime runs."""
    from gateway.stocktaking import clear_notes

    gone = clear_notes(_folder(home), name)
    if not gone:
        raise NotFound("nothing was set aside" if name is None else f"nothing of {name} was set aside")
    for one in gone:
        click.echo(plain(f"cleared  {one.store}: {one.detail}"))


@stores.command(epilog="Example: skep stores reset accounts.db --home ./site")
@click.argument("name", type=click.Choice(["accounts.db", "twin.db"]))
@_home_option
def reset(name: str, home: Path | None) -> None:
    """Begin a store anew at the next start; what is there is moved aside, never removed. Nothing may run.

    Without accounts, the next start makes a claim code: whoever reads it becomes admin.
    """
    from gateway.stocktaking import ask_for

    folder = _folder(home)
    with held_in_time(folder):
        aside = ask_for(folder, name, anew=True)
    click.echo(plain(f"the next start begins {name} anew" + (f"; it was moved to {aside.name}" if aside else "")))


@stores.command(epilog="Example: skep stores accept accounts.db --home ./site")
@click.argument("name", type=click.Choice(["accounts.db", "twin.db", "rights.json"]))
@_home_option
def accept(name: str, home: Path | None) -> None:
    """Go on with a store as it is: shortened, or restored from somewhere else. Nothing may run."""
    from gateway.stocktaking import ask_for

    folder = _folder(home)
    with held_in_time(folder):
        ask_for(folder, name, anew=False)
    click.echo(f"the next start takes {name} as it is")


def _folder(home: Path | None) -> Path:
    folder = entered_home(home).absolute()
    if not folder.is_dir():
        raise Unavailable(f"there is no data folder {folder}")
    return folder
