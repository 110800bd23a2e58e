"""`skep upgrade`: what this version has to change in a data folder, tried, done, and undone."""

from pathlib import Path

import anyio
import click

from skep.cli.homes import entered_home
from skep.cli.output import print_json
from skep.cli.plain import plain
from things.errors import Unavailable


@click.command(epilog="Example: skep upgrade --dry-run --home ./site")
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
@click.option("--dry-run", is_flag=True, help="Try it on copies, and change nothing. A runtime may run.")
@click.option("--back", is_flag=True, help="Undo the last upgrade, for the version that was there before.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def upgrade(home: Path | None, dry_run: bool, back: bool, as_json: bool) -> None:
    """Bring the stores of a data folder to this version's schema. A start does the same by itself.

    Each store is copied first (NAME.before-N); --back puts these copies in place again and sets aside what is there:
    what was committed since is gone, but for readings.
    """
    from gateway.config import Config
    from gateway.schemas import due
    from gateway.stores import open_stores
    from gateway.upgrading import go_back, tried

    folder = entered_home(home).absolute()
    if not folder.is_dir():
        raise Unavailable(f"there is no data folder {folder}")
    if dry_run and back:
        raise click.UsageError("--dry-run and --back exclude each other")
    if back:
        stores = go_back(folder)
        if as_json:
            print_json({"undone": stores})
        for name in () if as_json else stores:
            click.echo(plain(f"{name}: as it was before the upgrade; what was there is set aside"))
        return
    config = Config.load(folder)
    changes = due(folder, config)
    tried(folder, changes)

    async def opened() -> None:
        async with open_stores(folder, config, "a command without a runtime"):
            pass

    if changes and not dry_run:
        anyio.run(opened)
    if as_json:
        print_json(
            [
                {"store": one.store, "from": one.found, "to": one.wanted, "steps": list(one.steps), "copy": one.copy}
                for one in changes
            ]
        )
        return
    for one in changes:
        kept = "make a copy of it yourself" if one.copy is None else f"a copy is kept as {one.copy}"
        click.echo(plain(f"{one.store}: schema {one.found} to {one.wanted} ({'; '.join(one.steps)}); {kept}"))
    if not changes:
        click.echo("nothing to do: the data folder is of this version")
    elif dry_run:
        click.echo("tried on copies: it can be done, and nothing was changed")
