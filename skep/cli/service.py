"""`skep service`: the runtime as a service of systemd, from the first start of the machine on."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from skep.cli.homes import default_home
from skep.cli.systemd import STATE, Unit
from things import whole_files
from things.errors import Forbidden, Invalid, NotFound, Unavailable

MACHINE_UNITS = Path("/etc/systemd/system")
RUNNING = Path("/run/systemd/system")
"""Is there where systemd runs (sd_booted(3))."""

_Command = TypeVar("_Command", bound=Callable[..., Any])

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")


@click.group()
def service() -> None:
    """Run skep as a service of systemd."""


def _of_unit(command: _Command) -> _Command:
    """With the options that say which unit is meant."""
    for option in (
        click.option("--user", "is_users", is_flag=True, help="A service of your login, not of the machine."),
        click.option("--name", default="skep", show_default=True, help="Name of the unit."),
        click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: /var/lib/NAME; ~/.skep]"),
        click.option("--as", "account", metavar="ACCOUNT", help="System account it runs as. [default: one of its own]"),
    ):
        command = option(command)
    return command


@service.command(epilog="Example: skep service show > skep.service")
@_of_unit
def show(is_users: bool, name: str, home: Path | None, account: str | None) -> None:
    """Print the unit that `install` would write."""
    click.echo(_unit(is_users, name, home, account).text, nl=False)


@service.command(epilog="Example: sudo /opt/skep/bin/skep service install")
@_of_unit
@click.option("--no-start", is_flag=True, help="Start it with the machine, but not now; one that runs goes on.")
def install(is_users: bool, name: str, home: Path | None, account: str | None, no_start: bool) -> None:
    """Write the unit, and start it now and with the machine. What a unit of that name said before is replaced; if it
    runs, it is started anew."""
    unit = _unit(is_users, name, home, account)
    if not is_users:
        _must_be_root()
        if unit.user is None:
            _must_be_readable(unit.program)
    _must_run()
    folder = _folder(is_users)
    folder.mkdir(parents=True, exist_ok=True)
    whole_files.write_whole(folder / unit.file_name, unit.text.encode(), mode=0o644)
    _systemctl(is_users, "daemon-reload")
    _systemctl(is_users, "enable", unit.file_name)
    manager = "--user " if is_users else ""
    if not no_start:
        # `enable --now` would leave one that runs as it was, with the unit and the version of before.
        _systemctl(is_users, "restart", unit.file_name)
    click.echo(f"{folder / unit.file_name} is enabled" + ("" if no_start else " and runs"))
    if no_start and _is_active(is_users, unit.file_name):
        click.echo(f"  it runs as it was before, until:  systemctl {manager}restart {name}")
    click.echo(f"  how it is:  systemctl {manager}status {name}")
    click.echo(f"  its log:    journalctl {manager}-u {name}")
    click.echo(f"  commands:   {'' if is_users else 'sudo '}{unit.program} client ls --home {unit.home}")
    if is_users:
        click.echo("  to run it while nobody is logged in:  loginctl enable-linger")


@service.command(epilog="Example: sudo skep service uninstall")
@click.option("--user", "is_users", is_flag=True, help="A service of your login, not of the machine.")
@click.option("--name", default="skep", show_default=True, help="Name of the unit.")
def uninstall(is_users: bool, name: str) -> None:
    """Stop the service and remove its unit. The data folder stays."""
    file = _folder(is_users) / f"{_checked(name)}.service"
    if not file.exists():
        raise NotFound(f"there is no {file}")
    if not is_users:
        _must_be_root()
    _must_run()
    _systemctl(is_users, "disable", "--now", file.name)
    file.unlink()
    _systemctl(is_users, "daemon-reload")
    click.echo(f"{file} is removed; the data folder is as it was")


def _unit(is_users: bool, name: str, home: Path | None, account: str | None) -> Unit:
    _checked(name)
    program = _program()
    if is_users:
        if account is not None:
            raise click.UsageError("a service of your login runs as you; leave --as out")
        where = (home or default_home()).expanduser().absolute()
        return Unit(name=name, program=program, home=where, is_users=True)
    own = STATE / name
    where = (home or own).expanduser().absolute()
    if account is None and where != own:
        raise click.UsageError(f"say by --as whose folder {where} is; the service's own is {own}")
    return Unit(name=name, program=program, home=where, user=account)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Invalid(f"{name!r} cannot name a unit: small letters, digits and -, at most 31")
    return name


def _program() -> Path:
    """The `skep` of this installation."""
    found = Path(sys.executable).with_name("skep")
    if not found.exists():
        raise NotFound(f"there is no {found}; install skep into a virtual environment: python3 -m venv /opt/skep")
    return found


def _folder(is_users: bool) -> Path:
    if is_users:
        return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd" / "user"
    return MACHINE_UNITS


def _must_be_root() -> None:
    if os.geteuid() != 0:
        raise Forbidden("a service of the machine is installed by root: sudo, or --user for one of your login")


def _must_run() -> None:
    if not RUNNING.is_dir():
        raise Unavailable("systemd does not run here; `skep service show` prints the unit for where it does")


def _must_be_readable(program: Path) -> None:
    """A user that the service manager makes has to get at the program; of an account that is there, systemd says so
    itself."""
    for each in (program, *program.parents):
        if not each.stat().st_mode & 0o001:
            raise Forbidden(f"{program} cannot be run by a service: {each} is closed to others; use /opt/skep")


def _systemctl(is_users: bool, *arguments: str) -> None:
    done = _asked(is_users, *arguments)
    if done.returncode:
        raise Unavailable(f"{' '.join(done.args)}: {done.stderr.strip() or done.returncode}")


def _is_active(is_users: bool, unit: str) -> bool:
    return _asked(is_users, "is-active", "--quiet", unit).returncode == 0


def _asked(is_users: bool, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: Sequence[str] = ["systemctl", *(["--user"] if is_users else []), *arguments]
    return subprocess.run(command, capture_output=True, text=True)
