"""The WebSocket binding: the web thing protocol at one address of the HTTP listeners.

It has no listener of its own: the composition root hangs `asgi` on the HTTP binding's, behind `bindings.web.mounts`,
which has turned away pages of other origins.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus

from bindings.web.credentials import by_certificate, by_cookie, by_header, source_of
from bindings.web.fields import Fields
from bindings.web.refusals import refuse
from bindings.websocket.config import WebThingLimits
from bindings.websocket.connection import Receive, Send, WebThingConnection
from bindings.websocket.forms import forms_of
from bindings.websocket.messages import SUBPROTOCOL
from runtime.ports import Sink
from things.addresses import TwinID
from things.errors import SkepError, Unauthenticated, Unavailable
from things.identity import Principal
from things.messages import JSONValue
from things.places import HERE, Place, Places, Urls
from things.td import ThingDescription

log = logging.getLogger(__name__)

PATH = "/wot/ws"


class WebSocketBinding:
    """Serves consumers and agents over WebSockets, at the addresses of the HTTP interface."""

    name = "websocket"

    def __init__(self, *, places: Places, limits: WebThingLimits | None = None) -> None:
        self._places = places
        self._limits = limits or WebThingLimits()
        self._sink: Sink | None = None
        self._connections: set[WebThingConnection] = set()

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        self._sink = sink
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            self._sink = None
            for connection in tuple(self._connections):
                connection.close("shut-down")

    def forms(
        self, td: ThingDescription, twin: TwinID, urls: Urls
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        return forms_of(td, twin, f"ws{urls.base.removeprefix('http')}{PATH}") if urls.base else {}

    async def asgi(self, scope: Any, receive: Receive, send: Send) -> None:
        """One handshake, and the socket if it is granted."""
        if scope["type"] != "websocket":
            await refuse(Unavailable("this address is for WebSockets"), scope, send, status=426)
            return
        await receive()
        sink = self._sink
        try:
            if sink is None:
                raise Unavailable("the runtime is ending")
            principal = await self._identified(scope, sink)
            connection = WebThingConnection(
                sink,
                principal,
                source_of(scope),
                self._limits,
                place=_place(self._places, scope),
                abort=scope.get("state", {}).get("abort"),
            )
            if SUBPROTOCOL not in scope.get("subprotocols", ()):
                raise Unavailable(f"offer the subprotocol {SUBPROTOCOL!r}")
        except SkepError as error:
            log.info("socket refused", extra={"code": error.code})
            await refuse(error, scope, send, status=400 if isinstance(error, Unavailable) else None)
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

    async def _identified(self, scope: Any, sink: Sink) -> Principal:
        """The principal of a handshake; raises Unauthenticated, Forbidden for pages of other origins, RateLimited."""
        brought = (scope, Fields(scope["headers"]), sink.authenticator, self._places.is_own_origin)
        principal = await by_header(*brought) or await by_certificate(*brought) or by_cookie(*brought)
        if principal is None:
            raise Unauthenticated("log in first: send a bearer token in the Authorization header")
        return principal


def _place(places: Places, scope: Any) -> Place | None:
    """Where the client sees this runtime."""
    server = scope.get("server")
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
    secure = scope.get("scheme") == "wss"
    return places.place("https" if secure else "http", host, server[0]) if server and server[1] else HERE
