"""The HTTP binding: HTTPS, event streams, long poll, pages and the control socket in front of one sink."""

import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio import CapacityLimiter
from anyio.abc import TaskStatus
from starlette.types import ASGIApp

from bindings.http import notifications, openapi, pages
from bindings.http.announcement import announced
from bindings.http.application import Application
from bindings.http.channels import StreamCount
from bindings.http.config import HttpConfig
from bindings.http.context import Accounts, Authority, Changes, Health, HttpContext, Revoked
from bindings.http.forms import forms, profile_forms
from bindings.http.poll_positions import PollPositions
from bindings.http.routes import (
    actions,
    agent,
    authn,
    authority,
    directory,
    health,
    history,
    inbox,
    models,
    properties,
    search,
    sparql,
    streams,
)
from bindings.http.routes.polls import Pollers
from bindings.http.routing import Route, Routes
from bindings.http.searches import Searches
from bindings.http.sse import PingTicker
from bindings.http.tickets import Tickets
from bindings.web.connections import Connections, HTTPConnection, LocalConnection, TLSConnection
from bindings.web.listeners import bound, bound_unix, serving
from bindings.web.mounts import Mounts
from bindings.web.proxies import ProxiedRequests
from runtime.ports import DirectoryChange, Entry, Sink
from things.addresses import TwinID
from things.errors import ConfigInvalid
from things.holdings import Holding
from things.messages import JSONValue
from things.network import is_loopback
from things.places import Listener, Places, Urls
from things.td import ThingDescription

log = logging.getLogger(__name__)


