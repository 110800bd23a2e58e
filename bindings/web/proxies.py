"""Requests that proxies pass on: who asks, by which scheme and for which host, where the owner trusts who says so.

Believed are `X-Forwarded-For`, `-Proto` and `-Host` of listed proxies. What others send of that kind changes nothing,
but that nobody who sends it counts as a program of this machine (`credentials.was_forwarded`). A host that is believed
is no name of ours for that: `Places` knows those.

uvicorn has a middleware for this; it knows no host, takes for a source what is no address, and of a field that is
repeated only the last.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

from bindings.web.fields import Fields
from things.hosts import normalized, split_authority
from things.network import Network

MAX_HOPS = 20
"""Proxies in a row that are looked at, from ours outwards."""
_SCHEMES = {"http": {"http": "http", "https": "https"}, "websocket": {"http": "ws", "https": "wss"}}
"""By what is asked for, and what the proxy says its client came by."""


class TrustedProxies:
    """Whose word is taken, by address."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, host: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ip_address(normalized(host) or "")
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def client(self, peer: str, said: str) -> str:
        """The address of who asked, by what a trusted `peer` says in `X-Forwarded-For`: the nearest hop that is no
        trusted proxy itself. What is further out was said by that one, and may be made up."""
        nearest = peer
        for hop in reversed(said.rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
            found = _address(hop)
            if found is None:
                break
            nearest = found
            if nearest not in self:
                break
        return nearest


class ProxiedRequests:
    """An ASGI application that shows another one what trusted proxies pass on as if it came directly."""

    def __init__(self, app: ASGIApp, proxies: TrustedProxies) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if peer and peer[0] and peer[0] in self._proxies:
            self._believe(scope, *peer)
        await self._app(scope, receive, send)

    def _believe(self, scope: Scope, peer: str, port: int) -> None:
        fields = Fields(scope["headers"])
        if (said := fields.get("x-forwarded-for")) is not None:
            # The port stays that of our own connection, by which it is told from others.
            scope["client"] = (self._proxies.client(peer, said), port)
        proto = (fields.get("x-forwarded-proto") or "").strip().lower()
        scheme = scope["scheme"] = str(_SCHEMES[scope["type"]].get(proto, scope["scheme"]))
        host = (fields.get("x-forwarded-host") or "").strip()
        if split_authority(host, scheme) is not None:
            others = [one for one in scope["headers"] if one[0] != b"host"]
            scope["headers"] = [(b"host", host.encode("latin-1")), *others]


def _address(hop: str) -> str | None:
    """`192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]:4711`; None for what is no address."""
    text = hop.strip()
    if text.startswith("[") or text.count(":") == 1:
        found = split_authority(text, "http")
        host = None if found is None else found[0]
    else:
        host = normalized(text)
    try:
        return str(ip_address(host or ""))
    except ValueError:
        return None
