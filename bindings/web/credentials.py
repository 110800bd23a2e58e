"""Who is at the other end of a request or of a WebSocket, by what it brings: the control socket, a bearer token, Basic,
a client certificate, the browser's cookie.

Browsers send Basic, certificates and cookies whichever page asks. So these count only for pages of allowed origins
where something is changed, and a cookie for reading too. A token in an address is refused: addresses end up in logs.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from bindings.web.fields import Fields
from runtime.ports import Authenticator
from things.errors import Forbidden, TokenInvalid, Unauthenticated
from things.identity import LOCAL_ADMIN, Principal
from things.network import is_loopback
from things.places import ALLOWED_BY, OwnOrigin

Scope = Mapping[str, Any]

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_TOKEN_PARAMETERS = frozenset({b"access_token", b"token"})
_FORWARDED = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")
"""Fields that proxies write; those that begin with `x-forwarded-` are others."""


# ------------------------------------------------------------ what proves an account


async def by_header(
    scope: Scope, fields: Fields, authenticator: Authenticator, is_own_origin: OwnOrigin
) -> Principal | None:
    """Whom the control socket or the Authorization header proves; None without either. Raises Unauthenticated for bad
    credentials, TokenInvalid for a token in the address, Forbidden for a foreign page, RateLimited."""
    refuse_token_in_address(scope)
    if scope.get("state", {}).get("local_admin"):
        return LOCAL_ADMIN
    authorization = fields.get("authorization")
    if authorization is None:
        return None
    scheme, _, credentials = authorization.partition(" ")
    credentials = credentials.strip()
    match scheme.lower():
        case "bearer":
            return authenticator.verify(credentials)
        case "basic":
            refuse_foreign_change(scope, fields, is_own_origin)
            try:
                text = base64.b64decode(credentials, validate=True).decode("utf-8", "strict")
            except (binascii.Error, UnicodeDecodeError) as error:
                raise Unauthenticated from error
            account, _, secret = text.partition(":")
            return await authenticator.login(account, secret, source=source_of(scope))
        case _:
            raise Unauthenticated("use Bearer or Basic")


async def by_certificate(
    scope: Scope, fields: Fields, authenticator: Authenticator, is_own_origin: OwnOrigin
) -> Principal | None:
    """Whom the connection's client certificate proves; None without one. Raises Unauthenticated, Forbidden."""
    certificate = scope.get("state", {}).get("certificate")
    if certificate is None:
        return None
    refuse_foreign_change(scope, fields, is_own_origin)
    return await authenticator.by_certificate(certificate)


def by_cookie(scope: Scope, fields: Fields, authenticator: Authenticator, is_own_origin: OwnOrigin) -> Principal | None:
    """Whom the browser's cookie proves; None without one. Raises Unauthenticated, Forbidden."""
    token = cookie(fields, cookie_names(secure=scope["scheme"] in ("https", "wss"))[0])
    if token is None:
        return None
    check_page(scope, fields, is_own_origin)
    return authenticator.verify(token)


def cookie_names(*, secure: bool) -> tuple[str, str]:
    """The names of the access and the refresh cookie; plain loopback HTTP cannot have the `__Host-` prefix."""
    return ("__Host-skep", "__Host-skep-refresh") if secure else ("skep", "skep-refresh")


def cookie(fields: Fields, name: str) -> str | None:
    """One cookie of the request."""
    header = fields.get("cookie")
    if header is None or name not in header:
        return None
    # Not by `SimpleCookie`, which makes an object of every cookie: a stranger may send thousands.
    found = re.search(rf'(?:^|[;,])[ \t]*{re.escape(name)}="?([^;," \t]*)', header)
    return found[1] if found else None


# ------------------------------------------------------------ what is refused


def refuse_token_in_address(scope: Scope) -> None:
    """Raise TokenInvalid if the query has a parameter that is named like a token, however it is spelled."""
    query: bytes = scope.get("query_string", b"")
    # Most have none, which is seen without taking the query apart.
    if not query or (b"%" not in query and b"token" not in query.lower()):
        return
    if any(unquote_to_bytes(part.partition(b"=")[0]).lower() in _TOKEN_PARAMETERS for part in query.split(b"&")):
        raise TokenInvalid("a token in an address ends up in logs; send it in the Authorization header")


def refuse_foreign_page(scope: Scope, fields: Fields, is_own_origin: OwnOrigin) -> None:
    """Raise Forbidden for a page of another origin; programs send no `Origin`."""
    origin = fields.get("origin")
    if origin is not None and not is_own_origin(origin, fields.get("host"), scope["scheme"]):
        raise Forbidden(f"pages of {origin[:100]!r} may not use this gateway; {ALLOWED_BY}")


def refuse_foreign_change(scope: Scope, fields: Fields, is_own_origin: OwnOrigin) -> None:
    """Raise Forbidden if a page from elsewhere would change something, or open a WebSocket. Programs send neither
    `Origin` nor `Sec-Fetch-Site` and pass."""
    if _is_change(scope):
        refuse_foreign(scope, fields, is_own_origin)


def check_page(scope: Scope, fields: Fields, is_own_origin: OwnOrigin) -> None:
    """Raise Forbidden unless the page that sent this is one of ours, as far as the browser tells."""
    if "origin" not in fields and _is_change(scope):
        raise Forbidden("a login by cookie needs the Origin header")
    refuse_foreign(scope, fields, is_own_origin)


def refuse_foreign(scope: Scope, fields: Fields, is_own_origin: OwnOrigin) -> None:
    """Raise Forbidden for what a page from elsewhere makes a browser send, as far as the browser tells."""
    refuse_foreign_page(scope, fields, is_own_origin)
    if "origin" not in fields and fields.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Forbidden(f"pages of other sites may not use this gateway; {ALLOWED_BY}")


def _is_change(scope: Scope) -> bool:
    return scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS


# ------------------------------------------------------------ where a caller is


def source_of(scope: Scope) -> str | None:
    """The caller's host; None on the control socket."""
    client = scope.get("client")
    return client[0] if client and client[0] else None


def was_forwarded(fields: Fields) -> bool:
    """Whether a proxy says that it passed the request on."""
    return any(name in _FORWARDED or name.startswith("x-forwarded-") for name in fields)


def is_loopback_only(scope: Scope, fields: Fields) -> bool:
    """Whether the listener and both ends of the connection are this machine's own, it was asked for by a name of this
    machine, and nobody says that it was passed on: a proxy here must not open anything to those behind it."""
    server, client = scope.get("server"), scope.get("client")
    if not scope.get("state", {}).get("loopback"):
        return False
    if not server or not client or not is_loopback(server[0]) or not is_loopback(client[0]):
        return False
    return not was_forwarded(fields) and _is_loopback_name(fields.get("host", "") or "")


def _is_loopback_name(host: str) -> bool:
    """`localhost:8080`, `127.0.0.1`, `[::1]:8080` …"""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower())
