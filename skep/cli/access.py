"""How a command reaches a runtime: over HTTPS with a token, or through the control socket of a data folder.

Where nothing runs in that folder, the command opens it itself for as long as it takes: the same runtime, without
listeners, so that there is one way to do everything. A runtime that is just coming up is waited for, and so is one for
a folder that is not there yet: lines that are pasted together begin at once.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from skep.cli.homes import default_home, entered_home
from skep.cli.patience import AGAIN_S, Patience
from skep.consumer import Consumer
from skep.logins import SavedLogin, saved
from things.errors import Locked, Unavailable

T = TypeVar("T")

SOCKET = "control.sock"
STARTING_S = 10.0
"""How long a command waits for a runtime of which there is no sign yet."""
BEGUN_S = 60.0
"""The same once it has begun: on a slow machine a start takes a while."""
_SILENT_S = 0.5
"""Of waiting, before it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the command line says about where the runtime is."""

    home: Path
    url: str | None
    token: str | None
    ca: Path | None
    json: bool
    kept: SavedLogin | None = None
    """The login that was kept for `url`."""

    @asynccontextmanager
    async def opened(self, *, live: bool = False) -> AsyncIterator[Consumer]:
        """A consumer that is let in: as the token's account, or as local admin. `live`: only a runtime with listeners
        will do, since an agent is to be heard. Raises Unavailable, Locked."""
        if self.url is not None:
            async with Consumer(self.url, token=self.token, kept=self.kept, ca=self.ca) as consumer:
                yield consumer
            return
        async with self._held(live=live), Consumer(socket=self.home / SOCKET) as consumer:
            yield consumer

    @asynccontextmanager
    async def _held(self, *, live: bool) -> AsyncIterator[None]:
        from gateway.home import held_by, is_begun

        if live or not self.home.is_dir():
            await serving(self.home)
            yield
            return
        patience = Patience()
        async with AsyncExitStack() as stack:
            while not is_begun(self.home):
                holder = held_by(self.home)
                if holder is None:
                    from gateway.app import opened  # all of a runtime: not needed where one runs

                    try:
                        await stack.enter_async_context(opened(self.home))
                        break
                    except Locked as locked:  # it was faster
                        holder = locked
                if not holder.by_command:
                    await serving(self.home)
                    break
                if not patience.bears(holder):
                    raise holder
                await asyncio.sleep(AGAIN_S)
            else:
                await serving(self.home)
            yield


async def serving(home: Path) -> None:
    """Returns once the runtime of this folder answers on its control socket; raises Unavailable."""
    from gateway.home import is_begun

    began, is_said = time.monotonic(), False
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(home / SOCKET)
        except OSError as error:
            waited_s = time.monotonic() - began
            if waited_s >= _SILENT_S and not is_said:
                click.echo(f"waiting for a runtime in {home} …", err=True)
                is_said = True
            if waited_s >= STARTING_S and (waited_s >= BEGUN_S or not is_begun(home)):
                raise Unavailable(f"{_lacking(home)} {home}; start one with: skep run --home {home}") from error
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def _lacking(home: Path) -> str:
    return "no runtime serves" if home.is_dir() else "there is no data folder"


def chosen_url(home: Path | None, url: str | None) -> str | None:
    """The URL to go by: what stands on the line counts more than SKEP_URL. Raises UsageError if --home and --url both
    stand there."""
    if home is None or url is None:
        return url
    if click.get_current_context().get_parameter_source("url") is ParameterSource.ENVIRONMENT:
        return None
    raise click.UsageError("give --home or --url, not both")


def _with_login(home: Path | None, url: str | None, token: str | None) -> tuple[str | None, SavedLogin | None]:
    """The address to go by and the login that was kept for it. Without an address it is that of the last login, unless
    a data folder is named or the default one is there."""
    if url is not None:
        return url, saved(url) if token is None else None
    if home is not None or os.environ.get("SKEP_HOME") or default_home().is_dir():
        return None, None
    kept = saved()
    return (None, None) if kept is None else (kept.url, kept)


def access_options(command: Callable[..., T]) -> Callable[..., T]:
    """`--home`, `--url`, `--token`, `--ca` and `--json`, handed to the command as one `access`."""

    def wrapped(
        *args: Any, home: Path | None, url: str | None, token: str | None, ca: Path | None, as_json: bool, **rest: Any
    ) -> T:
        url, kept = _with_login(home, chosen_url(home, url), token)
        where = entered_home(home) if url is None else home or default_home()
        ca = ca or (kept.ca if kept is not None else None)
        access = Access(home=where, url=url, token=token, ca=ca, json=as_json, kept=kept)
        return command(*args, access=access, **rest)

    update_wrapper(wrapped, command)
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--ca", type=click.Path(path_type=Path), envvar="SKEP_CA", help="CA certificate of a runtime far away."
        ),
        click.option("--token", envvar="SKEP_TOKEN", help="Token for --url; better by SKEP_TOKEN than on the line."),
        click.option("--url", envvar="SKEP_URL", help="Address of a runtime, https://HOST:PORT."),
        click.option(
            "--home", type=click.Path(path_type=Path), help="Data folder of the runtime. [default: $SKEP_HOME, ~/.skep]"
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def with_consumer(access: Access, work: Callable[[Consumer], Awaitable[T]], *, live: bool = False) -> T:
    """Run `work` with an opened consumer, to its end; see `Access.opened`."""

    async def whole() -> T:
        async with access.opened(live=live) as consumer:
            return await work(consumer)

    return run_async(whole())


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as a command's work."""
    return asyncio.run(work)
