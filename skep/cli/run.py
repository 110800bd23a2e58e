"""`skep run`: the runtime of one data folder, in the foreground."""

import gc
from pathlib import Path

import click

from skep.cli.homes import entered_home
from skep.cli.patience import patient


@click.command(
    epilog="""\b
Examples:
  skep run --home ./site
  skep run --home ./site --http 127.0.0.1:0 --https 127.0.0.1:0 --mqtt 127.0.0.1:0 --mqtts off --ready-file ready.json
"""
)
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
@click.option("--http", metavar="HOST:PORT", help="Plain HTTP; loopback only. `off` switches it off, port 0 is any.")
@click.option("--https", metavar="HOST:PORT", help="HTTPS.")
@click.option("--mqtt", metavar="HOST:PORT", help="Plain MQTT; loopback only.")
@click.option("--mqtts", metavar="HOST:PORT", help="MQTT over TLS.")
@click.option("--ready-file", type=click.Path(path_type=Path), help="JSON written when everything listens.")
def run(
    home: Path | None, http: str | None, https: str | None, mqtt: str | None, mqtts: str | None, ready_file: Path | None
) -> int:
    """Run the runtime of a data folder until it is told to stop (Ctrl-C, SIGTERM).

    Prints its addresses, and at the first start the code by which the first admin claims it. Settings are in
    DIR/skep.toml; listeners given here come before those in the file.
    """
    # What a start imports and loads stays: looking through it for garbage is a tenth of the start. Begun once it is up.
    gc.disable()
    from gateway.home import begun

    where = entered_home(home)
    with begun(where):
        from gateway.app import run as run_runtime

        return patient(
            lambda: run_runtime(where, http=http, https=https, mqtt=mqtt, mqtts=mqtts, ready_file=ready_file)
        )
