"""Health for supervisors and monitoring: alive, ready (with the reasons why not), metrics."""

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http.exchange import JSON, Exchange, json_reply
from bindings.http.routing import Documented, Route
from bindings.web.credentials import was_forwarded
from things.errors import Unauthenticated
from things.network import is_loopback


def routes() -> list[Route]:
    page = Documented(tag="health", answers={200: JSON, 503: JSON})
    return [
        Route("GET", "/livez", _live, "Whether the runtime runs", public=True, documented=page),
        Route("GET", "/readyz", _ready, "Whether it serves, and why not", public=True, documented=page),
        Route(
            "GET",
            "/metrics",
            _metrics,
            "What is measured, for Prometheus",
            public=True,
            documented=page,
        ),
    ]


async def _live(exchange: Exchange) -> ASGIApp:
    alive = exchange.context.health.live()
    return json_reply({"live": alive}, 200 if alive else 503)


async def _ready(exchange: Exchange) -> ASGIApp:
    await exchange.context.health.refresh()
    reasons = dict(exchange.context.health.ready())
    body: dict[str, object] = {"ready": not reasons, "reasons": reasons}
    warnings = dict(exchange.context.health.warnings())
    if warnings:
        body["warnings"] = warnings
    return json_reply(body, 503 if reasons else 200)


async def _metrics(exchange: Exchange) -> ASGIApp:
    """Open to this machine; others need an account."""
    if exchange.is_anonymous and not _is_local(exchange):
        raise Unauthenticated("log in first")
    await exchange.context.health.refresh()
    content, media_type = exchange.context.health.metrics(exchange.headers.get("accept") or "")
    return Response(content, media_type=media_type)


def _is_local(exchange: Exchange) -> bool:
    """Whether a program of this machine asks: not a proxy for somebody else, nor a page whose own name was bound to our
    address, which asks under that name."""
    source, headers = exchange.source, exchange.headers
    if source is None:
        return True  # the control socket
    return (
        is_loopback(source)
        and not was_forwarded(headers)
        and exchange.context.places.is_own_host(headers.get("host"), exchange.scope["scheme"])
    )
