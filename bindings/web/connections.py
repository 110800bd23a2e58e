"""One client's connection, as uvicorn speaks HTTP/1.1 over it, and the bounds that uvicorn leaves open.

Bounded are the headers, in bytes, fields and time, what chunks of a body bring beside it, how long a client may take to
read, and how many connections there are. On the control socket the peer's user counts, on TLS its certificate.

This, `intake.py` and `upgraded.py` are the only modules that use parts of uvicorn which no document promises; so
uvicorn is pinned to one version, and a test names every part.
"""

import asyncio
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from bindings.web.coalesced_writes import CoalescingTransport
from bindings.web.intake import Intake
from bindings.web.limits import ConnectionLimits
from bindings.web.proxies import TrustedProxies
from bindings.web.upgraded import WebSocketConnection
from things.identity import Principal, shown_certificate
from things.jsontext import encode
from things.network import is_loopback
from things.problems import details

MAX_FRAMING_BYTES = 65_536
"""Of chunk sizes, extensions and trailers, beyond as much as the chunks hold: none of it is kept, or has an end."""
_PEERCRED = struct.Struct("3i")


class Connections:
    """The open connections of all listeners together, and what bounds each of them."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.proxies = TrustedProxies(limits.trusted_proxies)
        self.stalled: set[HTTPConnection] = set()
        """Those whose client does not read what it is sent."""
        self._open = 0
        self._by_source: Counter[str] = Counter()

    def admit(self, source: str) -> bool:
        """Whether one more may be opened from there ("" on the control socket)."""
        if self._open >= self.limits.max_connections:
            return False
        if not source or is_loopback(source) or source in self.proxies:
            return True
        return self._by_source[source] < self.limits.max_connections_per_source

    def opened(self, source: str) -> None:
        self._open += 1
        self._by_source[source] += 1

    def closed(self, source: str) -> None:
        self._open -= 1
        self._by_source[source] -= 1
        if not self._by_source[source]:
            del self._by_source[source]

    def revoke(self, covers: Callable[[Principal], bool]) -> None:
        """Cut off covered clients that do not read. Others are asked for their credentials with the next request."""
        for connection in tuple(self.stalled):
            connection.revoke(covers)


class HTTPConnection(HttpToolsProtocol):
    """One client connection, bounded. `is_loopback` says whether its listener takes connections of this machine only,
    by its own address."""

    _deadline: asyncio.TimerHandle | None = None
    """Runs while the client owes us headers or a body."""
    _owes_headers = True
    _owes_body = False
    _earlier_bytes = 0
    """Of the headers under way, in reads before this one: a header without end is never handed over by the parser."""
    _is_too_large = False
    _is_ambiguous = False
    _framing_bytes = 0
    """What a body under way took beside the bytes of its chunks, less those bytes."""
    _upgrades: bool | None = None
    _source: str | None = None
    """Under which the connection is counted, for as long as it is."""
    _principal: Principal | None = None
    """Who spoke last over the connection."""
    _reader: asyncio.TimerHandle | None = None
    """Runs while the client owes us to read on."""
    _unread = 0
    _idle: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def __init__(self, *args: Any, connections: Connections, is_loopback: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.limits = connections.limits
        self._all = connections
        self._is_loopback = is_loopback

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))
        self.flow = self._intake = Intake(self.transport, self.loop, self._parse, self.pipeline)
        source = self.client[0] if self.client else ""
        if not self._admitted(transport, source):
            transport.abort()
            return
        self._source = source
        self._all.opened(source)
        # One state for the connection; each request's scope gets a copy.
        self.app_state = {
            "abort": transport.abort,
            "heard": self._heard,
            "loopback": self._is_loopback,
            **self._credentials(transport),
        }
        self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._no_deadline()
        self._no_look()
        self._no_reader()
        self._intake.drop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._intake.take(data)

    def _parse(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._owes_headers:
            if self._earlier_bytes > self.limits.max_header_bytes:
                self._is_too_large = True
                self.send_400_response("")
                return
            self._earlier_bytes += len(data)
            self._framing_bytes = 0
        else:
            self._framing_bytes += len(data)
            if self._framing_bytes > MAX_FRAMING_BYTES:
                self.send_400_response("")
                return
        super().data_received(data)
        # Most requests come whole, in one read: only the others cost a timer.
        if self._deadline is None:
            if self._owes_body:
                self._deadline = self.loop.call_later(self.limits.body_timeout_s, self._too_late)
            elif self._owes_headers and self._earlier_bytes:
                self._deadline = self.loop.call_later(self.limits.header_timeout_s, self._too_late)

    def on_message_begin(self) -> None:
        self._upgrades = None
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here too.
        if len(self.headers) >= self.limits.max_header_fields:
            self._is_too_large = True
            raise ValueError("too many header fields")  # the parser stops, and answers by send_400_response
        super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= 2 * len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._owes_headers = False
        self._no_deadline()
        size, hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value) + 4
            hosts += name == b"host"
        if size > self.limits.max_header_bytes:
            self._is_too_large = True
            raise ValueError("headers over the limit")  # the parser stops, and answers by send_400_response
        # RFC 9112, 3.2: which of two is meant, or who without one, is not for us to guess.
        if hosts != 1 and (hosts or self.parser.get_http_version() != "1.0"):
            self._is_ambiguous = True
            raise ValueError("not exactly one Host field")
        self._owes_body = True
        super().on_headers_complete()

    def _should_upgrade(self) -> bool:
        # Asked again with every chunk of a body.
        if self._upgrades is None:
            self._upgrades = super()._should_upgrade()
        return self._upgrades

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            # Not read on before the last of them: each answer would let in as many more.
            self._start_asgi_task(*self.pipeline.pop())
            return
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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.stalled.add(self)
        self._unread = self.transport.get_write_buffer_size()
        if self._reader is None:
            self._reader = self.loop.call_later(self.limits.write_timeout_s, self._look_for_reader)

    def resume_writing(self) -> None:
        self._no_reader()
        super().resume_writing()

    def revoke(self, covers: Callable[[Principal], bool]) -> None:
        """Cut the connection off if its principal is covered."""
        if self._principal is not None and covers(self._principal):
            self.transport.abort()

    def _heard(self, principal: Principal) -> None:
        self._principal = principal

    def _look_for_reader(self) -> None:
        self._reader = None
        left = self.transport.get_write_buffer_size()
        if left >= self._unread:
            self.transport.abort()
            return
        self._unread = left
        self._reader = self.loop.call_later(self.limits.write_timeout_s, self._look_for_reader)

    def _no_reader(self) -> None:
        self._all.stalled.discard(self)
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def handle_websocket_upgrade(self) -> None:
        self._no_deadline()
        # Whatever was asked over this connection before, its silence is the other protocol's now.
        self._no_look()
        self._no_reader()
        self._intake.drop()
        super().handle_websocket_upgrade()
        socket_protocol = self.transport.get_protocol()
        if isinstance(socket_protocol, WebSocketConnection):
            socket_protocol.release = self._release

    def send_400_response(self, msg: str) -> None:
        code = "headers-too-large" if self._is_too_large else "malformed"
        detail = "the headers are too large" if self._is_too_large else "this is not an HTTP request"
        problem = details(code, "a request has exactly one Host field" if self._is_ambiguous else detail)
        body = encode(problem)
        self.transport.write(
            STATUS_LINE[int(str(problem["status"]))] + b"content-type: application/problem+json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def _release(self) -> None:
        if self._source is not None:
            self._all.closed(self._source)
            self._source = None

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
        return self._all.admit(source)

    def _credentials(self, transport: asyncio.Transport) -> dict[str, Any]:
        return {}


class TLSConnection(HTTPConnection):
    """A TLS connection; a client certificate that our CA signed may prove an account."""

    def _credentials(self, transport: asyncio.Transport) -> dict[str, Any]:
        certificate = shown_certificate(transport.get_extra_info("peercert"))
        return {} if certificate is None else {"certificate": certificate}


class LocalConnection(HTTPConnection):
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
