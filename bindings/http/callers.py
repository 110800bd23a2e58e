"""Who calls: by what `bindings.web` reads everywhere, or by the ticket of one stream."""

from dataclasses import replace

from bindings.http.exchange import Exchange
from bindings.http.tickets import PARAMETER
from bindings.web.credentials import by_certificate, by_cookie, by_header
from things.errors import TokenInvalid, Unauthenticated
from things.identity import Principal


async def identify(exchange: Exchange) -> None:
    """Set the exchange's principal if it brings credentials; raises Unauthenticated for bad ones, Forbidden for a
    foreign page."""
    principal = await _principal(exchange)
    if principal is not None:
        exchange.principal = principal


async def _principal(exchange: Exchange) -> Principal | None:
    context = exchange.context
    brought = (exchange.scope, exchange.headers, context.sink.authenticator, context.places.is_own_origin)
    principal = await by_header(*brought)
    if principal is None and b"ticket=" in exchange.scope["query_string"]:
        ticket = exchange.one(PARAMETER)
        if ticket is not None:
            return _by_ticket(exchange, ticket)
    principal = principal or await by_certificate(*brought)
    if principal is not None:
        return principal
    try:
        return by_cookie(*brought)
    except Unauthenticated:
        # A stale cookie must not stand in the way of logging in again.
        if exchange.raw_path.startswith("/authn/"):
            return None
        raise


def _by_ticket(exchange: Exchange, text: str) -> Principal:
    if exchange.method not in ("GET", "HEAD"):
        raise TokenInvalid("a ticket opens streams only")
    target = f"{exchange.raw_path}?{exchange.scope['query_string'].decode('latin-1')}"
    ticket = exchange.context.tickets.redeem(text, target)
    exchange.ticket = text
    # The access token the ticket was asked with is shorter lived; the ticket's own end is what counts here.
    return replace(ticket.principal, expires=ticket.until)
