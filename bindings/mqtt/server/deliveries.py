"""What one connection sends its client: in flight within the window, the rest in the outbox, latest values last.

Order: what an earlier connection left in flight, then what was queued, then the latest values of new subscriptions,
which are taken one by one as the client keeps up and skip topics that were delivered since.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from bindings.mqtt.outbox import Outbox
from bindings.mqtt.seam import Flow, Publish
from bindings.mqtt.server.encoding import DUPLICATE, encode_ack, encode_publish
from bindings.mqtt.server.packets import Kind
from bindings.mqtt.server.reasons import Reason, protocol_error
from bindings.mqtt.server.sessions import InFlight, Session, Step
from bindings.mqtt.server.terms import Terms

if TYPE_CHECKING:
    from bindings.mqtt.server.engine import NativeEngine


_PUBREC = Step.PUBREC
_WAITS_FOR = {1: Step.PUBACK, 2: Step.PUBREC}
"""By QoS. Kept here, since an Enum's members take long to come by."""


class Writer(Protocol):
    """The connection, as far as deliveries know it."""

    def write(self, data: bytes, packet_id: bytes = b"", tail: bytes = b"") -> None:
        """Queue a packet for the socket; a PUBLISH with a packet id comes in its three parts."""


class Latest:
    """Latest values that are still to be sent, taken one by one from what the grants hold, filter by filter."""

    __slots__ = ("_held", "_values", "fresher")

    def __init__(self) -> None:
        self._values: dict[str, Iterator[Publish]] = {}
        self._held: Publish | None = None
        self.fresher: set[str] = set()
        """Topics delivered since, whose latest value would now be a stale one."""

    def add(self, topic_filter: str, values: Sequence[Publish]) -> None:
        """Send these too, after those of other filters; they take the place of what the filter had left."""
        self.drop(topic_filter)
        self._values[topic_filter] = iter(values)

    def drop(self, topic_filter: str) -> None:
        """The filter is taken back."""
        if next(iter(self._values), None) == topic_filter:
            self._held = None
        self._values.pop(topic_filter, None)

    def first(self) -> Publish | None:
        """The next value, until it is `taken`; None when there is no more."""
        while self._held is None or self._held.topic in self.fresher:
            if not self._values:
                return None
            topic_filter = next(iter(self._values))
            self._held = next(self._values[topic_filter], None)
            if self._held is None:
                del self._values[topic_filter]
        return self._held

    def taken(self) -> None:
        """Go on to the next value."""
        self._held = None


