"""How a listener ends: at once where nobody is connected, and not before a running exchange is answered."""

import anyio
import anyio.lowlevel
import httpx
import pytest
from starlette.types import Receive, Scope, Send

from bindings.web.connections import Connections, HTTPConnection
from bindings.web.limits import ConnectionLimits
from bindings.web.listeners import bound, serving

pytestmark = pytest.mark.anyio


async def _hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_a_listener_whose_clients_have_gone_ends_at_once() -> None:
    took: list[float] = []
    for _ in range(5):
        sock = bound(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        async with serving(_hello, sock, HTTPConnection, Connections(ConnectionLimits())):
            async with httpx.AsyncClient(verify=False) as client:
                assert (await client.get(address)).text == "hello"
            began = anyio.current_time()
        took.append(anyio.current_time() - began)

    # The quickest of five: what else the machine does is not measured. uvicorn itself takes a tenth of a second.
    assert min(took) < 0.08


async def test_a_listener_ends_after_the_exchange_that_runs() -> None:
    asked, answer = anyio.Event(), anyio.Event()
    replies: list[httpx.Response] = []

    async def hello_later(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await answer.wait()
        await _hello(scope, receive, send)

    sock = bound(("127.0.0.1", 0))
    address = f"http://127.0.0.1:{sock.getsockname()[1]}"

    async def ask() -> None:
        async with httpx.AsyncClient(verify=False, timeout=30) as client:
            replies.append(await client.get(address))

    async with (
        anyio.create_task_group() as tasks,
        serving(hello_later, sock, HTTPConnection, Connections(ConnectionLimits(graceful_s=30))),
    ):
        tasks.start_soon(ask)
        await asked.wait()
        tasks.start_soon(_set_soon, answer)

    assert [reply.text for reply in replies] == ["hello"]


async def _set_soon(event: anyio.Event) -> None:
    for _ in range(20):  # turns of the loop in which the listener begins to end
        await anyio.lowlevel.checkpoint()
    event.set()
