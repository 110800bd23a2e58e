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
from bindings.http.plain import Plain
from bindings.http.problems import UnsupportedMediaType, problem
from bindings.http.routing import Routes
from bindings.http.whole import sent
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
_OWN = frozenset({b"content-security-policy", b"cache-control"})
"""Fields that a reply may have of its own."""
_CONSTANT = b"".join(b"%s: %s\r\n" % field for field in (*SECURITY_HEADERS, API_POLICY, _NO_STORE))


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
            try:
                reply = await self._reply(scope, receive)
            except ClientDisconnect:
                return
            except Exception as error:
                reply = await _refused(error, scope, receive)
            if not _sent(scope, reply):
                await _streamed(reply, scope, receive, send)

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
        if not exchange.headers.is_plain and "content-encoding" in exchange.headers:
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


async def _refused(error: Exception, scope: Scope, receive: Receive) -> Response:
    """The reply in place of the one that could not be made."""
    if not isinstance(error, SkepError):
        log.error("exchange failed", extra={"method": scope["method"], "path": scope["path"][:200]}, exc_info=error)
        return problem(SkepError())
    reply = _refusal(error, scope)
    if reply.status_code == 413:
        await _drain(scope, receive)
    return reply


async def _streamed(reply: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Let a reply send itself, with the fields that protect documents in browsers."""
    started = False

    async def guarded(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start":
            started = True
            message["headers"] = _secured(message["headers"])
        await send(message)

    try:
        await reply(scope, receive, send if isinstance(reply, Empty) else guarded)
    except ClientDisconnect:
        return
    except Exception as error:
        # Streams open their session when their reply begins.
        if not started:
            await (await _refused(error, scope, receive))(scope, receive, guarded)
        else:
            log.exception("exchange failed", extra={"method": scope["method"], "path": scope["path"][:200]})
            scope["state"]["abort"]()


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


def _sent(scope: Scope, reply: ASGIApp) -> bool:
    """Send a reply that is whole in one step; False if it is not, or cannot be."""
    if isinstance(reply, Plain):
        return sent(scope, reply.status_code, reply.raw_headers, _CONSTANT, reply.body)
    if isinstance(reply, Empty):
        return sent(scope, reply.status_code, reply.raw_headers, b"", b"")
    if type(reply) is not Response or reply.background is not None:
        return False
    fields, constant = reply.raw_headers, _CONSTANT
    if any(name in _OWN for name, _ in fields):
        fields, constant = _secured(fields), b""
    return sent(scope, reply.status_code, fields, constant, reply.body)


def _secured(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name for name, _ in headers}
    secured = [*headers, *SECURITY_HEADERS]
    if b"content-security-policy" not in names:
        secured.append(API_POLICY)
    if b"cache-control" not in names:
        secured.append(_NO_STORE)
    return secured
