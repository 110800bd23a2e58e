"""The `skep` command: groups and commands by name, each imported only when it is called.

Every failure is one line, `code: detail`, on the error stream; exit codes are in `skep.cli.failures`.
"""

import importlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from things.suggestions import did_you_mean

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("skep.cli.run:run", "Run the runtime in a data folder."),
    "client": ("skep.cli.clients:client", "Accounts: add, list, remove, role, password, disable, enable."),
    "things": ("skep.cli.things:things", "Things and what they offer."),
    "models": ("skep.cli.models:models", "Thing Models, and descriptions made of them."),
    "watch": ("skep.cli.watch:watch", "Follow values and events as they come."),
    "invoke": ("skep.cli.invoke:invoke", "Ask a Thing to act."),
    "requests": ("skep.cli.requests:requests", "Requests and how they went."),
    "trace": ("skep.cli.trace:trace", "Follow one request through all that it passed."),
    "history": ("skep.cli.history:history", "What Things said before; sealing it for Spark."),
    "lake": ("skep.cli.lake:lake", "The sealed history: how it stands, merging, checks."),
    "asof": ("skep.cli.asof:asof", "The value of everything at a moment of the past."),
    "plot": ("skep.cli.plot:plot", "Draw the history of a property to a picture."),
    "spark": ("skep.cli.spark:spark", "Jobs over the sealed history."),
    "replay": ("skep.cli.replay:replay", "Play a CSV recording as a Thing."),
    "simulate": ("skep.cli.simulate:simulate", "Run simulated devices as an agent."),
    "authz": ("skep.cli.authz:authz", "Why somebody may or may not."),
    "node": ("skep.cli.node:node", "The messaging node: what it routes."),
    "stores": ("skep.cli.stores:stores", "The stores of a data folder: what they hold, what is gone."),
    "repair": ("skep.cli.repair:repair", "Save what can be read of damaged stores."),
    "upgrade": ("skep.cli.upgrade:upgrade", "Bring a data folder to this version, and back."),
    "backup": ("skep.cli.backup:backup", "Back a data folder up; check and list backups."),
    "restore": ("skep.cli.backup:restore", "Make a data folder of a backup."),
    "audit": ("skep.cli.audit:audit", "The log of security acts."),
    "login": ("skep.cli.login:login", "Log in at a gateway far away, for all later commands."),
    "logout": ("skep.cli.login:logout", "End such a login."),
    "ready": ("skep.cli.ready:ready", "Whether the runtime of a data folder serves."),
    "config": ("skep.cli.config:config", "What is configured, and from where; checks and changes."),
    "service": ("skep.cli.service:service", "Run skep as a service of systemd."),
    "completion": ("skep.cli.completion:completion", "Completion for bash, zsh and fish."),
    "doctor": ("skep.cli.doctor:doctor", "Look for what commonly goes wrong."),
    "demo": ("skep.cli.demo:demo", "The whole journey on this machine, with simulated devices."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and which suggests the nearest name."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        # A shell that asks what could follow is not to be told that nothing can.
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"no command {name!r}{did_you_mean(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the summaries too: a shell waits for this at each Tab."""
        own = [(name, command.get_short_help_str()) for name, command in self.commands.items()]
        named = own + [(name, summary) for name, (_, summary) in self._lazy.items()]
        commands = [CompletionItem(name, help=summary) for name, summary in named if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The lazy commands' summaries are known here, so that `skep --help` imports nothing."""
        own = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
        rows = own + [(name, summary) for name, (_, summary) in self._lazy.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Try: skep demo · skep run --home ./site · skep things ls --home ./site",
)
@click.version_option(package_name="skep", prog_name="skep")
def cli() -> None:
    """A digital-twin runtime for IoT gateways: Things by MQTT and HTTPS, history into Spark."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    from skep.cli.failures import told

    try:
        result = cli.main(args=None if arguments is None else list(arguments), prog_name="skep", standalone_mode=False)
    except BaseException as error:
        return told(error)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
