"""The ASGI application: mounts first, then routes; errors become problem documents here and nowhere else.

Plain ASGI throughout, since middleware that wraps bodies would stand in the way of streams.
"""

import asyncio
import logging
from collections.abc import Mapping

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bindings.http.callers import identify, is_bearer
from bindings.http.context import HttpContext
from bindings.http.empty import Empty
from bindings.http.exchange import Exchange
from bindings.http.problems import UnsupportedMediaType, problem
from bindings.http.routing import Routes
from things.errors import SkepError

log = logging.getLogger(__name__)

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_STORE = (b"cache-control", b"no-store")
_DRAINED_BYTES = 8_388_608
_DRAIN_S = 2.0
API_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class Application:
    """Dispatches exchanges; `mounts` are other applications by path prefix (`/mqtt`, `/ws` …)."""

    def __init__(self, context: HttpContext, routes: Routes, mounts: Mapping[str, ASGIApp]) -> None:
        self._context = context
        self._routes = routes
        self._mounts = {prefix.rstrip("/").encode(): app for prefix, app in mounts.items()}
        self._mounted_below = {prefix[1:].partition(b"/")[0] for prefix in self._mounts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mounted = self._mounted(scope)
        if mounted is not None:
            await mounted(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _secured(message["headers"])
            await send(message)

        try:
            try:
                reply = await self._reply(scope, receive)
            except SkepError as error:
                reply = _refusal(error, scope)
                if reply.status_code == 413:
                    await _drain(scope, receive)
            except ClientDisconnect:
                return
            await reply(scope, receive, send if isinstance(reply, Empty) else guarded)
        except ClientDisconnect:
            return
        except Exception as error:
            if isinstance(error, SkepError) and not started:
                # Streams open their session when their reply begins.
                await _refusal(error, scope)(scope, receive, guarded)
                return
            log.exception("exchange failed", extra={"method": scope["method"], "path": scope["path"][:200]})
            if not started:
                await problem(SkepError())(scope, receive, guarded)
            else:
                scope["state"]["abort"]()

    async def _reply(self, scope: Scope, receive: Receive) -> ASGIApp:
        raw_path: bytes = scope["raw_path"]
        method: str = scope["method"]
        if method == "OPTIONS":
            allowed = self._routes.allowed(raw_path)
            if allowed is not None:
                return Response(status_code=204, headers={"allow": allowed})
        route, params = self._routes.find(method, raw_path)
        exchange = Exchange(self._context, scope, receive, params)
        if not is_bearer(exchange):
            await identify(exchange)
        if not route.public:
            _ = exchange.principal
        if "content-encoding" in exchange.headers:
            raise UnsupportedMediaType("compressed bodies are not read here")
        return await route.endpoint(exchange)

    def _mounted(self, scope: Scope) -> ASGIApp | None:
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        if raw_path[1:].partition(b"/")[0] not in self._mounted_below:
            return None
        for prefix, app in self._mounts.items():
            if raw_path == prefix or raw_path.startswith(prefix + b"/"):
                return app
        return None


async def _drain(scope: Scope, receive: Receive) -> None:
    """Read on for a moment: a client that is still sending would see its connection break before the refusal."""
    if any(name == b"expect" for name, _ in scope["headers"]):
        return
    left = _DRAINED_BYTES
    try:
        async with asyncio.timeout(_DRAIN_S):
            while left > 0:
                part = await receive()
                left -= len(part.get("body", b"")) or 1
                if part["type"] == "http.disconnect" or not part.get("more_body", False):
                    return
    except TimeoutError:
        return


def _refusal(error: SkepError, scope: Scope) -> Response:
    from_page = any(name == b"sec-fetch-mode" and value != b"navigate" for name, value in scope["headers"])
    reply = problem(error, for_page=from_page)
    if reply.status_code == 413:
        # The rest of the body is not worth reading.
        reply.headers["connection"] = "close"
    if reply.status_code >= 500 and error.code == "internal":
        log.error("internal error", exc_info=error)
    return reply


def _secured(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name for name, _ in headers}
    secured = [*headers, *SECURITY_HEADERS]
    if b"content-security-policy" not in names:
        secured.append(API_POLICY)
    if b"cache-control" not in names:
        secured.append(_NO_STORE)
    return secured
