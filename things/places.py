"""Where clients reach this runtime: what it is called, and what it listens on.

Bindings tell their listeners and ask: at which place does this caller see us, which addresses follow from that, whose
pages are our own. The composition root makes one and tells it when names change. No I/O; nothing here trusts what a
caller says: a `Host` counts only if it is one of our names.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple
from urllib.parse import urlsplit

from things.bounded import Bounded
from things.hosts import Names, authority, normalized, split_authority
from things.network import is_loopback

ALLOWED_BY = (
    "the key http.allowed_origins lets those of other sites in, gateway.names those of further names of this one"
)
"""What a refusal of a foreign page says to the owner."""
_REMEMBERED = 1_024
"""Of what callers said of where they came to; bounded, since it is theirs to choose."""


OwnOrigin = Callable[[str, str | None, str], bool]
"""Whether a page of this origin, in a request with this `Host` and scheme, is one of ours (`Places.is_own_origin`)."""


class Place(NamedTuple):
    """Where one caller sees this runtime: `host` is one of our names, `base` the HTTP address where it is not that of
    a listener (a proxy, a forwarded port)."""

    host: str
    base: str | None = None


class Listener(NamedTuple):
    """What a binding listens on: the host as configured, the port as bound."""

    scheme: str
    host: str
    port: int


HERE = Place("127.0.0.1")
"""Of callers on this machine."""
CALLED_AT: "ContextVar[Place | None]" = ContextVar("place", default=None)
"""Where the caller of a built-in service sees this runtime, for as long as the service answers; the core sets it from
the message's origin. What a service is asked does not depend on it, only the addresses in what it tells."""


class Urls(NamedTuple):
    """Addresses for one caller; None for what it cannot reach."""

    http: str | None = None
    https: str | None = None
    mqtt: str | None = None
    mqtts: str | None = None
    base: str | None = None
    """The address of the HTTP interface to name in documents."""


class Places:
    """The names and listeners of one runtime. `allowed_origins` are those of other sites."""

    def __init__(self, names: Names | None = None, *, allowed_origins: Iterable[str] = ()) -> None:
        self._allowed = frozenset(allowed_origins)
        self._listeners: dict[str, Listener] = {}
        self._names = names or Names()
        self._watchers: list[Callable[[], None]] = []
        self._forget()

    @property
    def names(self) -> Names:
        return self._names

    @property
    def origins(self) -> frozenset[str]:
        """The origins whose pages may use a login by cookie and open WebSockets."""
        return self._origins

    def listens(self, *listeners: Listener) -> None:
        """A binding serves on these from now on."""
        self._listeners |= {listener.scheme: listener for listener in listeners}
        self._forget()

    def renamed(self, names: Names) -> None:
        """The gateway is called otherwise from now on."""
        self._names = names
        self._forget()
        for notify in tuple(self._watchers):
            notify()

    @contextmanager
    def telling(self, renamed: Callable[[], None]) -> Iterator[None]:
        """Call `renamed` whenever names changed, for as long as the block runs."""
        self._watchers.append(renamed)
        try:
            yield
        finally:
            self._watchers.remove(renamed)

    # ------------------------------------------------------------ callers

    def is_own_origin(self, origin: str, host: str | None, scheme: str) -> bool:
        """Whether a page of this origin is one of ours: of a name of ours, at a port that we listen on or, where a
        port is forwarded, at the one that the request itself came to."""
        if origin in self._origins:
            return True
        if host is None or origin != f"{'https' if scheme in ('https', 'wss') else 'http'}://{host}":
            return False
        found = split_authority(host, scheme)
        return found is not None and found[0] in self._own

    def is_own_host(self, host: str | None, scheme: str) -> bool:
        """Whether a `Host` field names us."""
        found = split_authority(host, scheme) if host is not None else None
        return found is not None and found[0] in self._own

    def place(self, scheme: str, host: str | None, local: str | None) -> Place | None:
        """Where a request over HTTP sees us, by its `Host` if that is one of our names, else by the public address or
        the local address of its connection; None if that is not known either."""
        key = (scheme, host, local)
        try:
            return self._places[key]
        except KeyError:
            found = self._place(scheme, host, local)
            self._places[key] = found
            return found

    def place_at(self, local: str | None) -> Place | None:
        """The same where the protocol has no `Host`: by the local address of a connection. The owner's own name goes
        before it, since a forwarded connection arrives at an address that its caller does not know."""
        address = normalized(local) if local else None
        if address is None:
            return None
        if is_loopback(address) or not (self._names.configured or self._names.public_url):
            return Place(address)
        return Place(next(iter(self._names.configured), address), self._names.public_url)

    def _place(self, scheme: str, host: str | None, local: str | None) -> Place | None:
        named, public = split_authority(host, scheme) if host else None, self._names.public_url
        # A proxy on this machine that passes its own idea of the host on says loopback.
        if named is not None and named[0] in self._own and not (public and is_loopback(named[0])):
            name, port = named
            if public is not None and urlsplit(public).hostname == name and not self._is_listened_on(port):
                return Place(name, public)
            if self._is_listened_on(port):
                return Place(name)
            return Place(name, f"{scheme}://{authority(name, port, scheme)}")
        if public is not None:
            return Place(urlsplit(public).hostname or "", public)
        address = normalized(local) if local else None
        return None if address is None else Place(address)

    def _is_listened_on(self, port: int) -> bool:
        return any(listener.port == port for listener in self._listeners.values())

    # ------------------------------------------------------------ addresses

    def urls(self, place: Place | None = None) -> Urls:
        """The addresses under which a caller who came to `place` reaches us; without one, those that are told to
        everybody."""
        found = self._urls.get(place)
        if found is None:
            found = self._urls[place] = self._urls_at(place)
        return found

    def _urls_at(self, place: Place | None) -> Urls:
        urls = {
            listener.scheme: f"{listener.scheme}://{authority(host, listener.port, listener.scheme)}"
            for listener in self._listeners.values()
            if (host := self._host(listener, place)) is not None
        }
        public = self._names.public_url if place is None else place.base
        return Urls(**urls, base=public or urls.get("https") or urls.get("http"))

    def _host(self, listener: Listener, place: Place | None) -> str | None:
        reaching = self._names.reaching(listener.host)
        if place is None:
            return reaching[0]
        if place.host in reaching:
            return place.host
        if is_loopback(listener.host) and not is_loopback(place.host):
            return None
        # One listener's address is not another's (IPv6, say); a caller on this machine reaches every interface.
        return reaching[0]

    def _forget(self) -> None:
        self._own = self._names.all()
        self._origins = self._allowed | {
            f"{scheme}://{authority(host, port, scheme)}"
            for scheme, listener, port in self._listeners.values()
            if scheme in ("http", "https")
            for host in self._names.reaching(listener)
        }
        if self._names.public_url is not None:
            public = urlsplit(self._names.public_url)
            self._origins |= {f"{public.scheme}://{public.netloc}"}
        self._places = Bounded[tuple[str, str | None, str | None], Place | None](_REMEMBERED)
        self._urls = Bounded[Place | None, Urls](_REMEMBERED)
