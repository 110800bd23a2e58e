"""A raw client of the web thing protocol: sends what a test says, sorts what comes by what it answers."""

import asyncio
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.support import Account

WITHIN_S = 30.0
PROTOCOL = Subprotocol("webthingprotocol")


class WebThingClient:
    """One socket; `notified` and `asked` hold what came unasked, in order."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.notified: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answers: dict[str | None, asyncio.Queue[dict[str, Any]]] = {}

    async def request(self, operation: str, thing: str, **members: Any) -> dict[str, Any]:
        """Ask and wait for the answer."""
        correlation = members.setdefault("correlationID", str(uuid.uuid4()))
        await self.send("request", operation, thing, **members)
        return await self.answered(correlation)

    async def send(self, type_: str, operation: str, thing: str, **members: Any) -> None:
        message = {
            "thingID": thing,
            "messageID": str(uuid.uuid4()),
            "messageType": type_,
            "operation": operation,
            **members,
        }
        await self.socket.send(json.dumps(message))

    async def answered(self, *correlations: str | None) -> dict[str, Any]:
        """The next answer to any of these."""
        found: list[dict[str, Any]] = []

        async def wait_for(correlation: str | None) -> None:
            found.append(await self._answers.setdefault(correlation, asyncio.Queue()).get())
            tasks.cancel_scope.cancel()

        with anyio.fail_after(WITHIN_S):
            async with anyio.create_task_group() as tasks:
                for correlation in correlations:
                    tasks.start_soon(wait_for, correlation)
        return found[0]

    def has_answer(self, correlation: str | None) -> bool:
        """Whether an answer waits to be looked at."""
        return not self._answers.setdefault(correlation, asyncio.Queue()).empty()

    async def notification(self) -> dict[str, Any]:
        with anyio.fail_after(WITHIN_S):
            return await self.notified.get()

    async def next_request(self) -> dict[str, Any]:
        with anyio.fail_after(WITHIN_S):
            return await self.asked.get()

    async def listen(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._sort()

    async def _sort(self) -> None:
        async for text in self.socket:
            message = json.loads(text)
            match message["messageType"]:
                case "notification":
                    self.notified.put_nowait(message)
                case "request":
                    self.asked.put_nowait(message)
                case _:
                    queue = self._answers.setdefault(message.get("correlationID"), asyncio.Queue())
                    queue.put_nowait(message)


class Served(Protocol):
    """A runtime as its clients see it."""

    @property
    def http(self) -> str: ...
    @property
    def https(self) -> str: ...


def address(runtime: Served, *, tls: bool = False) -> str:
    return f"ws{(runtime.https if tls else runtime.http).removeprefix('http')}/wot/ws"


@asynccontextmanager
async def web_thing_client(
    runtime: Served, account: Account, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WebThingClient]:
    headers = {"Authorization": f"Bearer {account.token}"}
    url = address(runtime, tls=tls is not None)
    async with (
        connect(url, subprotocols=[PROTOCOL], additional_headers=headers, ssl=tls, proxy=None) as socket,
        anyio.create_task_group() as tasks,
    ):
        client = WebThingClient(socket)
        tasks.start_soon(client.listen)
        yield client
        tasks.cancel_scope.cancel()
