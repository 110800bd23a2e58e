"""The sockets: plain, TLS and the control socket; uvicorn behind all of them.

uvicorn's own signal handling stays off: the composition root decides when to stop.
"""

import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import uvicorn
from starlette.types import ASGIApp

from bindings.web.connections import Connections, HTTPConnection
from bindings.web.limits import Address
from bindings.web.upgraded import WebSocketConnection
from things.errors import AddressInUse, ConfigInvalid
from things.network import is_loopback

WEBSOCKET_MARGIN_BYTES = 4_096
"""What a WebSocket takes above the largest message: the envelope around a value."""
NOTICED_TURNS = 3
"""Turns of the loop after which a connection that its client has closed is no longer counted."""


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


@asynccontextmanager
async def serving(
    app: ASGIApp,
    sock: socket.socket,
    connection: type[HTTPConnection],
    connections: Connections,
    *,
    address: Address | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Serve `app` on one socket, bound to `address`, for as long as the block runs; then running exchanges get a
    moment to finish."""
    limits = connections.limits
    # uvicorn calls what makes its protocols with keywords, and asks no more of it than that.
    protocol: Any = partial(
        connection, connections=connections, is_loopback=address is not None and is_loopback(address[0])
    )

    def context(_config: uvicorn.Config, _default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        assert tls is not None
        return tls

    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol,
            ws=WebSocketConnection,
            log_level="warning",
            # What is a little too large is refused in the words of its protocol; what is more ends the connection.
            ws_max_size=limits.max_body_bytes + WEBSOCKET_MARGIN_BYTES,
            # A compressor costs some 300 KiB a connection, idle ones too, and lets a small frame grow large.
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=False,
            timeout_keep_alive=limits.keep_alive_s,
            timeout_graceful_shutdown=max(1, round(limits.graceful_s)),
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
            with anyio.move_on_after(limits.graceful_s + 1.0, shield=True):
                await _ended(server, sock)


async def _ended(server: uvicorn.Server, sock: socket.socket) -> None:
    for _ in range(NOTICED_TURNS):
        await anyio.lowlevel.checkpoint()
    if server.server_state.connections or server.server_state.tasks:
        await server.shutdown(sockets=[sock])
        return
    # No client is left to wait for: uvicorn would wait a tenth of a second all the same, for each listener in turn.
    for listening in server.servers:
        listening.close()
    sock.close()
