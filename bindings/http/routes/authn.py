"""Logging in: claim, login, refresh, logout, provisioning, profile and stream tickets.

Browsers ask for cookies (`"cookie": true`): then no token is in the answer, where a script could read it.
"""

from starlette.responses import Response
from starlette.types import ASGIApp

from bindings.http.context import Accounts, OpenedLogin
from bindings.http.exchange import JSON, Exchange, json_reply
from bindings.http.routing import Documented, Route
from bindings.http.tickets import FIRST_USE_S, PARAMETER
from bindings.web.credentials import check_page, cookie, cookie_names
from things.errors import Forbidden, Invalid, TokenInvalid, Unavailable
from things.messages import JSONValue

_REFRESH_COOKIE_S = 30 * 86_400


def routes() -> list[Route]:
    post = Documented(tag="authn", body=JSON, answers={200: JSON})
    get = Documented(tag="authn", answers={200: JSON})
    return [
        Route("POST", "/authn/claim", _claim, "Become the first admin", public=True, documented=post),
        Route("POST", "/authn/login", _login, "Log in by password", public=True, documented=post),
        Route("POST", "/authn/refresh", _refresh, "Continue a login", public=True, documented=post),
        Route("POST", "/authn/provision", _provision, "A device asks for its account", public=True, documented=post),
        Route("POST", "/authn/logout", _logout, "End this login", documented=post),
        Route("GET", "/authn/profile", _profile, "Who I am", documented=get),
        Route("POST", "/authn/ticket", _ticket, "A ticket for one stream", documented=post),
    ]


async def _claim(exchange: Exchange) -> ASGIApp:
    body = await exchange.members("code", "login", "password")
    by_cookie = _wants_cookie(exchange, body)  # before the code is used up
    opened = await _accounts(exchange).claim(
        str(body["code"]), str(body["login"]), str(body["password"]), source=exchange.source
    )
    return _logged_in(exchange, opened, by_cookie=by_cookie)


async def _login(exchange: Exchange) -> ASGIApp:
    body = await exchange.members("login", "password")
    by_cookie = _wants_cookie(exchange, body)
    opened = await _accounts(exchange).open_login(str(body["login"]), str(body["password"]), source=exchange.source)
    return _logged_in(exchange, opened, by_cookie=by_cookie)


async def _refresh(exchange: Exchange) -> ASGIApp:
    body = await exchange.members()
    token = body.get("refreshToken")
    if token is None:
        token = cookie(exchange.headers, cookie_names(secure=_secure(exchange))[1])
        if token is None:
            raise Invalid("the member 'refreshToken' is needed, a string")
        check_page(exchange.scope, exchange.headers, exchange.context.places.is_own_origin)
        by_cookie = True
    else:
        by_cookie = False
    if not isinstance(token, str):
        raise TokenInvalid
    return _logged_in(exchange, await _accounts(exchange).refresh(token, source=exchange.source), by_cookie=by_cookie)


async def _logout(exchange: Exchange) -> ASGIApp:
    await exchange.optional_json()
    await _accounts(exchange).logout(exchange.principal)
    reply = json_reply({})
    if exchange.headers.get("cookie"):
        secure = _secure(exchange)
        for name in cookie_names(secure=secure):
            reply.set_cookie(name, "", max_age=0, path="/", secure=secure, httponly=True, samesite="strict")
    return reply


async def _provision(exchange: Exchange) -> ASGIApp:
    body = await exchange.members("clientID", "publicKey")
    texts: dict[str, str | None] = {}
    for name in ("signature", "challenge", "displayName"):
        value = body.get(name)
        if value is not None and not isinstance(value, str):
            raise Invalid(f"the member {name!r} is a string")
        texts[name] = value
    answer = await _accounts(exchange).provisioning.ask(
        str(body["clientID"]),
        str(body["publicKey"]),
        signature=texts["signature"],
        challenge=texts["challenge"],
        display_name=texts["displayName"] or "",
        source=exchange.source,
    )
    return json_reply(answer.document())


async def _profile(exchange: Exchange) -> ASGIApp:
    principal = exchange.principal
    return json_reply({"clientID": principal.account, "type": principal.type.value, "role": principal.role})


async def _ticket(exchange: Exchange) -> ASGIApp:
    """`{"stream": "/stream?thing=…"}` → `{"ticket","href","expiresIn"}`."""
    body = await exchange.members("stream")
    stream = str(body["stream"])
    if exchange.ticket is not None:
        raise Forbidden("a ticket cannot ask for another")
    if not stream.startswith("/") or stream.startswith("//") or len(stream) > 4_096 or not stream.isprintable():
        raise Invalid("stream is the path and query of one event stream of this runtime")
    ticket = exchange.context.tickets.issue(exchange.principal, stream)
    joined = f"{stream}{'&' if '?' in stream else '?'}{PARAMETER}={ticket}"
    return json_reply({"ticket": ticket, "href": joined, "expiresIn": FIRST_USE_S})


def _accounts(exchange: Exchange) -> Accounts:
    accounts = exchange.context.accounts
    if accounts is None:
        raise Unavailable("there are no accounts here")
    return accounts


def _wants_cookie(exchange: Exchange, body: dict[str, JSONValue]) -> bool:
    if body.get("cookie") is not True:
        return False
    check_page(exchange.scope, exchange.headers, exchange.context.places.is_own_origin)
    return True


def _logged_in(exchange: Exchange, opened: OpenedLogin, *, by_cookie: bool) -> Response:
    document = opened.document()
    if not by_cookie:
        return json_reply(document)
    reply = json_reply({name: value for name, value in document.items() if not name.endswith("Token")})
    secure = _secure(exchange)
    access, refresh = cookie_names(secure=secure)
    for name, token, age in (
        (access, opened.access_token, opened.expires_in_s),
        (refresh, opened.refresh_token, _REFRESH_COOKIE_S),
    ):
        reply.set_cookie(name, token, max_age=age, path="/", secure=secure, httponly=True, samesite="strict")
    return reply


def _secure(exchange: Exchange) -> bool:
    return bool(exchange.scope["scheme"] == "https")
