"""A runtime with real stores, accounts and rights behind the HTTP binding on a free port, and clients for it."""

import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from authn.authenticator import LocalAuthenticator
from bindings.http.binding import HttpBinding
from bindings.http.config import HttpConfig
from bindings.http.context import Health
from gateway.app import started
from gateway.config import Config
from runtime.core import Runtime
from things.identity import AccountType, Role
from things.places import Places

PASSWORD = "correct horse battery staple"

LAMP: dict[str, Any] = {
    "@context": "https://www.w3.org/2022/wot/td/v1.1",
    "title": "Lamp",
    "properties": {
        "level": {"type": "integer", "minimum": 0, "maximum": 100},
        "mode": {"type": "string"},
        "temperature": {"type": "number", "readOnly": True},
    },
    "actions": {
        "fade": {
            "input": {"type": "object", "properties": {"to": {"type": "integer"}}, "required": ["to"]},
            "output": {"type": "string"},
        },
        "blink": {},
        "now": {"skep:expires": 0},
    },
    "events": {"overheated": {"data": {"type": "number"}}, "touched": {}},
}


@dataclass(slots=True)
class House:
    """One running runtime and its HTTP binding."""

    runtime: Runtime
    binding: HttpBinding
    authenticator: LocalAuthenticator
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        assert self.binding.http_url is not None
        return self.binding.http_url

    async def account(self, name: str, type_: AccountType, role: Role, password: str | None = None) -> str:
        """Make an account; its long-lived token."""
        _, token = await self.authenticator.administration.add(name, type_, role, password=password, by="test")
        assert token is not None
        self.tokens[name] = token
        return token

    async def no_sessions(self) -> bool:
        """Whether no stream or long poll is open."""
        return not self.runtime.metrics.sessions["http"]

    async def some_session(self) -> bool:
        return not await self.no_sessions()

    def client(self, account: str | None = None, **options: Any) -> httpx.AsyncClient:
        """A client that speaks as an account, or as nobody."""
        headers = {"authorization": f"Bearer {self.tokens[account]}"} if account else {}
        # Whoever speaks without TLS need not load the system's authorities, which takes 40 ms a client.
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=30, verify=False, **options)


@asynccontextmanager
async def house(
    home: Path,
    config: HttpConfig | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    health: Health | None = None,
    mounts: Mapping[str, ASGIApp] | None = None,
    runtime_config: Mapping[str, Mapping[str, Any]] | None = None,
    places: Places | None = None,
) -> AsyncIterator[House]:
    """Open a home and serve it by a binding of the test's own, beside the runtime's control socket."""
    off = {"http": None, "https": None}
    sections = {"http": off, "mqtt": {"mqtt": None, "mqtts": None}, **(runtime_config or {})}
    async with started(home, Config.of(sections)) as running:
        stores = running.stores

        binding = HttpBinding(
            config or HttpConfig(),
            tls=tls,
            accounts=stores.authenticator,
            health=health,
            mounts=mounts,
            places=places,
        )
        stores.twin.directory.on_changed(binding.directory_changed)
        async with anyio.create_task_group() as servers:
            await servers.start(_served, binding.serve, running.runtime)
            try:
                yield House(running.runtime, binding, stores.authenticator)
            finally:
                servers.cancel_scope.cancel()


@asynccontextmanager
async def lamp_house(home: Path, config: HttpConfig | None = None, **options: Any) -> AsyncIterator[House]:
    """A house with an agent `lights` that has published `lamp`, and consumers of every role."""
    async with house(home, config, **options) as opened:
        await opened.account("lights", AccountType.AGENT, Role.AGENT)
        for role in (Role.VIEWER, Role.OPERATOR, Role.MANAGER, Role.ADMIN):
            await opened.account(role.value + "1", AccountType.CONSUMER, role, PASSWORD)
        async with opened.client("lights") as lights:
            reply = await lights.put("/agent/things/lamp", json=LAMP)
            assert reply.status_code == 201, reply.text
        yield opened


async def _served(
    serve: Callable[..., Any], *given: object, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    await serve(*given, task_status=task_status)


async def eventually(holds: Callable[[], Awaitable[bool]], within_s: float = 30) -> None:
    """Wait until something holds that nobody announces, such as a connection the server has noticed is gone."""
    with anyio.fail_after(within_s):
        while not await holds():  # noqa: ASYNC110
            await anyio.sleep(0.01)


class Events:
    """Reads server-sent events from a streaming response."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> dict[str, str]:
        """The next event's fields; comments are passed over."""
        fields: dict[str, str] = {}
        with anyio.fail_after(30):
            async for line in self._lines:
                if not line and fields:
                    return fields
                name, colon, value = line.partition(":")
                if name and colon:
                    fields[name] = value.removeprefix(" ")
        raise EOFError("the stream has ended")

    async def data(self) -> Any:
        return json.loads((await self.next())["data"])

    async def ended(self) -> bool:
        """Whether the stream ends without another event."""
        try:
            await self.next()
        except (EOFError, httpx.RemoteProtocolError, httpx.ReadError):
            return True
        return False
