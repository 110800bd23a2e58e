"""Listening sockets of the native engine: TCP, TLS, and either behind a proxy that speaks the PROXY protocol.

A proxy's header comes before TLS, so those connections are accepted by hand: the header is read exactly, and only then
is the socket given to the loop. Such a listener trusts what the header says; it belongs on an address that only the
proxy can reach.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address

from bindings.mqtt.engines.seam import Listener
from things.errors import AddressInUse

log = logging.getLogger(__name__)

Factory = Callable[[str | None], asyncio.Protocol]
"""Makes the protocol of a connection; the argument is its source address if a proxy named it."""

BACKLOG = 1_024
_SIGNATURE_2 = b"\r\n\r\n\0\r\nQUIT\n"
_MAX_LINE_1 = 107
_MAX_LENGTH_2 = 4_096


@asynccontextmanager
async def listen(listener: Listener, factory: Factory, timeout_s: float) -> AsyncIterator[tuple[str, int]]:
    """Listen while the context lasts; yields (host, port). `timeout_s` ends a handshake or header without end."""
    loop = asyncio.get_running_loop()
    try:
        if listener.proxy_protocol:
            sock = socket.create_server((listener.host, listener.port), backlog=BACKLOG)
            sock.setblocking(False)
            acceptor = _Acceptor(sock, listener, factory, timeout_s)
            task = loop.create_task(acceptor.run())
            try:
                yield _address(sock)
            finally:
                task.cancel()
                await asyncio.wait({task})
                sock.close()
            return
        server = await loop.create_server(
            lambda: factory(None),
            listener.host,
            listener.port,
            ssl=listener.tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=timeout_s if listener.tls else None,
        )
    except OSError as error:
        raise AddressInUse(f"cannot listen on {listener.host}:{listener.port}: {error.strerror or error}") from error
    try:
        yield _address(server.sockets[0])
    finally:
        # Not wait_closed: it would wait for the connections, which the engine closes itself.
        server.close()


def _address(sock: socket.socket) -> tuple[str, int]:
    host, port = sock.getsockname()[:2]
    return str(host), int(port)


class _Acceptor:
    """Accepts connections of a proxy and reads their header before anything else."""

    def __init__(self, sock: socket.socket, listener: Listener, factory: Factory, timeout_s: float) -> None:
        self._sock = sock
        self._timeout_s = timeout_s
        self._listener = listener
        self._factory = factory

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            while True:
                sock, peer = await loop.sock_accept(self._sock)
                tasks.create_task(self._accepted(sock, str(peer[0])))

    async def _accepted(self, sock: socket.socket, peer: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._timeout_s):
                source = await read_proxy_header(sock)
                await loop.connect_accepted_socket(lambda: self._factory(source or peer), sock, ssl=self._listener.tls)
        except (OSError, ValueError, TimeoutError) as error:
            log.info("bad connection from the proxy", extra={"peer": peer, "error": str(error)})
            sock.close()


async def read_proxy_header(sock: socket.socket) -> str | None:
    """Read exactly the PROXY header, version 1 or 2; the client's address, or None if the proxy speaks for itself."""
    start = await _exactly(sock, len(_SIGNATURE_2))
    if start == _SIGNATURE_2:
        return await _version_2(sock)
    if not start.startswith(b"PROXY "):
        raise ValueError("no PROXY header")
    line = start
    while not line.endswith(b"\r\n"):
        if len(line) >= _MAX_LINE_1:
            raise ValueError("a PROXY header without end")
        line += await _exactly(sock, 1)
    return _version_1(line)


def _version_1(line: bytes) -> str | None:
    words = line[:-2].decode("ascii").split(" ")
    if words[1] == "UNKNOWN":
        return None
    if words[1] not in ("TCP4", "TCP6") or len(words) != 6:
        raise ValueError("a PROXY header that says nothing")
    return str(ip_address(words[2]))


async def _version_2(sock: socket.socket) -> str | None:
    version, family, high, low = await _exactly(sock, 4)
    length = high << 8 | low
    if version >> 4 != 2 or version & 15 > 1 or length > _MAX_LENGTH_2:
        raise ValueError("a PROXY header of an unknown version")
    body = await _exactly(sock, length)
    if version & 15 == 0:
        return None
    match family >> 4:
        case 1 if length >= 12:
            return str(ip_address(body[:4]))
        case 2 if length >= 36:
            return str(ip_address(body[:16]))
        case _:
            return None


async def _exactly(sock: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        more = await loop.sock_recv(sock, size - len(data))
        if not more:
            raise ValueError("the connection ended inside the PROXY header")
        data += more
    return data
