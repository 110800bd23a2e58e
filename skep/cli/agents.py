"""How commands that speak for Things find the MQTT side of a runtime and an account to speak with."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic_core import to_json

from skep.agent import Agent
from skep.cli.access import SOCKET, serving
from skep.cli.homes import default_home, entered_home
from skep.consumer import Consumer
from things.errors import NotFound, Unavailable
from things.service_ids import ACCOUNTS, DIRECTORY

T = TypeVar("T")

_BROKER = re.compile(r"mqtts?://[^/\"{}]+")
_BASE = re.compile(r"\"(https?://[^/\"{}]+)/things/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """An account that speaks for Things, and where its runtime is reached."""

    account: str
    token: str
    mqtt: str
    http: str | None
    ca: Path | None

    def agent(self) -> Agent:
        return Agent(self.mqtt, self.account, self.token, ca=self.ca if self.mqtt.startswith("mqtts") else None)


async def agent_for(home: Path, name: str, *, mqtt: str | None, token: str | None, ca: Path | None) -> Agent:
    """An agent of this account: at `mqtt` with its token, or found by a data folder."""
    if mqtt is not None:
        if token is None:
            raise Unavailable("an agent needs --token (or SKEP_TOKEN) with --mqtt")
        return Agent(mqtt, name, token, ca=ca)
    return (await speaker_at_home(home, name, token=token, ca=ca)).agent()


async def speaker_at_home(
    home: Path, name: str, *, kind: str = "agent", token: str | None = None, ca: Path | None = None
) -> Speaker:
    """With a data folder the addresses come from its runtime, and an account that does not exist yet is made; its token
    is kept in `{home}/agents/{name}.token`, for its owner only."""
    await serving(home)
    async with Consumer(socket=home / SOCKET) as admin:
        token = token or await _token_of(admin, home, name, kind)
        return await _speaker(admin, name, token, ca or home / "certs" / "ca.pem")


async def speaker_by_url(url: str, name: str, token: str, ca: Path | None) -> Speaker:
    """The same of a runtime elsewhere."""
    async with Consumer(url, token=token, ca=ca) as consumer:
        return replace(await _speaker(consumer, name, token, ca, is_private=url.startswith("https")), http=url)


async def _speaker(consumer: Consumer, name: str, token: str, ca: Path | None, *, is_private: bool = False) -> Speaker:
    """Where the runtime is reached, as the forms of its own directory's TD say; `is_private`: by mqtts where it can."""
    text = to_json(await consumer.thing(DIRECTORY).describe()).decode()
    brokers = sorted({found.group() for found in _BROKER.finditer(text)}, key=len, reverse=is_private)
    if not brokers:
        raise Unavailable("the runtime takes no MQTT")
    base = _BASE.search(text)
    return Speaker(account=name, token=token, mqtt=brokers[0], http=base[1] if base else None, ca=ca)


async def _token_of(admin: Consumer, home: Path, name: str, kind: str) -> str:
    path = home / "agents" / f"{name}.token"
    with suppress(FileNotFoundError):
        return path.read_text("utf-8").strip()
    made = await admin.call(ACCOUNTS, "addClient", {"clientID": name, "type": kind})
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
            where = entered_home(home) if mqtt is None else default_home()
            return command(*args, home=where, mqtt=mqtt, **rest)

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
