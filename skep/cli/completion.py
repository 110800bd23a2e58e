"""`skep completion`: what a shell needs to complete commands, options and values, from the commands' own description.

The shell asks `skep` itself at each Tab, so that nothing has to be installed again with another version.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from things.errors import Unavailable
from things.whole_files import write_whole

PROGRAM = "skep"
ASKED_BY = "_SKEP_COMPLETE"
"""The variable by which a shell says that it asks."""
SHELLS = ("bash", "zsh", "fish")

_THEN = {
    "bash": "new shells have it, where the package bash-completion is installed; else add to ~/.bashrc:  . {file}",
    "zsh": "add to ~/.zshrc, before compinit:  fpath+=({folder})",
    "fish": "new shells have it",
}


@click.command(
    epilog="""\b
Examples:
  skep completion --install            for the shell you use
  skep completion zsh > _skep          to be put elsewhere"""
)
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--install", is_flag=True, help="Write it where the shell looks for it, for you alone.")
def completion(shell: str | None, install: bool) -> None:
    """Print the completion of a shell, or install it. Without SHELL: that of $SHELL."""
    chosen = shell or _shell(os.environ)
    script = script_of(chosen)
    if not install:
        click.echo(script, nl=False)
        return
    file = place_of(chosen, os.environ)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, script.encode(), mode=0o644)
    click.echo(f"{file} is written; {_THEN[chosen].format(file=file, folder=file.parent)}")


def script_of(shell: str) -> str:
    """What a shell reads. Raises Unavailable for a shell that cannot complete so."""
    from skep.cli import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise Unavailable(f"{shell} is none of {', '.join(SHELLS)}")
    try:
        return kind(cli, {}, PROGRAM, ASKED_BY).source().rstrip() + "\n"
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        raise Unavailable(f"{shell} cannot be asked for its version: {error}") from error


def place_of(shell: str, environment: Mapping[str, str]) -> Path:
    """Where a user's own completions lie."""
    home = Path(environment.get("HOME") or "~").expanduser()
    match shell:
        case "bash":
            data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
            folder = Path(environment.get("BASH_COMPLETION_USER_DIR") or data / "bash-completion")
            return folder / "completions" / PROGRAM
        case "fish":
            config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
            return config / "fish" / "completions" / f"{PROGRAM}.fish"
        case _:
            return home / ".zfunc" / f"_{PROGRAM}"


def _shell(environment: Mapping[str, str]) -> str:
    name = Path(environment.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"say for which shell: {', '.join(SHELLS)}")
    return name
