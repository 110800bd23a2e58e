"""The HTTP binding: HTTPS, event streams, long poll, pages and the control socket in front of one sink."""

import logging
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from anyio import CapacityLimiter
from anyio.abc import TaskStatus
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from bindings.http import (
    actions,
    agent,
    authn,
    directory,
    health,
    history,
    inbox,
    notifications,
    openapi,
    pages,
    properties,
    search,
    streams,
)
from bindings.http.announcement import announced
from bindings.http.application import Application
from bindings.http.changes import Changes
from bindings.http.config import Address, HttpConfig
from bindings.http.context import Accounts, Addresses, Health, HttpContext, Revoked
from bindings.http.forms import forms, profile_forms
from bindings.http.listeners import (
    Connection,
    LocalConnection,
    TLSConnection,
    bound,
    bound_unix,
    serving,
    url,
)
from bindings.http.polls import Pollers
from bindings.http.routing import Route, Routes
from bindings.http.sse import Ticker
from bindings.http.streamcount import StreamCount
from bindings.http.tickets import Tickets
from runtime.ports import DirectoryChange, Entry, Sink
from things.addresses import TwinID
from things.errors import ConfigInvalid
from things.messages import JSONValue
from things.network import is_loopback
from things.td import ThingDescription

log = logging.getLogger(__name__)


class HttpBinding:
    """Serves the HTTP API on a plain loopback listener, a TLS listener and the control socket.

    `mounts` are ASGI applications of other bindings by path prefix (`/mqtt`, `/wot/ws`, `/ws` …). `tls` is kept as it
    is: loading a fresh chain into it serves new connections without a restart. `documents` are served as they are, by
    path (`/vocabulary/skep.jsonld`); what stands at `/asyncapi.json` is laid into our own.
    """

    name = "http"

    def __init__(
        self,
        config: HttpConfig,
        *,
        tls: ssl.SSLContext | None = None,
        accounts: Accounts | None = None,
        health: Health | None = None,
        mounts: Mapping[str, ASGIApp] | None = None,
        documents: Mapping[str, Any] | None = None,
    ) -> None:
        _check(config, tls)
        self._config = config
        self._tls = tls
        self._accounts = accounts
        self._health = health or Health()
        self._mounts = dict(mounts or {})
        self._documents = dict(documents or {})
        self._addresses = Addresses(http_url=None, https_url=None)
        self._tickets: Tickets | None = None
        self._changes = Changes()
        self._total: Counter[str] = Counter()
        if accounts is not None:
            accounts.on_revoked(self._revoked)

    @property
    def http_url(self) -> str | None:
        """The plain listener's address once it serves; None if there is none."""
        return self._addresses.http_url

    @property
    def https_url(self) -> str | None:
        """The TLS listener's address once it serves; None if there is none."""
        return self._addresses.https_url

    @property
    def origins(self) -> frozenset[str]:
        """The origins whose pages may use cookies and WebSockets here."""
        return _origins(self._config, self._addresses)

    def mount(self, prefix: str, app: ASGIApp) -> None:
        """Hang on another application; before `serve`."""
        self._mounts[prefix] = app

    async def serve(self, sink: Sink, *, task_status: TaskStatus[None]) -> None:
        config = self._config
        async with AsyncExitStack() as stack:
            plain = bound(config.http) if config.http else None
            stack.callback(_close, plain)
            secure = bound(config.https) if config.https else None
            stack.callback(_close, secure)
            self._addresses = Addresses(
                http_url=url("http", plain) if plain else None, https_url=url("https", secure) if secure else None
            )
            context = self._context(sink)
            app = self._application(context)
            if plain is not None:
                await stack.enter_async_context(serving(app, plain, self._kind(Connection, config.http), config, None))
            if secure is not None:
                await stack.enter_async_context(
                    serving(app, secure, self._kind(TLSConnection, config.https), config, self._tls)
                )
            if config.control_socket is not None:
                local = bound_unix(config.control_socket)
                stack.callback(_close, local)
                stack.callback(config.control_socket.unlink, missing_ok=True)
                await stack.enter_async_context(serving(app, local, self._kind(LocalConnection), config, None))
            if config.mdns:
                for address, listener in ((self.https_url, config.https), (self.http_url, config.http)):
                    if address is not None and listener is not None:
                        await stack.enter_async_context(announced(address, listener))
                        break
            # Streams end first, so that the servers have nothing to wait for.
            stack.callback(context.close)
            log.info("listening", extra={"http": self.http_url, "https": self.https_url})
            task_status.started()
            await context.ticker.run()

    def directory_changed(self, change: DirectoryChange, before: Entry | None, after: Entry | None) -> None:
        """Take one committed change of the directory, for its notifications."""
        self._changes.heard()

    def forms(self, td: ThingDescription, twin: TwinID) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        return forms(td, twin, self._addresses.base)

    def profile_forms(
        self, td: ThingDescription, twin: TwinID
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """The forms of the variant that follows W3C profiles."""
        return profile_forms(td, twin, self._addresses.base)

    def _context(self, sink: Sink) -> HttpContext:
        config = self._config
        self._tickets = Tickets(sink.clock, limit=config.max_tickets)
        return HttpContext(
            config=config,
            sink=sink,
            accounts=self._accounts,
            health=self._health,
            addresses=self._addresses,
            origins=self.origins,
            tickets=self._tickets,
            pollers=Pollers(
                sink.sessions, interval_s=config.poll_interval_s, limit=config.page_items, new_id=sink.new_id
            ),
            ticker=Ticker(config.ping_s),
            streams=StreamCount(config.max_streams_per_account),
            changes=self._changes,
            searches=CapacityLimiter(config.searches_at_once),
            documents=self._documents,
        )

    def _application(self, context: HttpContext) -> ASGIApp:
        routes = all_routes(self._documents)
        app: ASGIApp = Application(context, Routes(routes), self._mounts)
        if self._config.cors_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self._config.cors_origins,
                allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "Idempotency-Key",
                    "Prefer",
                    "X-Confirmation",
                    "X-Expires-In",
                    "If-Match",
                ],
                expose_headers=["Location", "Link", "ETag", "Poll-Interval", "Retry-After"],
            )
        return app

    def _kind(self, connection: type[Connection], address: Address | None = None) -> type[Connection]:
        members = {
            "limits": self._config,
            "total": self._total,
            "is_loopback": address is not None and is_loopback(address[0]),
        }
        return type(connection.__name__, (connection,), members)

    def _revoked(self, revoked: Revoked) -> None:
        if self._tickets is not None:
            self._tickets.revoke(revoked.covers)


