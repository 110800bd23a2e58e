"""The ASGI application of the API: routes; errors become problem documents here and nowhere else.

Plain ASGI throughout, since middleware that wraps bodies would stand in the way of streams.
"""

import asyncio
import logging
from collections.abc import Sequence

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bindings.http.callers import identify
from bindings.http.context import HttpContext
from bindings.http.entry_paths import entry_path
from bindings.http.exchange import STORED, TAKEN, Exchange
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
_TLS_ONLY = (b"strict-transport-security", b"max-age=31536000")


class Application:
    """Dispatches exchanges to the routes of the API."""

    def __init__(self, context: HttpContext, routes: Routes) -> None:
        self._context = context
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._reply(scope, receive)
        except ClientDisconnect:
            return
        except Exception as error:
            reply = await _refused(error, scope, receive)
        if reply is STORED or reply is TAKEN:
            # What protects documents in browsers protects nothing here, and costs an agent more than its value.
            await reply(scope, receive, send)
        else:
            tls_only = self._context.config.hsts and scope["scheme"] == "https"
            await _protected(reply, scope, receive, send, (_TLS_ONLY,) if tls_only else ())

    async def _reply(self, scope: Scope, receive: Receive) -> ASGIApp:
        raw_path: bytes = scope["raw_path"]
        method: str = scope["method"]
        if method == "OPTIONS":
            allowed = self._routes.allowed(raw_path)
            if allowed is not None:
                return Response(status_code=204, headers={"allow": allowed})
        route, params = self._routes.find(method, entry_path(scope))
        exchange = Exchange(self._context, scope, receive, params)
        await identify(exchange)
        if not route.public:
            scope["state"]["heard"](exchange.principal)
        if "content-encoding" in exchange.headers:
            raise UnsupportedMediaType("compressed bodies are not read here")
        if scope["query_string"]:
            route.check_query(exchange.query)
        return await route.endpoint(exchange)


async def _refused(error: Exception, scope: Scope, receive: Receive) -> Response:
    """The reply in place of the one that could not be made."""
    if not isinstance(error, SkepError):
        log.error("exchange failed", extra={"method": scope["method"], "path": scope["path"][:200]}, exc_info=error)
        return problem(SkepError())
    reply = _refusal(error, scope)
    if reply.status_code == 413:
        await _drain(scope, receive)
    return reply


async def _protected(
    reply: ASGIApp, scope: Scope, receive: Receive, send: Send, further: Sequence[tuple[bytes, bytes]]
) -> None:
    """Let a reply send itself, with the fields that protect documents in browsers and these further ones."""
    started = False

    async def guarded(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start":
            started = True
            message["headers"] = [*_secured(message["headers"]), *further]
        await send(message)

    try:
        await reply(scope, receive, guarded)
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


def _secured(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    names = {name for name, _ in headers}
    secured = [*headers, *SECURITY_HEADERS]
    if b"content-security-policy" not in names:
        secured.append(API_POLICY)
    if b"cache-control" not in names:
        secured.append(_NO_STORE)
    return secured
