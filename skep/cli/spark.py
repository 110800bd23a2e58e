"""`skep spark`: jobs over the sealed history, each also `python -m spark.jobs.<name>`."""

import importlib

import click

from skep.cli.access import default_home
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