class HttpBinding:
    """Serves the HTTP API on a plain loopback listener, a TLS listener and the control socket.

    `mounts` are ASGI applications of other bindings by path prefix (`/mqtt`, `/wot/ws`, `/ws` …). `tls` is kept as it
    is: loading a fresh chain into it serves new connections without a restart. `documents` are served as they are, by
    path (`/vocabulary/skep.jsonld`); what stands at `/asyncapi.json` is merged into our own.
    """

    name = "http"

    def __init__(
        self,
        config: HttpConfig,
        *,
        tls: ssl.SSLContext | None = None,
        accounts: Accounts | None = None,
        health: Health | None = None,
        authority: Callable[[], Authority | None] = lambda: None,
        mounts: Mapping[str, ASGIApp] | None = None,
        documents: Mapping[str, Any] | None = None,
        places: Places | None = None,
    ) -> None:
        _check(config, tls)
        self._config = config
        self._tls = tls
        self._accounts = accounts
        self._health = health or Health()
        self._authority = authority
        self._mounts = dict(mounts or {})
        self._documents = dict(documents or {})
        self._places = places or Places()
        self._tickets: Tickets | None = None
        self._changes = Changes()
        self._connections = Connections(config)
        if accounts is not None:
            accounts.on_revoked(self._revoked)

    @property
    def http_url(self) -> str | None:
        """The plain listener's address once it serves; None if there is none."""
        return self._places.urls().http

    @property
    def https_url(self) -> str | None:
        """The TLS listener's address once it serves; None if there is none."""
        return self._places.urls().https

    @property
    def stalled(self) -> int:
        """How many connections have a client that does not read what it is sent."""
        return len(self._connections.stalled)

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
            self._places.listens(
                *(
                    Listener(scheme, address[0], sock.getsockname()[1])
                    for scheme, address, sock in (("http", config.http, plain), ("https", config.https, secure))
                    if address is not None and sock is not None
                )
            )
            context = self._context(sink)
            app = self._application(context)
            if plain is not None:
                await stack.enter_async_context(
                    serving(app, plain, HTTPConnection, self._connections, address=config.http)
                )
            if secure is not None:
                await stack.enter_async_context(
                    serving(app, secure, TLSConnection, self._connections, address=config.https, tls=self._tls)
                )
            if config.control_socket is not None:
                local = bound_unix(config.control_socket)
                stack.callback(_close, local)
                stack.callback(config.control_socket.unlink, missing_ok=True)
                await stack.enter_async_context(serving(app, local, LocalConnection, self._connections))
            if config.mdns:
                tasks = await stack.enter_async_context(anyio.create_task_group())
                stack.callback(tasks.cancel_scope.cancel)
                await tasks.start(self._announce)
            stack.push_async_callback(context.searches.close)
            # Streams end first, so that the servers have nothing to wait for.
            stack.callback(context.close)
            log.info("listening", extra={"http": self.http_url, "https": self.https_url})
            task_status.started()
            await context.ticker.run()

    async def _announce(self, *, task_status: TaskStatus[None]) -> None:
        """Keep the directory announced, under the names that hold."""
        config, places, changed = self._config, self._places, anyio.Event()
        listener = config.https or config.http
        with places.telling(lambda: changed.set()):
            while listener is not None:
                url = places.urls().https or places.urls().http or ""
                async with announced(url, listener, places.names):
                    task_status.started()
                    await changed.wait()
                task_status, changed = anyio.TASK_STATUS_IGNORED, anyio.Event()
        task_status.started()

    def directory_changed(self, change: DirectoryChange, before: Entry | None, after: Entry | None) -> None:
        """Take one committed change of the directory, for its notifications."""
        self._changes.heard()

    def forms(
        self, td: ThingDescription, twin: TwinID, urls: Urls
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        return forms(td, twin, urls.base or "")

    def profile_forms(
        self, td: ThingDescription, twin: TwinID, urls: Urls
    ) -> Mapping[tuple[str, str], Sequence[dict[str, JSONValue]]]:
        """The forms of the variant that follows W3C profiles."""
        return profile_forms(td, twin, urls.base or "")

    def _context(self, sink: Sink) -> HttpContext:
        config = self._config
        self._tickets = Tickets(sink.clock, limit=config.max_tickets)
        return HttpContext(
            config=config,
            sink=sink,
            accounts=self._accounts,
            health=self._health,
            authority=self._authority,
            places=self._places,
            tickets=self._tickets,
            pollers=Pollers(
                sink.sessions, interval_s=config.poll_interval_s, limit=config.page_items, new_id=sink.new_id
            ),
            polls=PollPositions(time.monotonic, keep_s=config.poll_position_s, most=config.max_poll_positions),
            ticker=PingTicker(config.ping_s),
            streams=StreamCount(config.max_streams_per_account),
            changes=self._changes,
            searches=Searches(config.searches_at_once),
            conversions=CapacityLimiter(config.searches_at_once),
            documents=self._documents,
        )

    def _application(self, context: HttpContext) -> ASGIApp:
        api = Application(context, Routes(all_routes(self._documents)))
        app = Mounts(self._mounts, api, self._places.is_own_origin)
        return ProxiedRequests(app, self._connections.proxies) if self._connections.proxies else app

    def held_by(self, account: str | None) -> Iterable[Holding]:
        """The tickets that were given; as `things.holdings.Holdings`."""
        return () if self._tickets is None else self._tickets.held_by(account)

    async def end(self, holding_id: str, *, of: str | None) -> Holding | None:
        """End a ticket and its stream."""
        return None if self._tickets is None else self._tickets.end(holding_id, of=of)

    def _revoked(self, revoked: Revoked) -> None:
        if self._tickets is not None:
            self._tickets.revoke(revoked.covers)
        self._connections.revoke(revoked.covers)


def all_routes(documents: Mapping[str, Any]) -> list[Route]:
    """Every route of the API, in the order the description lists them."""
    routes = [
        *authn.routes(),
        *directory.routes(),
        *notifications.routes(),
        *models.routes(),
        *search.routes(),
        *sparql.routes(),
        *properties.routes(),
        *actions.routes(),
        *streams.routes(),
        *inbox.routes(),
        *history.routes(),
        *agent.routes(),
        *health.routes(),
        *authority.routes(),
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


def _close(sock: Any) -> None:
    if sock is not None:
        sock.close()
