"""One client's connection: the protocol between its bytes and the gate, and the `Link` the gate pushes to.

Packets are handled in the order they came, each in one synchronous step. Two things stop the reading: a CONNECT that
is being admitted, and more publishes than the runtime has answered; then nothing more is parsed, and soon nothing more
is read. Writes of one loop turn leave together. What socket or window cannot take waits in the bounded outbox.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from bindings.mqtt.acks import Acknowledgements
from bindings.mqtt.seam import ACCEPTED, Closed, Grant, Outcome, Publish
from bindings.mqtt.server import packets
from bindings.mqtt.server.deliveries import Deliveries
from bindings.mqtt.server.encoding import (
    PINGRESP,
    encode_ack,
    encode_auth,
    encode_connack,
    encode_disconnect,
    encode_suback,
    encode_unsuback,
)
from bindings.mqtt.server.framing import Framer
from bindings.mqtt.server.packets import Connect, Kind
from bindings.mqtt.server.properties import Properties, Property
from bindings.mqtt.server.reasons import RETURN_CODES_3, BadPacket, Reason, protocol_error
from bindings.mqtt.server.sessions import Session
from things.identity import Principal

if TYPE_CHECKING:
    from bindings.mqtt.server.engine import NativeEngine

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
"""How long a closed client may take to read what was queued for it."""
FLUSH_BYTES = 65_536
"""Bytes of one loop turn after which the socket is asked, so that its back-pressure is felt within the turn."""
TOPIC_ALIASES = 32
"""Topic aliases kept per connection, in each direction."""
AUTH_METHOD = "token"
_PUBACK = Kind.PUBACK << 4

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
        "_acks",
        "_admitting",
        "_aliases_in",
        "_arriving",
        "_auth_method",
        "_closed",
        "_deliveries",
        "_ended",
        "_ending",
        "_engine",
        "_expected_expiry",
        "_framer",
        "_held",
        "_keep_alive_s",
        "_max_packet",
        "_opened",
        "_opening",
        "_out",
        "_out_bytes",
        "_problem",
        "_reading_paused",
        "_reauthenticating",
        "_transport",
        "_will",
        "_will_delay_s",
        "client_id",
        "heard",
        "principal",
        "protocol_level",
        "session",
        "slot",
        "source",
    )

    principal: Principal
    session: Session
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
        self._held = False
        """Nothing is parsed now."""
        self._admitting = False
        self._reauthenticating = False
        self._opened = False
        self._opening = False
        self._ending: Closed | None = None
        """The gate has closed the link before it was opened."""
        self._closed = False
        self._ended = False
        """The client sends nothing more; what it sent is still handled."""
        self._reading_paused = False
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._acks: Acknowledgements | None = None
        self._arriving = 0
        """QoS 1 publishes the client waits for; with `Session.incoming` what our receive maximum bounds."""
        self._keep_alive_s = 0.0
        self._deliveries: Deliveries | None = None
        self._max_packet = 0
        """What MQTT 5 lets us send; 0: anything."""
        self._problem = True
        """The client wants reason strings."""
        self._aliases_in: dict[int, str] | None = None
        """Topic aliases of the client; made when it opens with MQTT 5."""
        self._auth_method: str | None = None
        self._expected_expiry = 0
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
        if self._closed or self._deliveries is None:
            return False
        return self._deliveries.push(message, delivered)

    def close(self, reason: Closed) -> None:
        """End the link; MQTT 5 hears why. One that is just being opened ends when the gate has heard of it."""
        if self._opening:
            self._ending = reason
            return
        if reason is Closed.REFUSED and self._opened and not self._closed and not _has_expired(self.principal):
            # Whoever has the name of the account next must not find what was kept for this one.
            self.session.expiry_s = 0
        self.end(reason, _REASONS[reason])

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline for CONNECT; a connection over the engine's bound is cut at once."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=FLUSH_BYTES)
        if self.source is None and (peer := transport.get_extra_info("peername")):
            self.source = str(peer[0]) if isinstance(peer, tuple) else None
        if not self._engine.connected(self):
            self._closed = self._held = True
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
        self._engine.disconnected(self)
        if not self._held:
            self.end(Closed.LOST)

    def pause_writing(self) -> None:
        """The socket is full: deliveries wait in the outbox."""
        if self._deliveries is not None:
            self._deliveries.paused = True

    def resume_writing(self) -> None:
        """The socket takes more."""
        if self._deliveries is not None and not self._closed:
            self._deliveries.paused = False
            self._deliveries.drain()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        take = self._framer.take
        heard = False
        try:
            while not self._held and (frame := take()) is not None:
                heard = True
                first, data, start, end = frame
                if first >> 4 == 3 and self._opened:
                    self._on_publish(first & 15, data, start, end)
                elif first == _PUBACK and self._deliveries is not None and end - start == 2:
                    # The other packet that comes once a message; every length but this one is looked at closely.
                    if not (packet_id := data[start] << 8 | data[start + 1]):
                        raise protocol_error("packet id 0")
                    self._deliveries.acknowledged(4, packet_id, 0)
                else:
                    self._on_packet(first >> 4, first & 15, data, start, end)
        except BadPacket as bad:
            self._reject(bad)
        except Exception:
            log.exception("handling a packet failed", extra={"client": self.client_id})
            self.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)
        if heard:
            self.heard = self._engine.now()
        if self._ended and not self._held:
            self.end(Closed.LOST)

    def _on_packet(self, kind: int, flags: int, data: bytes, start: int, end: int) -> None:
        level = self.protocol_level
        if not self._opened:
            if kind != Kind.CONNECT:
                raise protocol_error("a packet before CONNECT")
            if flags:
                raise BadPacket(Reason.MALFORMED_PACKET, "reserved flags of the fixed header")
            self._on_connect(packets.decode_connect(data, start, end))
            return
        match kind:
            case Kind.PUBACK | Kind.PUBREC | Kind.PUBREL | Kind.PUBCOMP:
                packet_id, code = packets.decode_ack(kind, flags, data, start, end, level)
                self._on_ack(kind, packet_id, code)
            case Kind.PINGREQ:
                packets.decode_ping(flags, start, end)
                self._write(PINGRESP)
            case Kind.SUBSCRIBE:
                self._on_subscribe(packets.decode_subscribe(flags, data, start, end, level))
            case Kind.UNSUBSCRIBE:
                self._on_unsubscribe(packets.decode_unsubscribe(flags, data, start, end, level))
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
        self._auth_method = method
        self._held = self._admitting = True
        self._engine.admit(self, connect)

    def refuse(self, reason: Reason, level: int) -> None:
        """Answer CONNECT with a refusal and close; a level of 0 or a reason 3.1.1 cannot say closes alone."""
        if self._closed:
            return
        self._engine.counts["refused"] += 1
        if level == 5:
            self._write(encode_connack(5, reason))
        elif level == 4 and reason in RETURN_CODES_3:
            self._write(encode_connack(4, RETURN_CODES_3[reason]))
        self._shut()

    @property
    def is_waiting(self) -> bool:
        """It can still be opened: the client is there, or has left packets that count."""
        return not self._closed and (not self._ended or len(self._framer) > 0)

    @property
    def is_open(self) -> bool:
        """It is a link now."""
        return self._opened and not self._closed

    def open(self, principal: Principal, connect: Connect, session: Session, *, resumed: bool, assigned: bool) -> None:
        """Become the link of `session`: CONNACK, its filters again, `Gate.opened`, and then whatever was held."""
        engine, limits, given = self._engine, self._engine.limits, connect.properties
        level = connect.level
        self.principal, self.session, self.client_id = principal, session, session.key[1]
        session.link, session.ends = self, None
        self._will, self._will_delay_s = connect.will, connect.will_delay_s
        self._expected_expiry = given.get(Property.SESSION_EXPIRY, 0)
        keep_alive_s = connect.keep_alive_s or limits.default_keep_alive_s
        self._keep_alive_s = keep_alive_s * 1.5
        window, alias_maximum = limits.max_inflight, 0
        properties: Properties = {}
        if level == 5:
            self._aliases_in = {}
            window = min(window, given.get(Property.RECEIVE_MAXIMUM, 65_535))
            alias_maximum = min(TOPIC_ALIASES, given.get(Property.TOPIC_ALIAS_MAXIMUM, 0))
            self._max_packet = given.get(Property.MAXIMUM_PACKET_SIZE, 0)
            self._problem = given.get(Property.REQUEST_PROBLEM, 1) == 1
            properties = {
                Property.RECEIVE_MAXIMUM: min(limits.max_unacknowledged, 65_535),
                Property.MAXIMUM_PACKET_SIZE: limits.max_packet_bytes,
                Property.TOPIC_ALIAS_MAXIMUM: TOPIC_ALIASES,
            }
            if session.expiry_s != self._expected_expiry:
                properties[Property.SESSION_EXPIRY] = session.expiry_s
            if assigned:
                properties[Property.ASSIGNED_CLIENT_ID] = self.client_id
            if keep_alive_s != connect.keep_alive_s:
                properties[Property.SERVER_KEEP_ALIVE] = keep_alive_s
            if self._auth_method is not None:
                properties[Property.AUTH_METHOD] = self._auth_method
        self._write(encode_connack(level, 0, session_present=resumed, properties=properties))
        self._opened = True
        self._admitting = self._held = False
        self._deliveries = Deliveries(
            engine,
            session,
            self._write,
            level=level,
            window=window,
            max_packet=self._max_packet,
            alias_maximum=alias_maximum,
        )
        if self._ended:
            self._deliveries.paused = True
        self._opening = True
        try:
            for topic_filter, options in list(session.filters.items()):
                grant = engine.gate.subscribe(self, topic_filter, options)
                if self._ending is not None:
                    break
                if isinstance(grant, int):
                    del session.filters[topic_filter]
                elif options.retain_handling == 0:
                    self._deliveries.add_latest(grant.latest)
            engine.gate.opened(self, resumed=resumed)
        finally:
            self._opening = False
        engine.watch(self)
        if self._ending is not None:
            self.end(self._ending, _REASONS[self._ending])
        if not self._closed:
            self._deliveries.drain()
            self._resume_reading()

    # -- publishes of the client --------------------------------------------------------------------------------------

    def _on_publish(self, flags: int, data: bytes, start: int, end: int) -> None:
        message, packet_id = packets.decode_publish(
            flags, data, start, end, self.protocol_level, self._aliases_in, TOPIC_ALIASES
        )
        acks = self._acks or self._acknowledgements()
        limits = self._engine.limits
        qos = message.qos
        if qos:
            if qos == 2 and packet_id in self.session.incoming and self._is_repeated(packet_id):
                return
            if self.protocol_level == 5 and self._arriving + len(self.session.incoming) >= limits.max_unacknowledged:
                raise BadPacket(Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes than the receive maximum")
            if qos == 1:
                self._arriving += 1
        topic = message.topic
        if len(topic) > limits.max_topic_bytes or topic.count("/") >= limits.max_topic_levels:
            self._engine.counts["topic-refused"] += 1
            answer: Awaitable[Outcome] = self._engine.answered(
                Outcome(reason_code=Reason.TOPIC_NAME_INVALID, reason="topic over the limit")
            )
        else:
            answer = self._engine.gate.received(self, message)
        if qos == 2:
            running = self._engine.stored(self.session, packet_id, answer)
            self.session.incoming[packet_id] = running
            answer = running
        acks.add(qos, packet_id, answer)
        if len(acks) > limits.max_unacknowledged and not self._held:
            self._held = True
            self._pause_reading()

    def _is_repeated(self, packet_id: int) -> bool:
        """A QoS 2 publish whose id is known: answer it as before, and route it no second time."""
        session = self.session
        running = session.incoming[packet_id]
        if running is not None and running.done() and (running.cancelled() or running.exception() is not None):
            del session.incoming[packet_id]
            return False
        self._acknowledgements().add(2, packet_id, running or self._engine.answered(ACCEPTED))
        return True

    def _acknowledgements(self) -> Acknowledgements:
        # Made with the first publish: most connections of a gateway only listen.
        if self._acks is None:
            self._acks = Acknowledgements(self._acknowledge, self._failed, self._engine.start, self._advanced)
        return self._acks

    def _acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        code = outcome.reason_code
        refused = code >= 0x80
        if qos == 1:
            self._arriving -= 1
        elif refused and self.protocol_level == 5:
            self.session.incoming.pop(packet_id, None)
        elif packet_id in self.session.incoming:
            self.session.incoming[packet_id] = None
        if self._closed:
            return
        if code and self.protocol_level == 5:
            properties: Properties = {}
            if outcome.reason and self._problem:
                properties[Property.REASON_STRING] = outcome.reason[:1_024]
            kind = Kind.PUBACK if qos == 1 else Kind.PUBREC
            packet = encode_ack(kind, packet_id, 5, code, properties)
            if self._max_packet and len(packet) > self._max_packet:
                packet = encode_ack(kind, packet_id, 5, code)
            self._write(packet)
        else:
            self._write((b"\x40\x02" if qos == 1 else b"\x50\x02") + packet_id.to_bytes(2, "big"))

    def _failed(self, error: BaseException) -> None:
        """A commit failed: no acknowledgement, and the client sends it again on its next connection."""
        self._engine.counts["commit-failed"] += 1
        log.error("a publish could not be committed", extra={"client": self.client_id}, exc_info=error)
        self.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)

    def _advanced(self) -> None:
        assert self._acks is not None
        if (
            self._held
            and not self._closed
            and not self._admitting
            and not self._reauthenticating
            and len(self._acks) * 2 <= self._engine.limits.max_unacknowledged
        ):
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._held = False
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
        if self._acks is not None:
            await self._acks.settled()

    def stop_reading(self) -> None:
        """Read and parse nothing more: the engine stops."""
        self._held = self._admitting = True
        self._pause_reading()

    # -- acknowledgements of the client -------------------------------------------------------------------------------

    def _on_ack(self, kind: int, packet_id: int, code: int) -> None:
        if kind == Kind.PUBREL:
            # [MQTT-4.3.3] PUBCOMP answers every PUBREL; 3.1.1 cannot say that the id is unknown.
            if packet_id not in self.session.incoming:
                reason = Reason.PACKET_IDENTIFIER_NOT_FOUND
                self._write(encode_ack(Kind.PUBCOMP, packet_id, self.protocol_level, reason))
            elif not self._engine.released(self, packet_id):
                self.complete(packet_id)
            return
        assert self._deliveries is not None
        self._deliveries.acknowledged(kind, packet_id, code)

    def complete(self, packet_id: int) -> None:
        """Let the client use the id of a QoS 2 publish again."""
        self.session.incoming.pop(packet_id, None)
        if not self._closed:
            self._write(encode_ack(Kind.PUBCOMP, packet_id, self.protocol_level))

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def _on_subscribe(self, subscribe: packets.Subscribe) -> None:
        engine, session = self._engine, self.session
        codes: list[int] = []
        grants: list[Grant] = []
        for topic_filter, options in subscribe.filters:
            if len(topic_filter) > engine.limits.max_topic_bytes or (
                topic_filter.count("/") >= engine.limits.max_topic_levels + 2
            ):
                codes.append(Reason.TOPIC_FILTER_INVALID)
                continue
            if topic_filter not in session.filters and len(session.filters) >= engine.limits.max_subscriptions:
                codes.append(Reason.QUOTA_EXCEEDED)
                continue
            grant = engine.gate.subscribe(self, topic_filter, options)
            if isinstance(grant, int):
                codes.append(grant)
                continue
            session.filters[topic_filter] = options
            session.dirty = True
            codes.append(grant.qos)
            grants.append(grant)
        self._write(encode_suback(subscribe.packet_id, self.protocol_level, codes))
        assert self._deliveries is not None
        for grant in grants:
            self._deliveries.add_latest(grant.latest)
        self._deliveries.drain()

    def _on_unsubscribe(self, unsubscribe: packets.Unsubscribe) -> None:
        codes = []
        for topic_filter in unsubscribe.filters:
            known = self._engine.gate.unsubscribe(self, topic_filter)
            self.session.filters.pop(topic_filter, None)
            codes.append(Reason.SUCCESS if known else Reason.NO_SUBSCRIPTION_EXISTED)
        self.session.dirty = True
        self._write(encode_unsuback(unsubscribe.packet_id, self.protocol_level, codes))

    # -- DISCONNECT, AUTH ---------------------------------------------------------------------------------------------

    def _on_disconnect(self, disconnect: packets.Disconnect) -> None:
        if disconnect.session_expiry_s is not None:
            if disconnect.session_expiry_s and not self._expected_expiry:
                raise protocol_error("a session expiry on DISCONNECT after none on CONNECT")  # [MQTT-3.14.2-2]
            self.session.expiry_s = min(disconnect.session_expiry_s, self._engine.limits.max_session_expiry_s)
        if disconnect.reason_code == Reason.SUCCESS:
            self._will = None
        self.end(Closed.DISCONNECT)

    def _on_auth(self, auth: packets.Auth) -> None:
        if self._auth_method is None or auth.method != self._auth_method:
            raise protocol_error("AUTH with another method than CONNECT had")  # [MQTT-4.12.0-5]
        if auth.reason_code != Reason.RE_AUTHENTICATE:
            raise protocol_error("AUTH continues what has not begun")
        self._held = self._reauthenticating = True
        self._engine.reauthenticate(self, auth.data or b"")

    def reauthenticated(self, principal: Principal | None) -> None:
        """Go on as the same account with its new credential, or end."""
        if self._closed:
            return
        self._reauthenticating = False
        if principal is None or principal.account != self.principal.account:
            self.end(Closed.REFUSED, Reason.NOT_AUTHORIZED)
            return
        self.principal = principal
        self._write(encode_auth(Reason.SUCCESS, {Property.AUTH_METHOD: self._auth_method}))
        self._resume_reading()

    # -- writing and ending -------------------------------------------------------------------------------------------

    def _write(self, data: bytes, packet_id: bytes = b"", tail: bytes = b"") -> None:
        """Queue bytes for the one write of this loop turn."""
        if not self._out_bytes:
            self._engine.flush_soon(self)
        if packet_id:
            self._out += (data, packet_id, tail)
            self._out_bytes += len(data) + len(tail) + 2
        else:
            self._out.append(data)
            self._out_bytes += len(data)
        if self._out_bytes > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what was queued to the socket in one write."""
        if self._out_bytes:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            if not self._transport.is_closing():
                self._transport.write(data)

    def end(self, reason: Closed, code: Reason = Reason.SUCCESS, detail: str = "") -> None:
        """Close the connection and, if it was a link, end it: will, session, `Gate.closed`, in this order."""
        if self._closed:
            return
        if self._opened:
            if self.protocol_level == 5 and reason not in (Closed.DISCONNECT, Closed.LOST):
                properties: Properties = {Property.REASON_STRING: detail} if detail and self._problem else {}
                packet = encode_disconnect(code, properties)
                short = self._max_packet and len(packet) > self._max_packet
                self._write(encode_disconnect(code) if short else packet)
            self._shut()
            will, self._will = self._will, None
            self._engine.ended(self, reason, will, self._will_delay_s)
        else:
            self._shut()

    def _shut(self) -> None:
        """Close the socket behind what is queued; a client that does not read it is cut off."""
        self._closed = self._held = True
        self.flush()
        self._framer.clear()
        self._transport.close()
        self._engine.closing(self)

    def abort(self) -> None:
        """Drop the socket with whatever it has not sent."""
        self._transport.abort()

    @property
    def certificate_name(self) -> str | None:
        """Common name of the client's certificate; the TLS context has verified it."""
        certificate = self._transport.get_extra_info("peercert")
        for relative_name in (certificate or {}).get("subject", ()):
            for name, value in relative_name:
                if name == "commonName":
                    return str(value)
        return None

    def keep_alive_deadline(self) -> float | None:
        """When the client must have been heard of, if it must."""
        return self.heard + self._keep_alive_s if self._keep_alive_s else None

    def due(self, now: float) -> float | None:
        """Act on the deadline this connection is under, if it has come."""
        if self._closed:
            self._transport.abort()
            return None
        if not self._opened:
            deadline = self.heard + self._engine.limits.connect_timeout_s
            if self._admitting or now < deadline:
                return max(deadline, now + 1.0)
            self._engine.counts["connect-timeout"] += 1
            self.end(Closed.PROTOCOL)
            return now + CLOSE_TIMEOUT_S
        if not self._keep_alive_s:
            return None
        deadline = self.heard + self._keep_alive_s
        if now < deadline or self._held:
            # While the runtime is behind, it is not the client that is silent.
            return max(deadline, now + 1.0)
        self._engine.counts["keep-alive"] += 1
        self.close(Closed.KEEP_ALIVE)
        return None


def _has_expired(principal: Principal) -> bool:
    """Its credential ran out: the account comes back with a fresh one, and goes on."""
    return principal.expires is not None and principal.expires <= time.time_ns() // 1_000
