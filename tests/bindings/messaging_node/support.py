"""Clients of the node as raw as they come: JSON over a WebSocket, and what came back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
from websockets.asyncio.client import ClientConnection, connect

from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from things.identity import AccountType, Principal

NODE = "domain://msg-node.localhost"
ALLOCATION = f"{NODE}/address-allocation"
SM = f"{NODE}/sm"
REGISTRY = "domain://registry.localhost"
PATIENCE_S = 30.0

Wire = dict[str, Any]


class House(Protocol):
    """A runtime as its clients see it."""

    @property
    def http(self) -> str: ...


class Client:
    """One connection; `runtime` is its runtime URL."""

    def __init__(self, socket: ClientConnection, runtime: str) -> None:
        self.socket = socket
        self.runtime = runtime
        self.token = ""
        self.last = 0
        self.aside: list[Wire] = []

    @property
    def session(self) -> str:
        return f"{self.runtime}/{self.token}"

    async def send(self, type_: str, to: str, body: Any = None, **members: Any) -> int:
        """Send one message; its id."""
        self.last += 1
        message = {"id": self.last, "type": type_, "from": f"{self.runtime}/sm", "to": to, "body": body or {}}
        await self.socket.send(json.dumps(message | members))
        return self.last

    async def next(self) -> Wire:
        """The next message that nobody has looked at."""
        if self.aside:
            return self.aside.pop(0)
        with anyio.fail_after(PATIENCE_S):
            found: Wire = json.loads(await self.socket.recv())
            return found

    async def ask(self, type_: str, to: str, body: Any = None, **members: Any) -> Wire:
        """Send and return the response; other messages are kept for `next`."""
        number = members.get("id") or await self.send(type_, to, body, **members)
        if "id" in members:
            await self.send(type_, to, body, **members)
        with anyio.fail_after(PATIENCE_S):
            while True:
                found: Wire = json.loads(await self.socket.recv())
                if found["type"] == "response" and found["id"] == number:
                    return found
                self.aside.append(found)

    async def code(self, type_: str, to: str, body: Any = None, **members: Any) -> int:
        found: int = (await self.ask(type_, to, body, **members))["body"]["code"]
        return found

    async def open(self, body: Any = None) -> Wire:
        answer = await self.ask("open", "mn:/session", body, **{"from": self.runtime})
        self.token = answer["body"].get("runtimeToken", "")
        return answer

    async def reopen(self, session: str, body: Any = None) -> Wire:
        return await self.ask("re-open", "mn:/session", body, **{"from": session})

    async def allocate(self, scheme: str = "hyperty", number: int = 1, **value: Any) -> list[str]:
        body = {"scheme": scheme, "value": {"number": number, **value}}
        found: list[str] = (await self.ask("create", ALLOCATION, body))["body"]["value"]["allocated"]
        return found

    async def nothing(self) -> bool:
        """Whether nothing came: everything sent to us before the answer to this has arrived."""
        await self.ask("read", "nobody://at/all")
        return not self.aside

    async def closed(self) -> int | None:
        with anyio.fail_after(PATIENCE_S):
            await self.socket.wait_closed()
        return self.socket.close_code


@asynccontextmanager
async def connected(
    house: House, runtime: str = "hyperty-runtime://localhost/r1", token: str | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A connection to `/ws`, not yet opened."""
    headers = dict(options.pop("headers", {}))
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with connect(f"{house.http.replace('http', 'ws', 1)}/ws", additional_headers=headers, **options) as socket:
        yield Client(socket, runtime)


@asynccontextmanager
async def client(house: House, name: str = "r1", token: str | None = None) -> AsyncIterator[Client]:
    """A connection with an open session."""
    async with connected(house, f"hyperty-runtime://localhost/{name}", token) as one:
        answer = await one.open()
        assert answer["body"]["code"] == 200, answer
        yield one


@asynccontextmanager
async def stub(house: House, runtime: str, token: str | None = None) -> AsyncIterator[Client]:
    """A connection without a handshake."""
    from urllib.parse import quote

    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{house.http.replace('http', 'ws', 1)}/stub/connect?runtimeURL={quote(runtime, safe='')}"
    async with connect(url, additional_headers=headers) as socket:
        yield Client(socket, runtime)


def session(account: str = "ann") -> NodeSession:
    """A session of the node without a node."""

    def nothing(*_given: object) -> Any:
        return None

    return NodeSession(
        session_id=account,
        principal=Principal(account=account, type=AccountType.CONSUMER, role="viewer"),
        runtime_url=f"rt://{account}",
        token_hash=None,
        source=None,
        settings=NodeSettings(),
        on_publication=nothing,
        on_request=nothing,
        on_status=nothing,
        on_closed=nothing,
    )
