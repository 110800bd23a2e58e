"""`skep backup` and `skep restore`: a data folder copied as a whole, checked, and made again elsewhere."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from skep.cli.access import Access, run_async
from skep.cli.failures import Unsuccessful
from skep.cli.homes import entered_home
from skep.cli.output import print_json, print_table
from skep.cli.plain import plain

T = TypeVar("T")

NICE = 10

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_passphrase = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path),
    help="A file (0600) whose first line is the passphrase; else $SKEP_BACKUP_PASSPHRASE.",
)


@click.group()
def backup() -> None:
    """Back a data folder up; check and list backups."""


@backup.command(epilog="Example: skep backup create /mnt/usb/site.tar.gz --home ./site")
@click.argument("to", type=click.Path(path_type=Path))
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
@click.option("--without-keys", is_flag=True, help="Leave out keys, certificates and tokens of local agents.")
@click.option("--with-lake", is_flag=True, help="With the lake that history.lake names.")
@click.option("--encrypt", is_flag=True, help="Encrypt by the passphrase.")
@click.option("--keep", type=click.IntRange(min=1), help="Of a folder's backups, let only so many stay.")
@click.option("--rate", type=click.FloatRange(min=0.1), metavar="MB/S", help="Read so much at most.")
@_passphrase
@_json
def create(
    to: Path,
    home: Path | None,
    without_keys: bool,
    with_lake: bool,
    encrypt: bool,
    keep: int | None,
    rate: float | None,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Back up into TO: a folder that holds many backups, or a file (.tar, .tar.gz). Works while the runtime runs."""
    from dataclasses import asdict
    from functools import partial

    import anyio.to_thread

    from gateway.backup.passphrases import passphrase_of
    from gateway.backup.taken import Taken
    from gateway.backup.taking import take
    from gateway.config import Config

    folder = entered_home(home).absolute()
    access = Access(home=folder, url=None, token=None, ca=None, json=as_json)

    async def work() -> Taken:
        # Where nothing runs, the folder is opened meanwhile: what a crash left is seen and finished as at any start.
        async with access.opened():
            return await anyio.to_thread.run_sync(
                partial(
                    _behind_others,
                    take,
                    folder,
                    to,
                    config=Config.load(folder),
                    keys=not without_keys,
                    lake=with_lake,
                    passphrase=_needed(passphrase_of(passphrase_file)) if encrypt else None,
                    keep=keep,
                    bytes_per_second=None if rate is None else rate * 1e6,
                )
            )

    found = run_async(work())
    if as_json:
        print_json(asdict(found))
        return
    where = Path(found.to) / found.name if found.name != Path(found.to).name else found.to
    click.echo(plain(f"backup  {where}: {found.files} files, {found.bytes} bytes, up to row {found.last_row}"))
    for what, where_ in found.outside.items():
        click.echo(plain(f"not in it: {what} ({where_})"))
    if not found.has_keys:
        click.echo("without keys: where it is restored, every token and certificate ends")
    elif not encrypt:
        click.echo("it holds the signing keys, unencrypted: who can read it can act as anybody")


