"""How commands fail: one line for people, an exit code for scripts.

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | what was asked for ended unsuccessfully: a request failed, a check found something |
| 2 | the command line is wrong |
| 3 | refused: no or wrong credentials, not allowed |
| 4 | unknown: Thing, name, request, account, file |
| 5 | conflict: exists already, or the state does not allow it |
| 6 | not now: not connected, timed out, expired, unreachable, switched off |
| 7 | invalid input or configuration |
| 8 | storage full, failing or damaged |
| 9 | in use: the data folder or a port |
| 70 | a fault in skep itself |
| 130 | interrupted |
"""

import errno
import os
import sys
import traceback

import click

from skep.cli.plain import plain
from things import errors
from things.errors import Invalid, SkepError

INTERNAL = 70
INTERRUPTED = 130

_EXIT_CODES: tuple[tuple[type[SkepError], int], ...] = (
    (errors.ConfigInvalid, 7),
    (errors.Invalid, 7),
    (errors.TooLarge, 7),
    (errors.Unauthenticated, 3),
    (errors.Forbidden, 3),
    (errors.NotFound, 4),
    (errors.Conflict, 5),
    (errors.NotConnected, 6),
    (errors.TimedOut, 6),
    (errors.Expired, 6),
    (errors.RateLimited, 6),
    (errors.QueueFull, 6),
    (errors.TooMany, 6),
    (errors.Unavailable, 6),
    (errors.AgentFailed, 1),
    (errors.Rejected, 1),
    (errors.StorageFull, 8),
    (errors.StorageFailed, 8),
    (errors.StorageDamaged, 8),
    (errors.Locked, 9),
    (errors.AddressInUse, 9),
)


class Unsuccessful(SkepError):
    """What was asked for ended badly, and that was said already: only the exit code is left to give."""


def exit_code(error: SkepError) -> int:
    """The exit code of an error, by its class."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def told(error: BaseException) -> int:
    """Say on the error stream what went wrong and return the exit code."""
    error = _innermost(error)
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case Unsuccessful():
            return 1
        case click.UsageError():
            click.echo(f"usage: {error.format_message()}", err=True)
            if error.ctx is not None:
                click.echo(f"try: {error.ctx.command_path} --help", err=True)
            return 2
        case click.ClickException():
            click.echo(f"usage: {error.format_message()}", err=True)
            return 2
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case SkepError():
            click.echo(plain(f"{error.code}: {error.detail}"), err=True)
            if isinstance(error, Invalid):
                for problem in error.problems[1:20]:
                    click.echo(plain(f"{problem.code}: {problem.pointer or '/'}: {problem.detail}"), err=True)
            return exit_code(error)
        case BrokenPipeError():
            # Whoever read the output has seen enough; Python's own flush at exit must not complain again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return told(errors.StorageFull(f"no space left: {error.filename or 'the disk is full'}"))
        case OSError():
            click.echo(f"unavailable: {error.strerror or error}: {error.filename or ''}".rstrip(": "), err=True)
            return 6
        case _:
            return _fault(error)


def _fault(error: BaseException) -> int:
    click.echo(f"internal: {type(error).__name__}: {error}", err=True)
    if os.environ.get("SKEP_TRACEBACK"):
        traceback.print_exception(error)
    else:
        click.echo("set SKEP_TRACEBACK=1 to see where", err=True)
    return INTERNAL


def _innermost(error: BaseException) -> BaseException:
    """The one error in a task group's wrapping; of several the first that is ours."""
    while isinstance(error, BaseExceptionGroup):
        ours = [item for item in error.exceptions if isinstance(item, SkepError | BaseExceptionGroup)]
        error = (ours or list(error.exceptions))[0]
    return error