class Deliveries:
    """The sending side of one open link, over its session."""

    __slots__ = (
        "_aliases",
        "_engine",
        "_latest",
        "_level",
        "_resend",
        "_session",
        "_terms",
        "_window",
        "_writer",
        "paused",
    )

    def __init__(
        self,
        engine: "NativeEngine",
        session: Session,
        writer: Writer,
        terms: Terms,
        *,
        level: int,
    ) -> None:
        self._engine = engine
        self._session = session
        self._writer = writer
        self._level = level
        self._window = terms.window
        self._terms = terms
        self._aliases: dict[str, int] | None = {} if terms.aliases else None
        self._resend = deque(session.in_flight) if session.in_flight else None
        self._latest: Latest | None = None
        self.paused = False
        """The socket takes no more."""

    def push(self, message: Publish, delivered: Callable[[], None] | None) -> bool:
        """Send one delivery, or queue it as its flow says; False: not taken."""
        session = self._session
        if self._latest is not None and message.flow is Flow.PROPERTY:
            self._latest.fresher.add(message.topic)
        outbox = session.outbox
        if not (self.paused or outbox or self._resend) and (
            not message.qos or not session.in_flight or self._has_room(message)
        ):
            return self._send(message, delivered, message.expiry_s)
        engine = self._engine
        if outbox is None:
            outbox = session.outbox = Outbox(engine.limits.max_queued, engine.limits.max_queued_bytes)
        before = outbox.dropped
        taken = outbox.offer(message, delivered, engine.now())
        if outbox.dropped != before:
            engine.counts["dropped"] += outbox.dropped - before
        return taken

    def add_latest(self, topic_filter: str, values: Sequence[Publish]) -> None:
        """Send the latest values of a new subscription when `drain` comes to them."""
        if values:
            if self._latest is None:
                self._latest = Latest()
            self._latest.add(topic_filter, values)

    def drop_latest(self, topic_filter: str) -> None:
        """The filter is taken back: what is left of its latest values is not sent."""
        if self._latest is not None:
            self._latest.drop(topic_filter)

    def drain(self) -> None:
        """Send what waits, as far as socket and window allow."""
        if (self._resend is None or self._send_again(self._resend)) and self._drain_outbox():
            self._drain_latest()

    def acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        """Take PUBACK, PUBREC or PUBCOMP of the client."""
        session = self._session
        entry = session.in_flight.get(packet_id)
        if entry is None:
            if kind == _PUBREC and code < 0x80:
                self._writer.write(encode_ack(Kind.PUBREL, packet_id, self._level, Reason.PACKET_IDENTIFIER_NOT_FOUND))
            return
        session.dirty = True
        delivered, entry.delivered = entry.delivered, None
        if kind == _PUBREC and entry.step in (_PUBREC, Step.PUBCOMP) and code < 0x80:
            entry.message, entry.step = None, Step.PUBCOMP
            self._writer.write(encode_ack(Kind.PUBREL, packet_id, self._level))
        elif kind == entry.step:
            session.finish(packet_id)
        else:
            raise protocol_error(f"{Kind(kind).name} for a delivery that waits for {entry.step.name}")
        if delivered is not None and code < 0x80:
            delivered()
        if session.outbox or self._latest is not None or self._resend is not None:
            self.drain()

    def _has_room(self, message: Publish) -> bool:
        """For one more QoS 1 or 2 delivery in flight."""
        session = self._session
        in_flight = len(session.in_flight)
        return in_flight < self._window and (
            not in_flight or session.in_flight_bytes + len(message.payload) <= self._engine.limits.max_queued_bytes
        )

    def _send(self, message: Publish, delivered: Callable[[], None] | None, expiry_s: int | None) -> bool:
        qos, level = message.qos, self._level
        topic, alias, aliases = message.topic, 0, self._aliases
        if aliases is not None:
            topic, alias = self._alias(aliases, topic)
            encoded = encode_publish(message, level, qos=qos, topic=topic, alias=alias, expiry_s=expiry_s)
        elif expiry_s is message.expiry_s:
            encoded = self._engine.encoded(message, level)
        else:
            encoded = encode_publish(message, level, qos=qos, expiry_s=expiry_s)
        if (largest := self._terms.max_packet) and encoded.size > largest:
            # [MQTT-3.1.2-25] it must not be sent, and so its alias must not count as known.
            if aliases is not None and alias and topic:
                del aliases[topic]
            self._engine.counts["too-large"] += 1
            return False
        if not qos:
            self._writer.write(encoded.head)
            if delivered is not None:
                delivered()
            return True
        session = self._session
        packet_id = session.packet_id()
        session.in_flight[packet_id] = InFlight(message, _WAITS_FOR[qos], encoded.size, delivered)
        session.in_flight_bytes += encoded.size
        session.dirty = True
        self._writer.write(encoded.head, packet_id.to_bytes(2, "big"), encoded.tail)
        return True

    def _alias(self, aliases: dict[str, int], topic: str) -> tuple[str, int]:
        """What to send for the topic, and its alias; the first topics of a connection get one."""
        known = aliases.get(topic)
        if known is not None:
            return "", known
        if len(aliases) >= self._terms.aliases:
            return topic, 0
        alias = aliases[topic] = len(aliases) + 1
        return topic, alias

    def _send_again(self, resend: deque[int]) -> bool:
        """Repeat deliveries of an earlier connection, as [MQTT-4.4.0-1] asks; True when all were."""
        in_flight = self._session.in_flight
        while resend:
            if self.paused or len(in_flight) - len(resend) >= self._window:
                return False
            packet_id = resend.popleft()
            entry = in_flight.get(packet_id)
            if entry is None:
                continue
            message = entry.message
            if message is None:
                self._writer.write(encode_ack(Kind.PUBREL, packet_id, self._level))
                continue
            encoded = encode_publish(message, self._level, qos=message.qos, expiry_s=message.expiry_s)
            first = bytes((encoded.head[0] | DUPLICATE,))
            self._writer.write(first + encoded.head[1:], packet_id.to_bytes(2, "big"), encoded.tail)
        self._resend = None
        return True

    def _drain_outbox(self) -> bool:
        session, engine = self._session, self._engine
        outbox = session.outbox
        while outbox:
            if (
                self.paused
                or len(session.in_flight) >= self._window
                or session.in_flight_bytes > engine.limits.max_queued_bytes
            ):
                return False
            message, delivered, queued_at = outbox.take()
            expiry_s = message.expiry_s
            if expiry_s is not None:
                expiry_s -= int(engine.now() - queued_at)
                if expiry_s <= 0:
                    engine.counts["expired"] += 1
                    continue
            self._send(message, delivered, expiry_s)
        return True

    def _drain_latest(self) -> None:
        latest = self._latest
        while latest is not None:
            message = latest.first()
            if message is None:
                self._latest = None
                return
            if self.paused or (message.qos and not self._has_room(message)):
                return
            latest.taken()
            self._send(message if message.retain else replace(message, retain=True), None, message.expiry_s)
