"""`skep spark`: jobs over the sealed history, each also `python -m spark.jobs.<name>`."""

import asyncio
import importlib
import importlib.util
from pathlib import Path

import click

from skep.cli.access import chosen_url, run_async
from skep.cli.homes import default_home, entered_home
from things.errors import Unavailable

JOBS = {
    "rollup": "Roll numeric readings up by window.",
    "resample": "Readings on a regular grid.",
    "availability": "How much of the time agents were there.",
    "anomalies": "Readings that do not fit the others.",
    "compact": "Merge small parts of the lake.",
    "snapshot": "Every property as of a moment.",
}


class JobCommand(click.Command):
    """Hands everything after its name to the job, which has the options."""

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(
            name,
            help=summary,
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )

    def invoke(self, ctx: click.Context) -> int:
        arguments = list(ctx.args)
        asks = {"--home", "--lake", "--help", "-h"}
        if not any(argument.partition("=")[0] in asks for argument in arguments):
            arguments += ["--home", str(default_home())]
        try:
            module = importlib.import_module(f"spark.jobs.{self.name}")
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith("spark.jobs"):
                raise Unavailable(f"this version has no job {self.name!r}") from error
            raise Unavailable(f"Spark jobs need more packages: pip install 'skep[spark]' ({error.name})") from error
        return int(module.main(arguments))


@click.group(epilog="Example: skep history seal --home ./site && skep spark rollup --window 5m --home ./site")
def spark() -> None:
    """Jobs over the sealed history; seal it first with `skep history seal`.

    Every job takes --home or --lake, --json, --thing, --name, --days; see `skep spark rollup --help`.
    """


for _name, _summary in JOBS.items():
    spark.add_command(JobCommand(_name, _summary))


@spark.command(
    epilog="""\b
Examples:
  skep spark serve --home ./site
  skep invoke dtw:jobs:jobs recompute '{"day": "yesterday", "window": "1h"}' --wait --timeout 600 --home ./site
"""
)
@click.option("--home", type=click.Path(path_type=Path), help="Data folder of a running runtime; makes the account.")
@click.option("--url", envvar="SKEP_URL", help="A runtime elsewhere, https://HOST:PORT; needs --lake and a token.")
@click.option("--token", envvar="SKEP_TOKEN", help="The account's token; better by SKEP_TOKEN than on the line.")
@click.option("--ca", type=click.Path(path_type=Path), envvar="SKEP_CA", help="CA certificate of the runtime.")
@click.option("--lake", help="The lake to read. [default: that of the data folder]")
@click.option("--master", help="Where Spark runs, e.g. local[2] or spark://host:7077.")
@click.option("--account", default="jobs", show_default=True, help="Service account to speak as.")
@click.option("--thing", default="jobs", show_default=True, help="The Thing whose actions run jobs.")
def serve(
    home: Path | None,
    url: str | None,
    token: str | None,
    ca: Path | None,
    lake: str | None,
    master: str | None,
    account: str,
    thing: str,
) -> None:
    """Run jobs when asked by an action, and publish their tables as Things, until stopped."""
    url = chosen_url(home, url)
    if url is not None and (token is None or lake is None):
        raise click.UsageError("--url needs --lake, and --token or SKEP_TOKEN")
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable("Spark jobs need more packages: pip install 'skep[spark]'")

    async def work() -> None:
        from skep.cli.agents import speaker_at_home, speaker_by_url
        from skep.jobs import Jobs, Workplace

        folder = entered_home(home)
        if url is not None and token is not None:
            speaker = await speaker_by_url(url, account, token, ca)
        else:
            speaker = await speaker_at_home(folder, account, kind="service", token=token, ca=ca)
        if speaker.http is None:
            raise Unavailable("the runtime takes no HTTP, by which tables are published")
        authority = str(speaker.ca) if speaker.ca and speaker.http.startswith("https") else None
        place = Workplace(
            lake=["--lake", lake or _lake_of(folder)],
            url=speaker.http,
            token=speaker.token,
            ca=authority,
            master=master,
        )
        agent = speaker.agent()
        Jobs(agent, place, thing)
        async with agent:
            click.echo(f"dtw:{account}:{thing} runs jobs when asked; Ctrl-C ends it")
            await asyncio.Event().wait()

    run_async(work())


def _lake_of(home: Path) -> str:
    """The lake that a data folder's runtime seals into."""
    from gateway.config import Config

    return Config.load(home).history.lake or str(home / "lake")
