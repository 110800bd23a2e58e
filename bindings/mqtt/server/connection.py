"""One client's connection: the protocol between its bytes and the gate, and the `Link` the gate pushes to.

Packets are handled in the order they came, each in one synchronous step. Reading is held while the client is being
admitted, while the runtime is behind with what it published, and while it does not read what it is answered. Writes of
one loop turn leave together. What socket or window cannot take waits in the bounded outbox.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING, Any, cast

from bindings.mqtt.seam import Closed, Publish
from bindings.mqtt.server import packets, subscribing
from bindings.mqtt.server.admission import admit, reauthenticate
from bindings.mqtt.server.deliveries import Deliveries
from bindings.mqtt.server.encoding import PINGRESP, encode_auth, encode_connack, encode_disconnect
from bindings.mqtt.server.framing import Framer
from bindings.mqtt.server.incoming import Incoming
from bindings.mqtt.server.packets import Connect, Kind
from bindings.mqtt.server.properties import Properties, Property
from bindings.mqtt.server.reasons import RETURN_CODES_3, BadPacket, Reason, protocol_error
from bindings.mqtt.server.sessions import Session
from bindings.mqtt.server.terms import Terms, agreed, announced
from things.identity import Principal

if TYPE_CHECKING:
    from bindings.mqtt.server.engine import NativeEngine

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""How long a closed client may take to read what was queued for it."""
FLUSH_BYTES = 65_536
"""Bytes of one loop turn after which the socket is asked, so that its back-pressure is felt within the turn."""
MAX_UNREAD_BYTES = 4 * FLUSH_BYTES
"""Written but not read by the client, beyond which it is not read either: deliveries wait in the outbox long before, so
these are answers to a client that asks and never listens."""
AUTH_METHOD = "token"
_CONNECT, _PUBACK = Kind.CONNECT << 4, Kind.PUBACK << 4

_ADMITTING, _REAUTHENTICATING, _BEHIND, _UNREAD, _STOPPING, _CLOSED = 1, 2, 4, 8, 16, 32
"""Why nothing is parsed now; a sum of these."""

_REASONS = {
    Closed.DISCONNECT: Reason.SUCCESS,
    Closed.LOST: Reason.UNSPECIFIED_ERROR,
    Closed.KEEP_ALIVE: Reason.KEEP_ALIVE_TIMEOUT,
    Closed.TAKEN_OVER: Reason.SESSION_TAKEN_OVER,
    Closed.REFUSED: Reason.ADMINISTRATIVE_ACTION,
    Closed.PROTOCOL: Reason.PROTOCOL_ERROR,
    Closed.SHUTDOWN: Reason.SERVER_SHUTTING_DOWN,
}
"""What MQTT 5's DISCONNECT says when the server ends a link."""


