"""Who is at the other end of a connection: an account by bearer, basic or certificate, the control socket, or nobody.

Tokens in addresses are refused, cookies are not looked at (a browser sends them whoever asks), and pages of foreign
origins are turned away before anything else.
"""

import base64
import binascii
from collections.abc import Mapping, MutableMapping
from typing import Any

from runtime.ports import Authenticator
from things.errors import Forbidden, TokenInvalid, Unauthenticated
from things.identity import AccountType, Principal, Role
from things.network import is_loopback

Scope = MutableMapping[str, Any]

LOCAL_ADMIN = Principal(account="skep", type=AccountType.SERVICE, role=Role.ADMIN, login_id="local")

_FORWARDED = frozenset({b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
"""Headers that proxies write; those that begin with `x-forwarded-` are others."""


def headers_of(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers by lower-case name; the last of several counts."""
    return {name.lower(): value for name, value in scope["headers"]}


def source_of(scope: Scope) -> str | None:
    client = scope.get("client")
    return client[0] if client else None


def check_origin(scope: Scope, origins: frozenset[str]) -> None:
    """Raise Forbidden for a page of a foreign origin; programs send no Origin."""
    origin = headers_of(scope).get(b"origin")
    if origin is not None and origin.decode("latin-1") not in origins:
        raise Forbidden("pages of this origin may not use the messaging node")


async def identify(scope: Scope, authenticator: Authenticator) -> Principal | None:
    """The account that the connection's credentials prove; None if it brought none. Raises Unauthenticated."""
    state = scope.get("state", {})
    if state.get("local_admin"):
        return LOCAL_ADMIN
    if b"token=" in scope["query_string"].lower():
        raise TokenInvalid("a token in an address ends up in logs; send it in the Authorization header")
    authorization = headers_of(scope).get(b"authorization")
    if authorization is not None:
        return await _authorized(authorization.decode("latin-1"), authenticator, source_of(scope))
    common_name = state.get("certificate_name")
    return None if common_name is None else await authenticator.by_certificate(common_name)


def is_local(scope: Scope) -> bool:
    """Whether the listener and both ends of the connection are this machine's own, it was asked for by a name of this
    machine, and nobody says that it was passed on: a proxy here must not open the node to those behind it."""
    server, client = scope.get("server"), scope.get("client")
    if not scope.get("state", {}).get("loopback"):
        return False
    if not server or not client or not is_loopback(server[0]) or not is_loopback(client[0]):
        return False
    headers = headers_of(scope)
    if any(name in _FORWARDED or name.startswith(b"x-forwarded-") for name in headers):
        return False
    return _is_loopback_name(headers.get(b"host", b"").decode("latin-1"))


def _is_loopback_name(host: str) -> bool:
    """`localhost:8080`, `127.0.0.1`, `[::1]:8080` …"""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower())


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
