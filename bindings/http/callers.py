"""Who calls: bearer token, client certificate, basic, the browser's cookie, a stream ticket, or the control socket.

A cookie counts only for pages of allowed origins, since a browser sends it whoever asks. Nothing is decided from the
Host header.
"""

import base64
import binascii
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie

from bindings.http.exchange import Exchange
from bindings.http.tickets import PARAMETER
from things.errors import Forbidden, TokenInvalid, Unauthenticated
from things.identity import AccountType, Principal, Role

LOCAL_ADMIN = Principal(account="skep", type=AccountType.SERVICE, role=Role.ADMIN, login_id="local")
"""Who speaks through the control socket: the operating system has checked that it is the owner."""

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN_PARAMETERS = ("access_token", "token")


def cookie_names(*, secure: bool) -> tuple[str, str]:
    """The names of the access and the refresh cookie; plain loopback HTTP cannot have the `__Host-` prefix."""
    return ("__Host-skep", "__Host-skep-refresh") if secure else ("skep", "skep-refresh")


def is_bearer(exchange: Exchange) -> bool:
    """Whether the exchange comes with a token and nothing else that could say who calls, and then its principal is
    set; most do, and need nothing to be awaited. Raises Unauthenticated for a bad token."""
    authorization = exchange.headers.get("authorization")
    if authorization is None or not authorization.startswith("Bearer ") or b"token=" in exchange.scope["query_string"]:
        return False
    if "local_admin" in exchange.scope.get("state", ()):
        return False
    exchange.principal = exchange.context.sink.authenticator.verify(authorization[7:].strip())
    return True


async def identify(exchange: Exchange) -> None:
    """Set the exchange's principal if it brings credentials; raises Unauthenticated for bad ones, Forbidden for a
    cookie from a foreign page."""
    principal = await _principal(exchange)
    if principal is not None:
        exchange.principal = principal


async def _principal(exchange: Exchange) -> Principal | None:
    state = exchange.scope.get("state", {})
    if state.get("local_admin"):
        return LOCAL_ADMIN
    query: bytes = exchange.scope["query_string"]
    if query and b"token=" in query and any(name in exchange.query for name in _TOKEN_PARAMETERS):
        raise TokenInvalid("a token in an address ends up in logs; send it in the Authorization header")
    authorization = exchange.headers.get("authorization")
    if authorization is not None:
        return await _authorized(exchange, authorization)
    if query and b"ticket=" in query:
        ticket = exchange.one(PARAMETER)
        if ticket is not None:
            return _by_ticket(exchange, ticket)
    common_name = state.get("certificate_name")
    if common_name is not None:
        return await exchange.context.sink.authenticator.by_certificate(common_name)
    token = cookie(exchange, cookie_names(secure=exchange.scope["scheme"] in ("https", "wss"))[0])
    if token is None:
        return None
    check_origin(exchange)
    try:
        return exchange.context.sink.authenticator.verify(token)
    except Unauthenticated:
        # A stale cookie must not stand in the way of logging in again.
        if exchange.raw_path.startswith("/authn/"):
            return None
        raise


async def _authorized(exchange: Exchange, authorization: str) -> Principal:
    scheme, _, credentials = authorization.partition(" ")
    credentials = credentials.strip()
    match scheme.lower():
        case "bearer":
            return exchange.context.sink.authenticator.verify(credentials)
        case "basic":
            try:
                text = base64.b64decode(credentials, validate=True).decode("utf-8", "strict")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise Unauthenticated from error
            account, _, secret = text.partition(":")
            return await exchange.context.sink.authenticator.login(account, secret, source=exchange.source)
        case _:
            raise Unauthenticated("use Bearer or Basic")


def _by_ticket(exchange: Exchange, text: str) -> Principal:
    if exchange.method not in ("GET", "HEAD"):
        raise TokenInvalid("a ticket opens streams only")
    target = f"{exchange.raw_path}?{exchange.scope['query_string'].decode('latin-1')}"
    ticket = exchange.context.tickets.redeem(text, target)
    exchange.ticket = text
    # The access token the ticket was asked with is shorter lived; the ticket's own end is what counts here.
    return replace(ticket.principal, expires=ticket.until)


def cookie(exchange: Exchange, name: str) -> str | None:
    """One cookie of the request."""
    header = exchange.headers.get("cookie")
    if header is None or name not in header:
        return None
    try:
        found = SimpleCookie(header.replace(", ", "; ")).get(name)
    except CookieError:
        return None
    return found.value if found else None


def check_origin(exchange: Exchange) -> None:
    """Raise Forbidden unless the page that sent this request is one of ours, as far as the browser tells."""
    origin = exchange.headers.get("origin")
    if origin is not None:
        if origin not in exchange.context.origins:
            raise Forbidden("pages of this origin may not use the login here")
        return
    if exchange.method not in _SAFE_METHODS:
        raise Forbidden("a login by cookie needs the Origin header")
    if exchange.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Forbidden("pages of other sites may not use the login here")
