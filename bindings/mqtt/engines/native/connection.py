"""One client's connection: the protocol between its packets and the gate, and the `Link` the gate pushes to.

What it reads comes through `reading`, what it writes leaves through `writing`; this knows what each packet means, when
the link opens and how it ends. What socket or window cannot take waits in the bounded outbox.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sys import intern
from time import perf_counter
from typing import Any, cast

from bindings.mqtt.engines.codec import packets
from bindings.mqtt.engines.codec.encoding import PINGRESP, encode_auth, encode_disconnect
from bindings.mqtt.engines.codec.packets import Connect, PacketType
from bindings.mqtt.engines.codec.properties import Properties, Property
from bindings.mqtt.engines.codec.reasons import BadPacket, Reason, protocol_error
from bindings.mqtt.engines.native import subscribing
from bindings.mqtt.engines.native.admission import Admission
from bindings.mqtt.engines.native.connack import refusing
from bindings.mqtt.engines.native.deliveries import Deliveries
from bindings.mqtt.engines.native.incoming import Incoming
from bindings.mqtt.engines.native.lifetimes import Lifetimes
from bindings.mqtt.engines.native.negotiated import UNKNOWN_TERMS, agreed
from bindings.mqtt.engines.native.reading import ADMITTING, BEHIND, REAUTHENTICATING, STOPPING, TURN, UNREAD, Reading
from bindings.mqtt.engines.native.sessions import Session
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.native.ticker import SLOT_S, Ticker
from bindings.mqtt.engines.native.turns import SLICE_S
from bindings.mqtt.engines.native.writing import Output
from bindings.mqtt.engines.open_connections import OpenConnections
from bindings.mqtt.engines.seam import Closed, Publish
from things.identity import Principal

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""How long a closed client may take to read what was queued for it."""
AUTH_METHOD = "token"
_DONE = object()

_REASONS = {
    Closed.DISCONNECT: Reason.SUCCESS,
    Closed.LOST: Reason.UNSPECIFIED_ERROR,
    Closed.KEEP_ALIVE: Reason.KEEP_ALIVE_TIMEOUT,
    Closed.TAKEN_OVER: Reason.SESSION_TAKEN_OVER,
    Closed.REFUSED: Reason.ADMINISTRATIVE_ACTION,
    Closed.EXPIRED: Reason.ADMINISTRATIVE_ACTION,
    Closed.PROTOCOL: Reason.PROTOCOL_ERROR,
    Closed.SHUTDOWN: Reason.SERVER_SHUTTING_DOWN,
}
"""What MQTT 5's DISCONNECT says when the server ends a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What the connections of one engine have in common."""

    shared: Shared
    connections: OpenConnections["Connection"]
    ticker: Ticker
    lifetimes: Lifetimes
    admission: Admission


