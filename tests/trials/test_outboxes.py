"""What waits in an outbox was permitted when it was queued; whether it goes out is decided when it does.

A client that does not read has something waiting over each door. Then its right ends, and it reads everything: nothing
that waited is in it.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bindings.http.channels import StreamChannel
from bindings.messaging_node.sessions import NodeSession
from bindings.websocket.connection import WebThingConnection
from tests.bindings.messaging_node.support import SM
from tests.bindings.messaging_node.support import Client as NodeClient
from tests.bindings.mqtt.support import Client
from tests.bindings.websocket.clients import PROTOCOL
from tests.support import PUMP, Account, Skep, skep
from tests.trials.left_behind.cases import Act, Case
from tests.trials.left_behind.rights import Rights

pytestmark = pytest.mark.anyio

THING = "dtw:works:pump-1"
DEADLINE_S = 60.0
FILLER, MARK = "f" * 60_000, "the one that waited"
MOST_FILLERS = 400

Read = Callable[[], AsyncIterator[str]]
"""Everything that comes from now on, as text."""


async def _narrow(runtime: Skep, path: str = "") -> socket.socket:
    """A connection whose client takes little before it reads."""
    where = urlsplit(runtime.http)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (where.hostname, where.port))
    return sock


@asynccontextmanager
async def event_stream(runtime: Skep, who: Account) -> AsyncIterator[Read]:
    sock = await _narrow(runtime)
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    head = f"GET /stream?agent=works&kind=event HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {who.token}\r\n"
    writer.write(f"{head}Accept: text/event-stream\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()

    async def read() -> AsyncIterator[str]:
        with suppress(ConnectionError):
            while chunk := await reader.read(1 << 16):
                yield chunk.decode(errors="replace")

    try:
        yield read
    finally:
        writer.close()


@asynccontextmanager
async def _socket(runtime: Skep, who: Account, path: str, **options: Any) -> AsyncIterator[Any]:
    url = f"ws{runtime.http.removeprefix('http')}{path}"
    headers = {"authorization": f"Bearer {who.token}"}
    sock = await _narrow(runtime)
    options |= {"additional_headers": headers, "sock": sock, "max_queue": 1, "max_size": None, "ping_interval": None}
    async with connect(url, proxy=None, close_timeout=0.1, **options) as opened:
        yield opened


def _texts(opened: Any) -> Read:
    async def read() -> AsyncIterator[str]:
        with suppress(ConnectionClosed):
            async for text in opened:
                yield text if isinstance(text, str) else text.decode()

    return read


@asynccontextmanager
async def web_things(runtime: Skep, who: Account) -> AsyncIterator[Read]:
    async with _socket(runtime, who, "/wot/ws", subprotocols=[PROTOCOL]) as opened:
        asked = {"thingID": THING, "messageID": "1", "messageType": "request", "correlationID": "1"}
        await opened.send(json.dumps({**asked, "operation": "subscribeevent", "name": "alarm"}))
        assert "error" not in json.loads(await opened.recv())
        yield _texts(opened)


@asynccontextmanager
async def node(runtime: Skep, who: Account) -> AsyncIterator[Read]:
    async with _socket(runtime, who, "/ws") as opened:
        client = NodeClient(opened, f"hyperty-runtime://localhost/{who.name}")
        await client.open()
        events = "thing://localhost/works/pump-1/children/alarm"
        assert await client.code("subscribe", SM, {"resources": [events]}) == 200
        yield _texts(opened)


def waits(session: object) -> bool:
    """Whether something is queued that has not gone into the connection."""
    match session:
        case StreamChannel():
            return bool(session._queue)
        case WebThingConnection():
            return bool(session._outbox._waiting)
        case NodeSession():
            return session.waiting > 0
    return False


DOORS = {"event stream": event_stream, "web thing protocol": web_things, "messaging node": node}


async def marked(runtime: Skep, agent: Client, who: Account) -> None:
    """Publish until the client's outbox does not run empty any more, then what must wait in it."""
    (session,) = runtime.running.runtime.sessions.of_account(who.name)
    for _ in range(MOST_FILLERS):
        await agent.publish("agents/works/event/pump-1/alarm", FILLER)
        if waits(session):
            break
    assert waits(session), "the client's connection takes everything"
    await agent.publish("agents/works/event/pump-1/alarm", MARK)
    assert waits(session)


async def heard(runtime: Skep, read: Read, agent: Client, *, until: str | None) -> str:
    """What the client reads, to its end, or to an event that it may see."""
    found = ""
    with anyio.fail_after(DEADLINE_S):
        async for text in read():
            found = found[-200:] + text
            if MARK in found or (until is not None and until in found):
                break
    return found


@asynccontextmanager
async def site(home: Path) -> AsyncIterator[tuple[Skep, Client, Account]]:
    async with skep(home) as runtime:
        works, eve = await runtime.add("works", "agent"), await runtime.add("eve", role="viewer")
        async with Client(runtime.mqtt_address, works.name, works.token, "works") as agent:
            await agent.publish("agents/works/td/pump-1", {**PUMP, "events": {"alarm": {}, "end": {}}})
            yield runtime, agent, eve


def case(revocation: str) -> Case:
    return Case("eve", "token", Act("what waits"), revocation)


@pytest.mark.parametrize("revocation", ["disable", "remove", "credential", "everything", "role none"])
@pytest.mark.parametrize("door", DOORS)
async def test_what_waits_is_not_sent_to_whose_right_has_ended(tmp_path: Path, door: str, revocation: str) -> None:
    async with site(tmp_path) as (runtime, agent, eve), DOORS[door](runtime, eve) as read:
        await marked(runtime, agent, eve)

        await Rights(runtime, tmp_path).take(case(revocation))

        assert MARK not in await heard(runtime, read, agent, until=None)


@pytest.mark.parametrize("revocation", ["rule", "policy"])
@pytest.mark.parametrize("door", DOORS)
async def test_what_waits_is_not_sent_to_who_may_not_see_it_any_more(
    tmp_path: Path, door: str, revocation: str
) -> None:
    async with site(tmp_path) as (runtime, agent, eve), DOORS[door](runtime, eve) as read:
        await marked(runtime, agent, eve)
        (session,) = runtime.running.runtime.sessions.of_account("eve")

        await Rights(runtime, tmp_path).take(case(revocation))

        # It stays open, and silent: read until nothing waits and nothing comes.
        found: list[str] = []
        with anyio.fail_after(DEADLINE_S):
            async with anyio.create_task_group() as tasks:

                async def reading() -> None:
                    tail = ""
                    async for text in read():
                        tail = tail[-200:] + text
                        found.extend([MARK] if MARK in tail else [])

                tasks.start_soon(reading)
                while waits(session):  # noqa: ASYNC110 - what waits is the session's own
                    await anyio.sleep(0.01)
                await _said_later(runtime, agent, eve)
                tasks.cancel_scope.cancel()
        assert found == []


@pytest.mark.parametrize("door", DOORS)
async def test_what_waits_is_sent_to_who_may_see_it(tmp_path: Path, door: str) -> None:
    async with site(tmp_path) as (runtime, agent, eve), DOORS[door](runtime, eve) as read:
        await marked(runtime, agent, eve)

        assert MARK in await heard(runtime, read, agent, until=None)


async def _said_later(runtime: Skep, agent: Client, eve: Account) -> None:
    """Returns when what has gone into the connection was read, too: an answer over another one of the account came."""
    async with Client(runtime.mqtt_address, eve.name, eve.token, "later") as client:
        await client.settle()
