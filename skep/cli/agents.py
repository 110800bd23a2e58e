"""How commands that speak for Things find the MQTT side of a runtime and an account to speak with."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import JsonValue

from skep.agent import Agent
from skep.cli.access import READY, SOCKET, default_home
from skep.consumer import Consumer
from things.errors import NotFound, Unavailable

T = TypeVar("T")


async def agent_for(home: Path, name: str, *, mqtt: str | None, token: str | None, ca: Path | None) -> Agent:
    """An agent of this account. With a data folder, the address comes from its runtime, and an account that does not
    exist yet is made; its token is kept in `{home}/agents/{name}.token`, for its owner only."""
    if mqtt is not None:
        if token is None:
            raise Unavailable("an agent needs --token (or SKEP_TOKEN) with --mqtt")
        return Agent(mqtt, name, token, ca=ca)
    if not (home / SOCKET).exists():
        raise Unavailable(f"no runtime serves {home}; start one with: skep run --home {home}")
    address, authority = addresses_of(home)
    return Agent(address, name, token or await _token_of(home, name), ca=ca or authority)


def addresses_of(home: Path) -> tuple[str, Path | None]:
    """Where the runtime of a data folder takes MQTT, and its CA."""
    try:
        ready: dict[str, JsonValue] = json.loads((home / READY).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Unavailable(f"the runtime of {home} has not said where it listens ({READY})") from error
    address = ready.get("mqtt") or ready.get("mqtts")
    if not isinstance(address, str):
        raise Unavailable(f"the runtime of {home} takes no MQTT")
    ca = ready.get("ca")
    return address, Path(ca) if isinstance(ca, str) and address.startswith("mqtts") else None


async def _token_of(home: Path, name: str) -> str:
    path = home / "agents" / f"{name}.token"
    with suppress(FileNotFoundError):
        return path.read_text("utf-8").strip()
    async with Consumer(socket=home / SOCKET) as consumer:
        made = await consumer.call("dtw:authn:admin", "addClient", {"clientID": name, "type": "agent"})
    if not isinstance(made, dict) or not isinstance(made.get("token"), str):
        raise NotFound(f"no token for {name!r}")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(str(made["token"]) + "\n", "utf-8")
    return str(made["token"])


def agent_options(default_agent: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """`--home`, `--agent`, `--mqtt`, `--token`, `--ca`, handed over as `home`, `agent`, `mqtt`, `token`, `ca`."""

    def decorated(command: Callable[..., T]) -> Callable[..., T]:
        def wrapped(*args: Any, home: Path | None, mqtt: str | None, **rest: Any) -> T:
            if home is not None and mqtt is not None:
                raise click.UsageError("give --home or --mqtt, not both")
            return command(*args, home=(home or default_home()).expanduser(), mqtt=mqtt, **rest)

        update_wrapper(wrapped, command)
        for option in (
            click.option("--ca", type=click.Path(path_type=Path), envvar="SKEP_CA", help="CA certificate for mqtts."),
            click.option("--token", envvar="SKEP_TOKEN", help="Its token; better by SKEP_TOKEN than on the line."),
            click.option("--mqtt", metavar="URL", help="Where to connect instead: mqtts://HOST:PORT."),
            click.option("--agent", default=default_agent, show_default=True, help="Account to speak as."),
            click.option(
                "--home",
                type=click.Path(path_type=Path),
                help="Data folder of a running runtime; makes the account if needed.",
            ),
        ):
            wrapped = option(wrapped)
        return wrapped

    return decorated