class Connection(asyncio.Protocol):
    """One connection; a `Link` from `open` to `end`."""

    __slots__ = (
        "_deliveries",
        "_ending",
        "_has_auth",
        "_incoming",
        "_is_opening",
        "_output",
        "_overdue",
        "_reading",
        "_server",
        "_unannounced",
        "_will",
        "_will_delay_s",
        "client_id",
        "is_open",
        "principal",
        "protocol_level",
        "session",
        "slot",
        "source",
        "terms",
    )

    principal: Principal
    session: Session
    _deliveries: Deliveries
    _output: Output
    _reading: Reading

    def __init__(self, server: Server, source: str | None = None) -> None:
        self._server = server
        self.source = source
        self.client_id = ""
        self.protocol_level = 0
        """0 until a CONNECT has been read."""
        self.terms = UNKNOWN_TERMS
        self.slot = 0
        self.is_open = False
        """It is a link now."""
        self._is_opening = False
        """What the gate closes now ends when it has heard of it."""
        self._unannounced: bool | None = None
        """Whether its session was resumed, until the gate has heard that it is open."""
        self._ending: Closed | None = None
        """The gate has closed the link before it was opened."""
        self._incoming: Incoming | None = None
        """Made with the first publish: most connections of a gateway only listen."""
        self._has_auth = False
        """CONNECT came with the authentication method."""
        self._will: Publish | None = None
        self._will_delay_s = 0
        self._overdue = -1.0
        """When the client was last heard of, as its deadline had passed already."""

    # -- Link ---------------------------------------------------------------------------------------------------------

    @property
    def local(self) -> str | None:
        """The address of ours that the connection came to."""
        own = self._output.transport.get_extra_info("sockname")
        return str(own[0]) if isinstance(own, tuple) else None

    @property
    def has_room(self) -> bool:
        """What is pushed now is sent at once."""
        return self.is_open and self._deliveries.has_room

    def push(self, message: Publish, delivered: Callable[[], None] | None = None) -> bool:
        """Send one delivery, or queue it as its flow says; False: not taken."""
        return self.is_open and self._deliveries.push(message, delivered)

    def close(self, reason: Closed) -> None:
        """End the link; MQTT 5 hears why. One that is just being opened ends when the gate has heard of it."""
        if self._is_opening:
            self._ending = reason
            return
        if reason is Closed.REFUSED and self.is_open:
            # Whoever has the name of the account next must not find what was kept for this one.
            self.session.expiry_s = 0
        self.end(reason, _REASONS[reason])

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline for CONNECT; a connection over the engine's bound is cut at once."""
        server = self._server
        shared = server.shared
        self._output = Output(cast(asyncio.Transport, transport), shared.flushes)
        self._reading = Reading(shared, self._output, self)
        if self.source is None and (peer := transport.get_extra_info("peername")):
            # Many connections come from a few hosts.
            self.source = intern(str(peer[0])) if isinstance(peer, tuple) else None
        if server.connections.take(self):
            server.ticker.add(self, self._reading.heard + shared.limits.connect_timeout_s)
        else:
            self._output.is_closed = True
            self._reading.close()
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._reading.feed(data)

    def eof_received(self) -> bool:
        """The client sends nothing more: finish what it sent before the link counts as lost."""
        self._reading.end()
        # Kept open for our answers; TLS cannot be half-closed.
        return self._output.transport.get_extra_info("sslcontext") is None

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; what came before is still handled."""
        self._output.paused = True
        self._reading.held &= ~UNREAD
        self._server.connections.forget(self)
        self._server.ticker.remove(self)
        self._reading.end()

    def pause_writing(self) -> None:
        """The socket is full: deliveries wait in the outbox."""
        self._output.paused = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        self._output.paused = False
        if self.is_open:
            self._deliveries.drain()
            if self._reading.held & UNREAD:
                self._reading.release(UNREAD)

    # -- reading ------------------------------------------------------------------------------------------------------

    def handle(self, first: int, data: bytes, start: int, end: int) -> Iterator[None] | None:
        """Handle a packet (`reading.Handler`)."""
        if not self.is_open:
            self._on_first(first, data, start, end)
        elif first >> 4 == packets.PUBLISH:
            (self._incoming or self._received()).publish(first & 15, data, start, end)
        elif first == packets.PUBACK << 4 and end - start == 2:
            # The other packet that comes once a message; every length but this one is looked at closely.
            if not (packet_id := data[start] << 8 | data[start + 1]):
                raise protocol_error("packet id 0")
            self._deliveries.acknowledged(packets.PUBACK, packet_id, 0)
        else:
            return self._on_packet(first >> 4, first & 15, data, start, end)
        return None

    def send_more(self, steps: int, until: float) -> tuple[int, bool]:
        """Send what was missed, and latest values (`reading.Handler`)."""
        if self._unannounced is not None:
            return 0, False
        try:
            return self._deliveries.send_more(steps, until)
        except Exception:
            log.exception("sending what was missed, or latest values, failed", extra={"client": self.client_id})
            self.fail()
            return 0, False

    def wants_turn(self) -> None:
        """There is something to be made that could be sent."""
        self._reading.wants_turn()

    def owed_s(self) -> float:
        """Seconds for which nothing more of its account is to be read."""
        return self._server.shared.gate.owed_s(self)

    def paid(self) -> None:
        """Go on with what was asked for, too."""
        if self.is_open:
            self._deliveries.drain()

    def hold_back(self) -> None:
        """Read no further: the runtime is behind with what was read."""
        self._reading.hold(BEHIND)

    def read_on(self) -> None:
        """Enough publishes were answered."""
        self._reading.release(BEHIND)

    def stop_reading(self) -> None:
        """Read and handle nothing more: the engine stops."""
        self._reading.hold(STOPPING)

    async def settled(self) -> None:
        """Return when every publish that was read has been answered."""
        if self._incoming is not None:
            await self._incoming.settled()

    def _on_first(self, first: int, data: bytes, start: int, end: int) -> None:
        if first >> 4 != PacketType.CONNECT:
            raise protocol_error("a packet before CONNECT")
        if first & 15:
            raise BadPacket(Reason.MALFORMED_PACKET, "reserved flags of the fixed header")
        self._on_connect(packets.decode_connect(data, start, end))

    def _on_packet(self, packet_type: int, flags: int, data: bytes, start: int, end: int) -> Iterator[None] | None:
        level, shared = self.protocol_level, self._server.shared
        match packet_type:
            case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBREL | PacketType.PUBCOMP:
                packet_id, code = packets.decode_ack(packet_type, flags, data, start, end, level)
                if packet_type == PacketType.PUBREL:
                    (self._incoming or self._received()).released(packet_id)
                else:
                    self._deliveries.acknowledged(packet_type, packet_id, code)
            case PacketType.PINGREQ:
                packets.decode_ping(flags, start, end)
                self._output.write(PINGRESP)
            case PacketType.SUBSCRIBE:
                asked = packets.decode_subscribe(flags, data, start, end, level)
                return subscribing.subscribe(self, asked, shared, self._output, self._deliveries)
            case PacketType.UNSUBSCRIBE:
                unwanted = packets.decode_unsubscribe(flags, data, start, end, level)
                return subscribing.unsubscribe(self, unwanted, shared, self._output, self._deliveries)
            case PacketType.DISCONNECT:
                self._on_disconnect(packets.decode_disconnect(flags, data, start, end, level))
            case PacketType.AUTH:
                self._on_auth(packets.decode_auth(flags, data, start, end, level))
            case PacketType.CONNECT:
                raise protocol_error("a second CONNECT")  # [MQTT-3.1.0-2]
            case 0:
                raise BadPacket(Reason.MALFORMED_PACKET, "packet type 0 is reserved")
            case _:
                raise protocol_error(f"{PacketType(packet_type).name} is not for a server")
        return None

    def _received(self) -> Incoming:
        self._incoming = Incoming(self._server.shared, self.session, self, self._output, self.terms)
        return self._incoming

    def rejected(self, bad: BadPacket) -> None:
        """Answer a packet that is not allowed as the specification says, and close."""
        self._server.shared.counts[f"bad-packet-{bad.reason:#04x}"] += 1
        log.info("bad packet", extra={"source": self.source, "client": self.client_id, "detail": bad.detail})
        if self.is_open:
            self.end(Closed.PROTOCOL, bad.reason, bad.detail)
        elif bad.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION:
            # Which format the stranger reads is a guess: below 4 it can only be that of 3.1.1.
            self.refuse(bad.reason, 4 if bad.level < 4 else 5)
        else:
            self.refuse(bad.reason, bad.level)

    def failed(self) -> None:
        """Handling a packet raised something that is no rule of the protocol."""
        log.exception("handling a packet failed", extra={"client": self.client_id})
        self.fail()

    def finished(self) -> None:
        """The client has ended, and all it sent is handled."""
        self.end(Closed.LOST)

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
        self.terms = agreed(connect, self._server.shared.limits)
        self._reading.held |= ADMITTING
        self._server.shared.start(self._server.admission.admit(self, connect))

    def refuse(self, reason: Reason, level: int, detail: str = "") -> None:
        """Answer CONNECT with a refusal and close; a level of 0 or a reason 3.1.1 cannot say closes alone."""
        if self._output.is_closed:
            return
        self._server.shared.counts["refused"] += 1
        if packet := refusing(reason, level, self.terms, detail):
            self._output.write(packet)
        self._shut()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """What the client has shown, if it has: the TLS context has verified it."""
        shown: dict[str, Any] | None = self._output.transport.get_extra_info("peercert")
        return shown

    @property
    def is_waiting(self) -> bool:
        """It can still be opened: the client is there, or has left packets that count."""
        return not self._output.is_closed and (not self._reading.has_ended or self._reading.has_packets)

    @property
    def is_ending(self) -> bool:
        """The gate has closed the link while it was being opened."""
        return self._ending is not None

    def open(self, principal: Principal, connect: Connect, session: Session, connack: bytes, *, resumed: bool) -> None:
        """Become the link of `session`: CONNACK, its filters again, `Gate.opened`, and then whatever was held."""
        shared, output = self._server.shared, self._output
        self.principal, self.session, self.client_id = principal, session, session.key[1]
        session.ends = None
        self._will, self._will_delay_s = connect.will, connect.will_delay_s
        output.write(connack)
        self._deliveries = Deliveries(shared, session, self, output, self.terms)
        if resumed:
            self._deliveries.resume()
        session.link = self
        if self._reading.has_ended:
            output.paused = True
        self._reading.allow(shared.limits.max_packet_bytes)
        self.is_open, self._unannounced = True, resumed
        self._server.connections.logged_in(self)
        self._watch(self._keep_alive_deadline())
        opening, until = self._opening(), perf_counter() + SLICE_S
        for _ in opening:
            if perf_counter() > until:
                self._reading.begin(opening)
                break
        if self.is_open:
            self._reading.release(ADMITTING)

    def _opening(self) -> Iterator[None]:
        """The rest of `open`, a filter in each step."""
        filters = subscribing.resubscribe(self, self._server.shared.gate, self._deliveries)
        while self._is_opening_step(filters):
            yield
        self._tell_opened()
        if self._ending is not None:
            self.end(self._ending, _REASONS[self._ending])
        if self.is_open:
            self._deliveries.resumed()
            self._deliveries.drain()

    def _is_opening_step(self, filters: Iterator[None]) -> bool:
        """Let one more filter stand; False if there is none."""
        self._is_opening = True
        try:
            return next(filters, _DONE) is not _DONE
        finally:
            self._is_opening = False

    def _tell_opened(self) -> None:
        """Tell the gate, once."""
        resumed, self._unannounced = self._unannounced, None
        if resumed is not None:
            self._is_opening = True
            try:
                self._server.shared.gate.opened(self, resumed=resumed)
            finally:
                self._is_opening = False

    # -- DISCONNECT, AUTH ---------------------------------------------------------------------------------------------

    def _on_disconnect(self, disconnect: packets.Disconnect) -> None:
        if disconnect.session_expiry_s is not None:
            if disconnect.session_expiry_s and not self.terms.may_outlive:
                raise protocol_error("a session expiry on DISCONNECT after none on CONNECT")  # [MQTT-3.14.2-2]
            self.session.expiry_s = min(disconnect.session_expiry_s, self._server.shared.limits.max_session_expiry_s)
        if disconnect.reason_code == Reason.SUCCESS:
            self._will = None
        self.end(Closed.DISCONNECT)

    def _on_auth(self, auth: packets.Auth) -> None:
        if not self._has_auth or auth.method != AUTH_METHOD:
            raise protocol_error("AUTH with another method than CONNECT had")  # [MQTT-4.12.0-5]
        if auth.reason_code != Reason.RE_AUTHENTICATE:
            raise protocol_error("AUTH continues what has not begun")
        self._reading.held |= REAUTHENTICATING
        self._server.shared.start(self._reauthenticate(auth.data or b""))

    async def _reauthenticate(self, data: bytes) -> None:
        """Go on as the same account with its new credential, or end."""
        principal = await self._server.admission.reauthenticate(self, data)
        if not self.is_open:
            return
        if principal is None or principal.account != self.principal.account:
            self.end(Closed.REFUSED, Reason.NOT_AUTHORIZED)
            return
        self.principal = principal
        self._output.write(encode_auth(Reason.SUCCESS, {Property.AUTH_METHOD: AUTH_METHOD}))
        self._reading.release(REAUTHENTICATING)

    # -- ending -------------------------------------------------------------------------------------------------------

    def end(self, reason: Closed, code: Reason = Reason.SUCCESS, detail: str = "") -> None:
        """Close the connection and, if it was a link, end it: will, session, `Gate.closed`, in this order."""
        if self._output.is_closed:
            return
        if not self.is_open:
            self._shut()
            return
        self._tell_opened()
        if self.protocol_level == 5 and reason not in (Closed.DISCONNECT, Closed.LOST):
            terms = self.terms
            properties: Properties = {Property.REASON_STRING: detail} if detail and terms.wants_reasons else {}
            packet = encode_disconnect(code, properties)
            is_too_long = terms.max_packet and len(packet) > terms.max_packet
            self._output.write(encode_disconnect(code) if is_too_long else packet)
        self._shut()
        will, self._will = self._will, None
        self._server.lifetimes.ended(self.session, self, reason, will, self._will_delay_s)

    def fail(self) -> None:
        """End the link because of something on our side."""
        self.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)

    def _shut(self) -> None:
        """Close the socket behind what is queued; a client that does not read it is cut off."""
        self.is_open = False
        self._output.close()
        self._reading.close()
        self._watch(self._server.shared.now() + CLOSE_TIMEOUT_S)

    def abort(self) -> None:
        """Drop the socket with whatever it has not sent."""
        self._output.transport.abort()

    # -- deadlines ----------------------------------------------------------------------------------------------------

    def due(self, now: float) -> float | None:
        """Act on the deadline this connection is under, if it has come (`ticker.Timed`)."""
        reading, shared = self._reading, self._server.shared
        if self._output.is_closed:
            self.abort()
            return None
        if not self.is_open:
            deadline = reading.heard + shared.limits.connect_timeout_s
            if reading.held & (ADMITTING | TURN) or now < deadline:
                return max(deadline, now + 1.0)
            if self._is_first_look():
                return now + SLOT_S
            shared.counts["connect-timeout"] += 1
            self.end(Closed.PROTOCOL)
            return now + CLOSE_TIMEOUT_S
        deadline = self._keep_alive_deadline()
        if now < deadline or reading.held & ~UNREAD:
            # While the runtime is behind, it is not the client that is silent; one that reads nothing is as good as so.
            return max(deadline, now + 1.0)
        if self._is_first_look():
            return now + SLOT_S
        shared.counts["keep-alive"] += 1
        self.close(Closed.KEEP_ALIVE)
        return None

    def _watch(self, deadline: float) -> None:
        """Be under this deadline in place of another."""
        self._server.ticker.remove(self)
        if self in self._server.connections:
            self._server.ticker.add(self, deadline)

    def _keep_alive_deadline(self) -> float:
        """When the client must have been heard of (engine clock)."""
        return self._reading.heard + self.terms.keep_alive_s * 1.5

    def _is_first_look(self) -> bool:
        """Where the loop was late, the client's packet may lie in the socket: sockets are read before the next look."""
        heard = self._reading.heard
        is_first, self._overdue = self._overdue != heard, heard
        return is_first