@backup.command(epilog="Example: skep backup verify /mnt/usb/site")
@click.argument("backup_path", metavar="BACKUP", type=click.Path(path_type=Path))
@_passphrase
@_json
def verify(backup_path: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """Read all of a backup (of a folder: the newest) and compare it with its manifest. Exit code 1: it is damaged."""
    from gateway.backup.passphrases import passphrase_of
    from gateway.backup.places import source_of
    from gateway.backup.restoring import verify as verified

    source = source_of(backup_path, passphrase_of(passphrase_file))
    manifest, problems = verified(source)
    if as_json:
        print_json({**_summary(manifest), "problems": problems})
    else:
        for problem in problems:
            click.echo(plain(f"damaged  {problem}"))
        if not problems:
            click.echo(plain(f"all {len(manifest.files)} files of {manifest.begun} are as they were written"))
    if problems:
        raise Unsuccessful


@backup.command(epilog="Example: skep backup ls /mnt/usb/site")
@click.argument("folder", type=click.Path(path_type=Path))
@_passphrase
@_json
def ls(folder: Path, passphrase_file: Path | None, as_json: bool) -> None:
    """List the backups of a folder. Encrypted ones say more with their passphrase."""
    from gateway.backup.encryption import Keyring
    from gateway.backup.folders import found_folder
    from gateway.backup.passphrases import passphrase_of

    found = list(found_folder(folder.expanduser().absolute(), Keyring(passphrase_of(passphrase_file))).listed())
    if as_json:
        print_json(
            [
                {"name": one.name, "bytes": one.bytes, "encrypted": one.is_encrypted}
                | (_summary(one.manifest) if one.manifest else {})
                for one in found
            ]
        )
        return
    rows = [
        (
            one.name,
            one.bytes,
            one.is_encrypted,
            one.manifest and one.manifest.has_keys,
            one.manifest and one.manifest.last_row,
        )
        for one in found
    ]
    print_table(("backup", "own bytes", "encrypted", "keys", "last row"), rows, empty="no whole backup")


@click.command(epilog="Example: skep restore /mnt/usb/site --home ./site")
@click.argument("backup_path", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--home", type=click.Path(path_type=Path), required=True, help="The data folder to make.")
@click.option("--replace", is_flag=True, help="Set what is in the data folder aside, inside it.")
@click.option("--without-keys", is_flag=True, help="Make new keys; every token and certificate ends.")
@_passphrase
@_json
def restore(
    backup_path: Path, home: Path, replace: bool, without_keys: bool, passphrase_file: Path | None, as_json: bool
) -> None:
    """Make a data folder of BACKUP: a file, a folder (its newest backup), or one backup of a folder.

    The whole backup is checked first; the data folder is then complete, or as it was.
    """
    from gateway.backup.passphrases import passphrase_of
    from gateway.backup.places import source_of
    from gateway.backup.restoring import restore as restored_of

    home = entered_home(home)
    source = source_of(backup_path, passphrase_of(passphrase_file))
    found = restored_of(source, home, replace=replace, keys=not without_keys)
    if as_json:
        aside = {"aside": found.aside, "schemaAside": found.schema_aside}
        print_json({**_summary(found.manifest), "keys": found.has_keys, **aside})
        return
    manifest = found.manifest
    click.echo(
        plain(f"restored  {home}: {len(manifest.files)} files of {manifest.begun}, up to row {manifest.last_row}")
    )
    if found.aside is not None:
        click.echo(plain(f"what was there is in {home / found.aside}"))
    if found.schema_aside is not None:
        click.echo(f"what was on the database server is in its schema {found.schema_aside}")
    if not found.has_keys:
        click.echo("without keys: new ones are made at the start; every token and certificate has ended")
    for what, where in manifest.outside.items():
        click.echo(plain(f"not in the backup: {what} ({where})"))


def _behind_others(work: Callable[..., T], *given: Any, **options: Any) -> T:
    """Do it in this thread at low priority, so that a runtime beside it comes first."""
    with suppress(OSError):  # on Linux this is a matter of single threads
        standing = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(NICE, standing))
    return work(*given, **options)


def _summary(manifest: Any) -> dict[str, Any]:
    return {
        "begun": manifest.begun,
        "ended": manifest.ended,
        "installation": manifest.installation,
        "gateway": manifest.gateway,
        "keys": manifest.has_keys,
        "lastRow": manifest.last_row,
        "seq": manifest.seq,
        "files": len(manifest.files),
        "size": manifest.size,
        "outside": dict(manifest.outside),
    }


def _needed(passphrase: str | None) -> str:
    if passphrase is None:
        raise click.UsageError("--encrypt needs --passphrase-file or SKEP_BACKUP_PASSPHRASE")
    return passphrase