class Connection(asyncio.Protocol):
    """One connection; a `Link` from `opened` to `closed`."""

    __slots__ = (
        "_deliveries",
        "_ended",
        "_ending",
        "_engine",
        "_framer",
        "_has_auth",
        "_held",
        "_incoming",
        "_opened",
        "_opening",
        "_out",
        "_out_bytes",
        "_reading_paused",
        "_transport",
        "_will",
        "_will_delay_s",
        "client_id",
        "heard",
        "is_closed",
        "principal",
        "protocol_level",
        "session",
        "slot",
        "source",
        "terms",
    )

    principal: Principal
    session: Session
    terms: Terms
    _deliveries: Deliveries
    _transport: asyncio.Transport

    def __init__(self, engine: "NativeEngine", source: str | None = None) -> None:
        self._engine = engine
        self._framer = Framer(engine.limits.max_packet_bytes)
        self.source = source
        self.client_id = ""
        self.protocol_level = 0
        """0 until a CONNECT has been read."""
        self.heard = engine.now()
        """When the last whole packet came (engine clock)."""
        self.slot = 0
        self._held = 0
        self._opened = False
        self._opening = False
        self._ending: Closed | None = None
        """The gate has closed the link before it was opened."""
        self.is_closed = False
        self._ended = False
        """The client sends nothing more; what it sent is still handled."""
        self._reading_paused = False
        self._out: list[bytes] | None = None
        """What this loop turn writes; idle connections hold none."""
        self._out_bytes = 0
        self._incoming: Incoming | None = None
        """Made with the first publish: most connections of a gateway only listen."""
        self._has_auth = False
        """CONNECT came with the authentication method."""
        self._will: Publish | None = None
        self._will_delay_s = 0

    # -- Link ---------------------------------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Deliveries its bounded queue gave up so far."""
        outbox = self.session.outbox
        return outbox.dropped if outbox is not None else 0

    def push(self, message: Publish, delivered: Callable[[], None] | None = None) -> bool:
        """Send one delivery, or queue it as its flow says; False: not taken."""
        return self._opened and not self.is_closed and self._deliveries.push(message, delivered)

    def close(self, reason: Closed) -> None:
        """End the link; MQTT 5 hears why. One that is just being opened ends when the gate has heard of it."""
        if self._opening:
            self._ending = reason
            return
        if reason is Closed.REFUSED and self.is_open and not _has_expired(self.principal):
            # Whoever has the name of the account next must not find what was kept for this one.
            self.session.expiry_s = 0
        self.end(reason, _REASONS[reason])

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline for CONNECT; a connection over the engine's bound is cut at once."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=FLUSH_BYTES)
        if self.source is None and (peer := transport.get_extra_info("peername")):
            # Many connections come from a few hosts.
            self.source = intern(str(peer[0])) if isinstance(peer, tuple) else None
        if not self._engine.connected(self):
            self.is_closed, self._held = True, _CLOSED
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle every whole packet there is now."""
        self._framer.feed(data)
        if not self._held:
            self._read()
        elif len(self._framer) > self._framer.limit:
            self._pause_reading()

    def eof_received(self) -> bool:
        """The client sends nothing more: finish what it sent before the link counts as lost."""
        self._ended = True
        if not self._held:
            self.end(Closed.LOST)
        # Kept open for our answers; TLS cannot be half-closed.
        return self._transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; what came before is still handled."""
        self._ended = True
        self.pause_writing()
        self._held &= ~_UNREAD
        self._engine.disconnected(self)
        if not self._held:
            self.end(Closed.LOST)

    def pause_writing(self) -> None:
        """The socket is full: deliveries wait in the outbox."""
        if self._opened:
            self._deliveries.paused = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        if self.is_open:
            self._deliveries.paused = False
            self._deliveries.drain()
            if self._held & _UNREAD:
                self._release(_UNREAD)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        take = self._framer.take
        heard = False
        try:
            while not self._held and (frame := take()) is not None:
                heard = True
                first, data, start, end = frame
                if not self._opened:
                    self._on_first(first, data, start, end)
                elif first >> 4 == 3:
                    (self._incoming or self._received()).publish(first & 15, data, start, end)
                elif first == _PUBACK and end - start == 2:
                    # The other packet that comes once a message; every length but this one is looked at closely.
                    if not (packet_id := data[start] << 8 | data[start + 1]):
                        raise protocol_error("packet id 0")
                    self._deliveries.acknowledged(4, packet_id, 0)
                else:
                    self._on_packet(first >> 4, first & 15, data, start, end)
            if not (self._opened or self._held) and self._framer.first not in (None, _CONNECT):
                # HTTP, TLS and whatever else knocks here: their length would be waited for until the deadline.
                raise protocol_error("a packet before CONNECT")
        except BadPacket as bad:
            self._reject(bad)
        except Exception:
            log.exception("handling a packet failed", extra={"client": self.client_id})
            self.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)
        if heard:
            self.heard = self._engine.now()
        if self._ended and not self._held:
            self.end(Closed.LOST)

    def _on_first(self, first: int, data: bytes, start: int, end: int) -> None:
        if first >> 4 != Kind.CONNECT:
            raise protocol_error("a packet before CONNECT")
        if first & 15:
            raise BadPacket(Reason.MALFORMED_PACKET, "reserved flags of the fixed header")
        self._on_connect(packets.decode_connect(data, start, end))

    def _on_packet(self, kind: int, flags: int, data: bytes, start: int, end: int) -> None:
        level, engine = self.protocol_level, self._engine
        match kind:
            case Kind.PUBACK | Kind.PUBREC | Kind.PUBREL | Kind.PUBCOMP:
                packet_id, code = packets.decode_ack(kind, flags, data, start, end, level)
                if kind == Kind.PUBREL:
                    (self._incoming or self._received()).released(packet_id)
                else:
                    self._deliveries.acknowledged(kind, packet_id, code)
            case Kind.PINGREQ:
                packets.decode_ping(flags, start, end)
                self.write(PINGRESP)
            case Kind.SUBSCRIBE:
                asked = packets.decode_subscribe(flags, data, start, end, level)
                subscribing.subscribe(self, asked, engine.gate, engine.limits, self._deliveries)
            case Kind.UNSUBSCRIBE:
                unwanted = packets.decode_unsubscribe(flags, data, start, end, level)
                subscribing.unsubscribe(self, unwanted, engine.gate, self._deliveries)
            case Kind.DISCONNECT:
                self._on_disconnect(packets.decode_disconnect(flags, data, start, end, level))
            case Kind.AUTH:
                self._on_auth(packets.decode_auth(flags, data, start, end, level))
            case Kind.CONNECT:
                raise protocol_error("a second CONNECT")  # [MQTT-3.1.0-2]
            case 0:
                raise BadPacket(Reason.MALFORMED_PACKET, "packet type 0 is reserved")
            case _:
                raise protocol_error(f"{Kind(kind).name} is not for a server")

    def _reject(self, bad: BadPacket) -> None:
        """Answer a packet that is not allowed as the specification says, and close."""
        self._engine.counts[f"bad-packet-{bad.reason:#04x}"] += 1
        log.info("bad packet", extra={"source": self.source, "client": self.client_id, "detail": bad.detail})
        if self._opened:
            self.end(Closed.PROTOCOL, bad.reason, bad.detail)
        elif bad.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION:
            # Which format the stranger reads is a guess: below 4 it can only be that of 3.1.1.
            self.refuse(bad.reason, 4 if bad.level < 4 else 5)
        else:
            self.refuse(bad.reason, bad.level)

    def _received(self) -> Incoming:
        self._incoming = Incoming(self, self._engine)
        return self._incoming

    def hold(self, why: int = _BEHIND) -> None:
        """Read no further; without a reason given, the runtime is behind with what was read."""
        self._held |= why
        self._pause_reading()

    def advanced(self) -> None:
        """Publishes were answered: read on, once enough are."""
        if (
            self._held & _BEHIND
            and self._incoming is not None
            and self._incoming.unanswered * 2 <= self._engine.limits.max_unacknowledged
        ):
            self._release(_BEHIND)

    def _release(self, why: int) -> None:
        self._held &= ~why
        if self._held:
            return
        self._read()
        if not self._held and self._reading_paused and not self._ended:
            self._reading_paused = False
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._ended:
            self._reading_paused = True
            self._transport.pause_reading()

    async def settled(self) -> None:
        """Return when every publish that was read has been answered."""
        if self._incoming is not None:
            await self._incoming.settled()

    def stop_reading(self) -> None:
        """Read and parse nothing more: the engine stops."""
        self.hold(_STOPPING)

    # -- CONNECT ------------------------------------------------------------------------------------------------------

    def _on_connect(self, connect: Connect) -> None:
        self.protocol_level = connect.level
        method = connect.properties.get(Property.AUTH_METHOD)
        if method is not None and method != AUTH_METHOD:
            self.refuse(Reason.BAD_AUTHENTICATION_METHOD, 5)
            return
        if not connect.client_id and connect.level == 4 and not connect.clean_start:
            self.refuse(Reason.CLIENT_IDENTIFIER_NOT_VALID, 4)  # [MQTT-3.1.3-8] of 3.1.1
            return
        self._has_auth = method is not None
        self._held |= _ADMITTING
        self._engine.start(admit(self._engine, self, connect))

    def refuse(self, reason: Reason, level: int) -> None:
        """Answer CONNECT with a refusal and close; a level of 0 or a reason 3.1.1 cannot say closes alone."""
        if self.is_closed:
            return
        self._engine.counts["refused"] += 1
        if level == 5:
            self.write(encode_connack(5, reason))
        elif level == 4 and reason in RETURN_CODES_3:
            self.write(encode_connack(4, RETURN_CODES_3[reason]))
        self._shut()

    @property
    def is_waiting(self) -> bool:
        """It can still be opened: the client is there, or has left packets that count."""
        return not self.is_closed and (not self._ended or len(self._framer) > 0)

    @property
    def is_open(self) -> bool:
        """It is a link now."""
        return self._opened and not self.is_closed

    @property
    def is_ending(self) -> bool:
        """The gate has closed the link while it was being opened."""
        return self._ending is not None

    def open(self, principal: Principal, connect: Connect, session: Session, *, resumed: bool) -> None:
        """Become the link of `session`: CONNACK, its filters again, `Gate.opened`, and then whatever was held."""
        engine = self._engine
        self.principal, self.session, self.client_id = principal, session, session.key[1]
        session.link, session.ends = self, None
        self._will, self._will_delay_s = connect.will, connect.will_delay_s
        self.terms = agreed(connect, engine.limits)
        properties = self._connack_properties(connect) if connect.level == 5 else None
        self.write(encode_connack(connect.level, 0, session_present=resumed, properties=properties))
        self._deliveries = Deliveries(engine, session, self, self.terms, level=connect.level)
        self._deliveries.paused = self._ended
        self._opened = self._opening = True
        try:
            subscribing.resubscribe(self, engine.gate, self._deliveries)
            engine.gate.opened(self, resumed=resumed)
        finally:
            self._opening = False
        engine.watch(self)
        if self._ending is not None:
            self.end(self._ending, _REASONS[self._ending])
        if not self.is_closed:
            self._deliveries.drain()
            self._release(_ADMITTING)

    def _connack_properties(self, connect: Connect) -> Properties:
        properties = announced(connect, self.terms, self._engine.limits, self.session.expiry_s)
        if not connect.client_id:
            properties[Property.ASSIGNED_CLIENT_ID] = self.client_id
        if self._has_auth:
            properties[Property.AUTH_METHOD] = AUTH_METHOD
        if connect.properties.get(Property.REQUEST_RESPONSE):
            properties[Property.RESPONSE_INFORMATION] = self._engine.response_information(self.principal)
        return properties

    # -- DISCONNECT, AUTH ---------------------------------------------------------------------------------------------

    def _on_disconnect(self, disconnect: packets.Disconnect) -> None:
        if disconnect.session_expiry_s is not None:
            if disconnect.session_expiry_s and not self.terms.may_outlive:
                raise protocol_error("a session expiry on DISCONNECT after none on CONNECT")  # [MQTT-3.14.2-2]
            self.session.expiry_s = min(disconnect.session_expiry_s, self._engine.limits.max_session_expiry_s)
        if disconnect.reason_code == Reason.SUCCESS:
            self._will = None
        self.end(Closed.DISCONNECT)

    def _on_auth(self, auth: packets.Auth) -> None:
        if not self._has_auth or auth.method != AUTH_METHOD:
            raise protocol_error("AUTH with another method than CONNECT had")  # [MQTT-4.12.0-5]
        if auth.reason_code != Reason.RE_AUTHENTICATE:
            raise protocol_error("AUTH continues what has not begun")
        self._held |= _REAUTHENTICATING
        self._engine.start(reauthenticate(self._engine, self, auth.data or b""))

    def reauthenticated(self, principal: Principal | None) -> None:
        """Go on as the same account with its new credential, or end."""
        if self.is_closed:
            return
        if principal is None or principal.account != self.principal.account:
            self.end(Closed.REFUSED, Reason.NOT_AUTHORIZED)
            return
        self.principal = principal
        self.write(encode_auth(Reason.SUCCESS, {Property.AUTH_METHOD: AUTH_METHOD}))
        self._release(_REAUTHENTICATING)

    # -- writing and ending -------------------------------------------------------------------------------------------

    def write(self, data: bytes, packet_id: bytes = b"", tail: bytes = b"") -> None:
        """Queue bytes for the one write of this loop turn; nothing once the connection is closed."""
        if self.is_closed:
            return
        out = self._out
        if out is None:
            out = self._out = []
            self._engine.flush_soon(self)
        if packet_id:
            out += (data, packet_id, tail)
            self._out_bytes += len(data) + len(tail) + 2
        else:
            out.append(data)
            self._out_bytes += len(data)
        if self._out_bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what was queued to the socket in one write."""
        if self._out is not None:
            data = b"".join(self._out)
            self._out, self._out_bytes = None, 0
            transport = self._transport
            if not transport.is_closing():
                transport.write(data)
                if self.is_open and self._deliveries.paused and transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                    self.hold(_UNREAD)

    def end(self, reason: Closed, code: Reason = Reason.SUCCESS, detail: str = "") -> None:
        """Close the connection and, if it was a link, end it: will, session, `Gate.closed`, in this order."""
        if self.is_closed:
            return
        if not self._opened:
            self._shut()
            return
        if self.protocol_level == 5 and reason not in (Closed.DISCONNECT, Closed.LOST):
            terms = self.terms
            properties: Properties = {Property.REASON_STRING: detail} if detail and terms.wants_reasons else {}
            packet = encode_disconnect(code, properties)
            is_too_long = terms.max_packet and len(packet) > terms.max_packet
            self.write(encode_disconnect(code) if is_too_long else packet)
        self._shut()
        will, self._will = self._will, None
        self._engine.lifetimes.ended(self, reason, will, self._will_delay_s)

    def _shut(self) -> None:
        """Close the socket behind what is queued; a client that does not read it is cut off."""
        self.is_closed = True
        self._held |= _CLOSED
        self.flush()
        self._framer.clear()
        self._transport.close()
        self._engine.closing(self)

    def abort(self) -> None:
        """Drop the socket with whatever it has not sent."""
        self._transport.abort()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """What the client has shown, if it has: the TLS context has verified it."""
        shown: dict[str, Any] | None = self._transport.get_extra_info("peercert")
        return shown

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def keep_alive_deadline(self) -> float:
        """When the client must have been heard of (engine clock)."""
        return self.heard + self.terms.keep_alive_s * 1.5

    def due(self, now: float) -> float | None:
        """Act on the deadline this connection is under, if it has come."""
        if self.is_closed:
            self._transport.abort()
            return None
        if not self._opened:
            deadline = self.heard + self._engine.limits.connect_timeout_s
            if self._held & _ADMITTING or now < deadline:
                return max(deadline, now + 1.0)
            self._engine.counts["connect-timeout"] += 1
            self.end(Closed.PROTOCOL)
            return now + CLOSE_TIMEOUT_S
        deadline = self.keep_alive_deadline()
        if now < deadline or self._held & ~_UNREAD:
            # While the runtime is behind, it is not the client that is silent; one that reads nothing is as good as so.
            return max(deadline, now + 1.0)
        self._engine.counts["keep-alive"] += 1
        self.close(Closed.KEEP_ALIVE)
        return None


def _has_expired(principal: Principal) -> bool:
    """Its credential ran out: the account comes back with a fresh one, and goes on."""
    return principal.expires is not None and principal.expires <= time.time_ns() // 1_000
