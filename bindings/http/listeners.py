"""The sockets: plain on loopback, TLS, and the control socket; uvicorn behind all of them.

uvicorn's own signal handling stays off: the composition root decides when to stop. The connection class adds what
uvicorn leaves open: a bound and a deadline for headers, a count of connections, the peer's user id on the control
socket and the client certificate's name on TLS.
"""

import asyncio
import logging
import os
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from bindings.http.config import Address, HttpConfig
from bindings.http.gathering import GatheringTransport
from bindings.http.problems import document
from bindings.http.whole import EXCHANGE
from things.errors import AddressInUse, ConfigInvalid
from things.network import is_loopback

log = logging.getLogger(__name__)

_PEERCRED = struct.Struct("3i")


class Connection(HttpToolsProtocol):
    """One client connection, bounded; subclasses carry the configuration of their listener."""

    limits: HttpConfig
    is_loopback = False
    """Whether the listener takes connections of this machine only, by its own address."""
    total: Counter[str]
    """Open connections by source of all listeners together; "" counts all."""

    _deadline: asyncio.TimerHandle | None = None
    """Runs while the client owes us headers or a body."""
    _owes_headers = True
    _owes_body = False
    _earlier_bytes = 0
    """Of the headers under way, in reads before this one: a header without end is never handed over by the parser."""
    _is_too_large = False
    _counted: tuple[str, ...] = ()
    _idle: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(GatheringTransport(transport, self.loop))
        source = self.client[0] if self.client else ""
        if not self._admitted(transport, source):
            transport.abort()
            return
        self._counted = ("", source) if source else ("",)
        self.total.update(self._counted)
        # One state for the connection; each request's scope gets a copy.
        self.app_state = {"abort": transport.abort, "loopback": self.is_loopback, **self._credentials(transport)}
        self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._no_deadline()
        self._no_look()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._owes_headers:
            if self._earlier_bytes > self.limits.max_header_bytes:
                self._is_too_large = True
                self.send_400_response("")
                return
            self._earlier_bytes += len(data)
        super().data_received(data)
        # Most requests come whole, in one read: only the others cost a timer.
        if self._deadline is None:
            if self._owes_body:
                self._deadline = self.loop.call_later(self.limits.body_timeout_s, self._too_late)
            elif self._owes_headers and self._earlier_bytes:
                self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_late)

    def on_headers_complete(self) -> None:
        self._owes_headers = False
        self._no_deadline()
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value) + 4
        if size > self.limits.max_header_bytes:
            self._is_too_large = True
            raise ValueError("headers over the limit")  # the parser stops, and answers by send_400_response
        self._owes_body = True
        super().on_headers_complete()
        self.scope["state"][EXCHANGE] = self.cycle

    def on_response_complete(self) -> None:
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()
        # One timer looks after many exchanges: to set one for each is as dear as to parse it.
        self._idle_since = self.loop.time()
        if self._idle is None:
            self._idle = self.loop.call_later(self.timeout_keep_alive, self._look_for_silence)

    def _look_for_silence(self) -> None:
        self._idle = None
        if self._deadline is not None or not self.cycle.response_complete:
            return
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._idle = self.loop.call_later(left_s, self._look_for_silence)
        else:
            self.timeout_keep_alive_handler()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._owes_headers, self._owes_body = True, False
        self._earlier_bytes = 0
        self._no_deadline()

    def handle_websocket_upgrade(self) -> None:
        self._no_deadline()
        # Whatever was asked over this connection before, its silence is the other protocol's now.
        self._no_look()
        super().handle_websocket_upgrade()
        socket_protocol = self.transport.get_protocol()
        if isinstance(socket_protocol, WebSocketConnection):
            socket_protocol.release = self._release

    def send_400_response(self, msg: str) -> None:
        code = "headers-too-large" if self._is_too_large else "malformed"
        reply = document(code, "the headers are too large" if self._is_too_large else "this is not an HTTP request")
        body = bytes(reply.body)
        self.transport.write(
            STATUS_LINE[reply.status_code] + b"content-type: application/problem+json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def _release(self) -> None:
        self.total.subtract(self._counted)
        for source in self._counted:
            if self.total[source] <= 0:
                del self.total[source]
        self._counted = ()

    def _no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _no_look(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()

    def _admitted(self, transport: asyncio.Transport, source: str) -> bool:
        if self.total[""] >= self.limits.max_connections:
            return False
        if not source or is_loopback(source):
            return True
        return self.total[source] < self.limits.max_connections_per_source

    def _credentials(self, transport: asyncio.Transport) -> dict[str, Any]:
        return {}


class WebSocketConnection(WebSocketsSansIOProtocol):
    """A connection that was upgraded; it stays counted until it ends."""

    release: Callable[[], None] | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.release is not None:
            self.release()
        super().connection_lost(exc)


class TLSConnection(Connection):
    """A TLS connection; the name in a client certificate that our CA signed names an account."""

    def _credentials(self, transport: asyncio.Transport) -> dict[str, Any]:
        certificate = transport.get_extra_info("peercert")
        for relative in (certificate or {}).get("subject", ()):
            for key, value in relative:
                if key == "commonName":
                    return {"certificate_name": value}
        return {}


class LocalConnection(Connection):
    """A connection on the control socket; only the process's own user may speak there."""

    def _admitted(self, transport: asyncio.Transport, source: str) -> bool:
        return peer_uid(transport) in (os.getuid(), 0) and super()._admitted(transport, source)

    def _credentials(self, transport: asyncio.Transport) -> dict[str, Any]:
        return {"local_admin": True}


def peer_uid(transport: asyncio.BaseTransport) -> int:
    """The user at the other end of a Unix socket, as the kernel knows it."""
    raw = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    uid: int = _PEERCRED.unpack(raw)[1]
    return uid


def bound(address: Address) -> socket.socket:
    """A listening TCP socket; raises AddressInUse, ConfigInvalid."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on what it accepts only where the protocol is said; without it answers wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if isinstance(error, socket.gaierror):
            raise ConfigInvalid(f"{host!r} is not an address of this machine") from error
        raise AddressInUse(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return sock


def bound_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only its owner may open; one that a dead process left is replaced. Whoever calls
    this holds the lock of the home folder."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        sock.bind(str(path))
    except OSError as error:
        sock.close()
        raise ConfigInvalid(f"cannot make the control socket {path.name}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    sock.setblocking(False)
    return sock


def url(scheme: str, sock: socket.socket) -> str:
    """The address of a listener as a URL; a listener on every interface is named by its loopback address."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@asynccontextmanager
async def serving(
    app: ASGIApp,
    sock: socket.socket,
    connection: type[Connection],
    config: HttpConfig,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[None]:
    """Serve `app` on one bound socket for as long as the block runs; then running exchanges get a moment to finish."""

    def context(_config: uvicorn.Config, _default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        assert tls is not None
        return tls

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=connection,
            ws=WebSocketConnection,
            log_level="warning",
            ws_max_size=config.max_body_bytes,
            # A compressor costs some 300 KiB a connection, idle ones too, and lets a small frame grow large.
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=config.keep_alive_s,
            timeout_graceful_shutdown=max(1, round(config.graceful_s)),
            ssl_context_factory=context if tls is not None else None,
        )
    )
    # The parts of `Server.serve` without its signal handlers: signals are the composition root's.
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup(sockets=[sock])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.main_loop)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
            with anyio.move_on_after(config.graceful_s + 1.0, shield=True):
                await server.shutdown(sockets=[sock])
