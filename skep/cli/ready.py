"""`skep ready`: whether the runtime of a data folder serves, for health checks and scripts.

It asks `/readyz` over the control socket with nothing but the standard library: a health check runs every few seconds,
and needs neither a listener nor a login.
"""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import click

from skep.cli.access import SOCKET
from skep.cli.homes import entered_home
from skep.cli.output import console
from skep.cli.plain import plain
from things.errors import Unavailable

TIMEOUT_S = 5.0


class _Control(http.client.HTTPConnection):
    """HTTP over the control socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


@click.command(epilog="Example: skep ready --home ./site && echo up")
@click.option("--home", type=click.Path(path_type=Path), help="Data folder. [default: $SKEP_HOME, ~/.skep]")
def ready(home: Path | None) -> None:
    """Say whether the runtime of a data folder serves. Exit code 6: it does not, or does not answer in time."""
    folder = entered_home(home)
    said = _asked(folder)
    if reasons := said.get("reasons"):
        raise Unavailable("; ".join(f"{name}: {reason}" for name, reason in reasons.items()))
    console().print("ready")
    for name, warning in said.get("warnings", {}).items():
        console().print(f"  {name}: {plain(str(warning))}", soft_wrap=True, markup=False)


def _asked(folder: Path) -> dict[str, Any]:
    connection = _Control(folder / SOCKET)
    try:
        connection.request("GET", "/readyz")
        said = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"no runtime answers in {folder}") from error
    finally:
        connection.close()
    return said if isinstance(said, dict) else {}
