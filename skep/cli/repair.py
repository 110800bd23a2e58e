"""`skep repair`: what can still be read of damaged stores, in new ones."""

from pathlib import Path

import click

from skep.cli.failures import Unsuccessful
from skep.cli.homes import entered_home
from skep.cli.output import print_json
from skep.cli.patience import held_in_time
from skep.cli.plain import plain
from things.errors import Unavailable


@click.command(epilog="Example: skep repair --home ./site")
@click.argument("stores", metavar="[STORE]...", nargs=-1)
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
@click.option(
    "--from",
    "backup",
    type=click.Path(path_type=Path),
    metavar="BACKUP",
    help="Parts of the lake come from this backup; of a folder of backups, from the newest.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="That of the backup: a file (0600) whose first line it is; else $SKEP_BACKUP_PASSPHRASE.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def repair(
    stores: tuple[str, ...], home: Path | None, backup: Path | None, passphrase_file: Path | None, as_json: bool
) -> None:
    """Read every store whole, and make those that are damaged again from what can be read of them.

    A damaged store is set aside, never changed; what could not be read is said. Nothing may run. STORE is accounts.db,
    twin.db, a file of history, as `history/2026-01-01.db`, or lake; all without. Damaged parts of the lake come from a
    backup, or from rows that are still hot. Exit code 1: something stays damaged.
    """
    from gateway.backup.passphrases import passphrase_of
    from gateway.backup.places import source_of
    from gateway.config import Config
    from gateway.repair.repairing import repair as repaired_of

    folder = entered_home(home).absolute()
    if not folder.is_dir():
        raise Unavailable(f"there is no data folder {folder}")
    source = None if backup is None else source_of(backup, passphrase_of(passphrase_file))
    with held_in_time(folder):
        outcomes = repaired_of(folder, Config.load(folder), stores, source)
    if as_json:
        print_json(
            [
                {"store": one.store, "repaired": one.is_repaired, "damaged": one.is_lost, "detail": one.detail}
                for one in outcomes
            ]
        )
    else:
        for one in outcomes:
            click.echo(plain(f"{one.store:28} {one.detail}"))
    if any(one.is_lost for one in outcomes):
        raise Unsuccessful
