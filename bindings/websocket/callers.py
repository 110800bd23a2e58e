"""Who opens a socket: bearer token, basic, client certificate, or the browser's cookie.

Browsers open sockets to anybody, so a page must be of an allowed origin whatever it brings. Nothing is decided from the
Host header, and no token is taken from an address.
"""

import base64
import binascii
from collections.abc import Callable, Collection, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from runtime.ports import Authenticator
from things.errors import Forbidden, TokenInvalid, Unauthenticated
from things.identity import Principal

CookieName = Callable[[bool], str]
"""The name of the cookie that holds the access token, on TLS (True) and on plain loopback."""


async def identified(
    scope: Mapping[str, Any],
    authenticator: Authenticator,
    *,
    origins: Collection[str],
    cookie_name: CookieName,
) -> Principal:
    """The principal of a handshake; raises Unauthenticated, Forbidden for pages of other origins, RateLimited."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    origin = headers.get("origin")
    if origin is not None and origin not in origins:
        raise Forbidden("pages of this origin may not open sockets here")
    if b"token=" in scope.get("query_string", b""):
        raise TokenInvalid("a token in an address ends up in logs; send it in the Authorization header")
    client = scope.get("client")
    source = client[0] if client and client[0] else None
    authorization = headers.get("authorization")
    if authorization is not None:
        return await _authorized(authorization, authenticator, source)
    common_name = scope.get("state", {}).get("certificate_name")
    if common_name is not None:
        return await authenticator.by_certificate(common_name)
    token = _cookie(headers.get("cookie"), cookie_name(scope.get("scheme") == "wss"))
    if token is None:
        raise Unauthenticated("log in first: send a bearer token in the Authorization header")
    if origin is None:
        raise Forbidden("a login by cookie needs the Origin header")
    return authenticator.verify(token)


async def _authorized(authorization: str, authenticator: Authenticator, source: str | None) -> Principal:
    scheme, _, credentials = authorization.partition(" ")
    credentials = credentials.strip()
    match scheme.lower():
        case "bearer":
            return authenticator.verify(credentials)
        case "basic":
            try:
                text = base64.b64decode(credentials, validate=True).decode("utf-8", "strict")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise Unauthenticated from error
            account, _, secret = text.partition(":")
            return await authenticator.login(account, secret, source=source)
        case _:
            raise Unauthenticated("use Bearer or Basic")


def _cookie(header: str | None, name: str) -> str | None:
    if header is None or name not in header:
        return None
    try:
        found = SimpleCookie(header.replace(", ", "; ")).get(name)
    except CookieError:
        return None
    return found.value if found else None
