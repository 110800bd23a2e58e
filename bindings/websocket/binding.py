"""The WebSocket binding: the web thing protocol at one address of the HTTP listeners.

It has no listener of its own: the composition root hangs `asgi` on the HTTP binding's, and says which origins' pages
may come and what their cookie is called.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus

from bindings.websocket.callers import CookieName, identified
from bindings.websocket.config import Limits
from bindings.websocket.connection import Connection, Receive, Send
from bindings.websocket.forms import forms_of
from bindings.websocket.messages import SUBPROTOCOL
from runtime.ports import Sink
from things.addresses import TwinID
from things.errors import RateLimited, SkepError, Unauthenticated, Unavailable
from things.jsontext import encode
from things.messages import JSONValue
from things.problems import problem
from things.td import ThingDescription

log = logging.getLogger(__name__)

PATH = "/wot/ws"


class WebSocketBinding:
    """Serves consumers and agents over WebSockets. `base` is the HTTP address that sockets are opened at."""

    name = "websocket"

    def __init__(
        self,
        *,
        base: Callable[[], str | None],
        origins: Callable[[], Collection[str]],
        cookie_name: CookieName,
        limits: Limits | None = None,
    ) -> None:
        self._base = base
        self._origins = origins
        self._cookie_name = cookie_name
        self._limits = limits or Limits()
        self._sink: Sink | None = None
        self._connections: set[Connection] = set()

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        self._sink = sink
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self._sink = None
            for connection in tuple(self._connections):
                connection.close("shut-down")

    def forms(self, td: ThingDescription, twin: TwinID) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        base = self._base()
        return forms_of(td, twin, f"ws{base.removeprefix('http')}{PATH}") if base else {}

    async def asgi(self, scope: Any, receive: Receive, send: Send) -> None:
        """One handshake, and the socket if it is granted."""
        if scope["type"] != "websocket":
            await _refuse(send, Unavailable("this address is for WebSockets"), "http", status=426)
            return
        await receive()
        sink = self._sink
        try:
            if sink is None:
                raise Unavailable("the runtime is ending")
            principal = await identified(
                scope, sink.authenticator, origins=self._origins(), cookie_name=self._cookie_name
            )
            client = scope.get("client")
            connection = Connection(
                sink,
                principal,
                client[0] if client and client[0] else None,
                self._limits,
                abort=scope.get("state", {}).get("abort"),
            )
            if SUBPROTOCOL not in scope.get("subprotocols", ()):
                raise Unavailable(f"offer the subprotocol {SUBPROTOCOL!r}")
        except SkepError as error:
            log.info("socket refused", extra={"code": error.code})
            await _refuse(send, error, "websocket.http", status=400 if isinstance(error, Unavailable) else None)
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        self._connections.add(connection)
        try:
            await connection.serve(receive, send)
        except SkepError as error:
            # Too many sessions of the account.
            await send({"type": "websocket.close", "code": 1013, "reason": error.code})
        finally:
            self._connections.discard(connection)


async def _refuse(send: Send, error: SkepError, prefix: str, *, status: int | None = None) -> None:
    """Answer a handshake with a problem document."""
    body = problem(error)
    if status is not None:
        body["status"] = status
    headers = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store")]
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="skep"'))
    if isinstance(error, RateLimited):
        headers.append((b"retry-after", str(max(1, round(error.retry_after_s))).encode()))
    await send({"type": f"{prefix}.response.start", "status": body["status"], "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": encode(body)})