def all_routes(documents: Mapping[str, Any]) -> list[Route]:
    """Every route of the API, in the order the description lists them."""
    routes = [
        *authn.routes(),
        *directory.routes(),
        *notifications.routes(),
        *search.routes(),
        *properties.routes(),
        *actions.routes(),
        *streams.routes(),
        *inbox.routes(),
        *history.routes(),
        *agent.routes(),
        *health.routes(),
        *pages.routes(),
    ]
    return [*routes, *openapi.routes(routes, documents)]


def _check(config: HttpConfig, tls: ssl.SSLContext | None) -> None:
    if config.https is not None and tls is None:
        raise ConfigInvalid("an https listener needs a certificate")
    if config.http is not None and not is_loopback(config.http[0]):
        if not config.insecure:
            raise ConfigInvalid(
                f"plain HTTP listens on loopback only, not on {config.http[0]!r}; use https, or insecure = true"
            )
        log.warning("plain HTTP beyond loopback: passwords and tokens can be read on the way")


def _origins(config: HttpConfig, addresses: Addresses) -> frozenset[str]:
    own: set[str] = set(config.origins)
    listeners: tuple[tuple[str | None, Address | None], ...] = (
        (addresses.http_url, config.http),
        (addresses.https_url, config.https),
    )
    for address, configured in listeners:
        if address is None or configured is None:
            continue
        scheme, _, rest = address.partition("://")
        port = rest.rpartition(":")[2]
        own.add(address)
        if is_loopback(configured[0]) or configured[0] in ("0.0.0.0", "::"):
            own |= {f"{scheme}://localhost:{port}", f"{scheme}://127.0.0.1:{port}"}
    return frozenset(own)


def _close(sock: Any) -> None:
    if sock is not None:
        sock.close()
