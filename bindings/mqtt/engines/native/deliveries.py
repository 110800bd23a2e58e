"""What one connection sends its client: in flight within the window, the rest in the outbox, latest values last.

Order: what an earlier connection left in flight, then what was queued, then what a kept session has missed
(`bindings.mqtt.behind`), then the latest values of new subscriptions; the last two are made a few in a
turn of the loop as the client keeps up, and latest values skip topics that were delivered since.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from bindings.mqtt.behind import Behind
from bindings.mqtt.engines.codec.encoding import DUPLICATE, encode_ack, encode_publish
from bindings.mqtt.engines.codec.packets import PUBREC, PacketType
from bindings.mqtt.engines.codec.reasons import Reason, protocol_error
from bindings.mqtt.engines.latest import Latest
from bindings.mqtt.engines.native.negotiated import Terms
from bindings.mqtt.engines.native.sessions import InFlight, Session, Step
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.native.writing import Writer
from bindings.mqtt.engines.outbox import Outbox
from bindings.mqtt.engines.seam import Closed, Flow, Link, Publish

log = logging.getLogger(__name__)

_WAITS_FOR = {1: Step.PUBACK, 2: Step.PUBREC}
"""By QoS."""


class Recipient(Link, Protocol):
    """The link that deliveries are sent to."""

    def wants_turn(self) -> None:
        """Call `send_more` in one of the next turns of the loop."""


class Deliveries:
    """The sending side of one open link, over its session."""

    __slots__ = (
        "_aliases",
        "_latest",
        "_level",
        "_link",
        "_resend",
        "_session",
        "_shared",
        "_terms",
        "_window",
        "_writer",
    )

    def __init__(
        self,
        shared: Shared,
        session: Session,
        link: Recipient,
        writer: Writer,
        terms: Terms,
    ) -> None:
        self._shared = shared
        self._link = link
        self._session = session
        session.sending()
        self._writer = writer
        self._level = link.protocol_level
        self._window = terms.window
        self._terms = terms
        self._aliases: dict[str, int] | None = {} if terms.aliases else None
        self._resend = deque(session.in_flight) if session.in_flight else None
        self._latest: Latest | None = None

    @property
    def has_room(self) -> bool:
        """A delivery that is pushed now is sent at once."""
        session = self._session
        return (
            not (self._writer.paused or session.outbox or self._resend)
            and len(session.in_flight) < self._window
            and session.in_flight_bytes < self._shared.limits.max_queued_bytes
        )

    def push(self, message: Publish, delivered: Callable[[], None] | None) -> bool:
        """Send one delivery, or queue it as its flow says; False: not taken."""
        session = self._session
        if session.behind is not None and message.row_id:
            session.behind.hold(message)
            return True
        if self._latest is not None and message.flow is Flow.PROPERTY:
            self._latest.delivered(message.topic)
        outbox = session.outbox
        if not (self._writer.paused or outbox or self._resend) and (
            not message.qos or not session.in_flight or self._has_room(message)
        ):
            return self._send(message, delivered, message.expiry_s)
        shared = self._shared
        if outbox is None:
            outbox = session.outbox = Outbox(shared.limits.max_queued, shared.limits.max_queued_bytes)
        if not outbox:
            outbox.rights = shared.gate.rights
        session.dirty = True
        taken = outbox.offer(message, delivered, shared.now(), self._crowded_out)
        if session.behind is not None and message.row_id:
            outbox.forget_rows()
            return True
        return taken

    def _crowded_out(self, message: Publish) -> None:
        if self._latest is not None:
            # It may have been a value of which the client has heard nothing else.
            self._latest.repeat_all()
        session = self._session
        if not message.row_id or not session.is_kept:
            self._dropped(message, "queue-full")
        elif session.behind is None:
            first = 0 if session.outbox is None else session.outbox.forget_rows()
            session.behind = Behind(min(first or message.row_id, message.row_id) - 1)

    def resume(self) -> None:
        """Stay where the session was left while its filters come to stand again: what is pushed meanwhile is read."""
        session = self._session
        if any(each.qos for each in session.filters.values()):
            session.behind = Behind(session.position(self._shared.gate.published_row))

    def resumed(self) -> None:
        """All filters stand: begin with what the session has missed since it was left."""
        session = self._session
        if session.behind is not None and session.behind.position >= self._shared.gate.published_row:
            session.behind = None

    def _dropped(self, message: Publish, reason: str) -> None:
        self._shared.counts["dropped"] += 1
        self._shared.gate.dropped(self._link, message, reason)

    def add_latest(self, topic_filter: str, values: Iterable[Publish | None]) -> None:
        """Send the latest values of a new subscription when `drain` comes to them; None is a step that found none."""
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
        if (
            (self._resend is None or self._send_again(self._resend))
            and self._drain_outbox()
            and (self._latest is not None or self._session.behind is not None)
            and not self._writer.paused
        ):
            self._link.wants_turn()

    def send_more(self, steps: int, until: float) -> tuple[int, bool]:
        """Make and send what was missed, and latest values: so many steps, until that time (`perf_counter`). Returns
        how many steps it took and whether there are more to take; where the client has to take something first, or
        history has to be read, `drain` comes again."""
        if self._writer.paused or self._resend is not None or self._session.outbox:
            return 0, False
        if (behind := self._session.behind) is not None:
            return self._send_missed(behind, steps, until)
        return self._send_latest(steps, until)

    def _send_missed(self, behind: Behind[Publish], steps: int, until: float) -> tuple[int, bool]:
        shared, session, done = self._shared, self._session, 0
        if behind.is_reading:
            return 0, False
        while done < steps and perf_counter() < until:
            message = behind.step()
            if message is None:
                done += 1
                if behind.has_piece:
                    continue
                if behind.is_over:
                    session.behind = None
                    return done, self._latest is not None
                behind.begin(shared.gate.rights)
                shared.start(self._read(behind))
                return done, False
            if self._writer.paused or (message.qos and not self._has_room(message)):
                return done, False
            done += 1
            behind.taken()
            if behind.rights is None or behind.rights != shared.gate.rights:
                shown = shared.gate.reviewed(self._link, message)
                if shown is None:
                    shared.counts["no-longer-permitted"] += 1
                    continue
                message = shown
            if self._latest is not None and message.flow is Flow.PROPERTY:
                self._latest.delivered(message.topic)
            self._send(message, None, message.expiry_s)
        return done, True

    async def _read(self, behind: Behind[Publish]) -> None:
        """Get the next piece of what was missed; the link may have gone when it comes."""
        gate, session = self._shared.gate, self._session
        try:
            piece = await gate.missed(self._link, session.filters, behind.position, is_first=behind.is_first)
        except Exception:
            # What cannot be read now may be later: the session keeps its place, and its client comes back.
            log.exception("what a session has missed cannot be read", extra={"client": self._link.client_id})
            if session.behind is behind:
                self._link.close(Closed.LOST)
            return
        if session.behind is behind:
            behind.came(piece.deliveries, piece.last_row, has_more=piece.has_more)
            session.dirty = True
            self.drain()

    def _send_latest(self, steps: int, until: float) -> tuple[int, bool]:
        latest, done = self._latest, 0
        while latest is not None and done < steps and perf_counter() < until:
            done += 1
            has_waited = latest.is_held
            message = latest.step()
            if message is None:
                if not latest:
                    self._latest = latest = None
                continue
            if self._writer.paused or (message.qos and not self._has_room(message)):
                return done, False
            latest.taken()
            if has_waited:
                shown = self._shared.gate.reviewed(self._link, message)
                if shown is None:
                    continue
                message = shown
            self._send(message if message.retain else replace(message, retain=True), None, message.expiry_s)
        return done, latest is not None

    def acknowledged(self, packet_type: int, packet_id: int, code: int) -> None:
        """Take PUBACK, PUBREC or PUBCOMP of the client."""
        session = self._session
        entry = session.in_flight.get(packet_id)
        if entry is None:
            if packet_type == PUBREC and code < 0x80:
                self._writer.write(
                    encode_ack(PacketType.PUBREL, packet_id, self._level, Reason.PACKET_IDENTIFIER_NOT_FOUND)
                )
            return
        session.dirty = True
        delivered, entry.delivered = entry.delivered, None
        if packet_type == PUBREC and entry.step in (PUBREC, Step.PUBCOMP) and code < 0x80:
            entry.message, entry.step = None, Step.PUBCOMP
            self._writer.write(encode_ack(PacketType.PUBREL, packet_id, self._level))
        elif packet_type == entry.step:
            session.finish(packet_id)
        else:
            raise protocol_error(f"{PacketType(packet_type).name} for a delivery that waits for {entry.step.name}")
        if delivered is not None and code < 0x80:
            delivered()
        if session.outbox or self._latest is not None or self._resend is not None or session.behind is not None:
            self.drain()

    def _has_room(self, message: Publish) -> bool:
        """For one more QoS 1 or 2 delivery in flight."""
        session = self._session
        in_flight = len(session.in_flight)
        return in_flight < self._window and (
            not in_flight or session.in_flight_bytes + len(message.payload) <= self._shared.limits.max_queued_bytes
        )

    def _send(self, message: Publish, delivered: Callable[[], None] | None, expiry_s: int | None) -> bool:
        qos, level = message.qos, self._level
        topic, alias, aliases = message.topic, 0, self._aliases
        try:
            if aliases is not None:
                topic, alias = self._alias(aliases, topic)
                encoded = encode_publish(message, level, qos=qos, topic=topic, alias=alias, expiry_s=expiry_s)
            elif expiry_s is message.expiry_s:
                encoded = self._shared.encode(message, level)
            else:
                encoded = encode_publish(message, level, qos=qos, expiry_s=expiry_s)
        except (ValueError, OverflowError) as error:
            # Too long for its length field, or no Unicode: that delivery is given up, not the link. A queue that an
            # earlier version stored may hold one.
            if aliases is not None and alias and topic:
                del aliases[topic]
            self._give_up(message, error)
            return False
        if (largest := self._terms.max_packet) and encoded.size > largest:
            # [MQTT-3.1.2-25] it must not be sent, and so its alias must not count as known.
            if aliases is not None and alias and topic:
                del aliases[topic]
            self._shared.counts["too-large"] += 1
            self._dropped(message, "too-large")
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

    def _give_up(self, message: Publish, error: ValueError | OverflowError) -> None:
        counts = self._shared.counts
        self._dropped(message, "unencodable")
        counts["unencodable"] += 1
        if counts["unencodable"] == 1:
            log.warning(
                "a delivery that no PUBLISH can hold is given up; more are counted only",
                extra={"topic": message.topic[:120], "error": repr(error)},
            )

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
            if self._writer.paused or len(in_flight) - len(resend) >= self._window:
                return False
            packet_id = resend.popleft()
            entry = in_flight.get(packet_id)
            if entry is None:
                continue
            message = entry.message
            if message is None:
                self._writer.write(encode_ack(PacketType.PUBREL, packet_id, self._level))
                continue
            shown = self._shared.gate.reviewed(self._link, message)
            if shown is None:
                # It may have been sent; nobody acknowledges it any more, and its packet id is free.
                self._session.finish(packet_id)
                self._shared.counts["no-longer-permitted"] += 1
                continue
            message = entry.message = shown
            encoded = encode_publish(message, self._level, qos=message.qos, expiry_s=message.expiry_s)
            first = bytes((encoded.head[0] | DUPLICATE,))
            self._writer.write(first + encoded.head[1:], packet_id.to_bytes(2, "big"), encoded.tail)
        self._resend = None
        return True

    def _drain_outbox(self) -> bool:
        session, shared, writer = self._session, self._shared, self._writer
        outbox = session.outbox
        while outbox:
            if (
                writer.paused
                or len(session.in_flight) >= self._window
                or session.in_flight_bytes > shared.limits.max_queued_bytes
            ):
                return False
            message, delivered, queued_at = outbox.take()
            expiry_s = message.expiry_s
            if expiry_s is not None:
                expiry_s -= int(shared.now() - queued_at)
                if expiry_s <= 0:
                    shared.counts["expired"] += 1
                    self._dropped(message, "expired")
                    continue
            if outbox.rights is None or outbox.rights != shared.gate.rights:
                shown = shared.gate.reviewed(self._link, message)
                if shown is None:
                    shared.counts["no-longer-permitted"] += 1
                    continue
                message = shown
            self._send(message, delivered, expiry_s)
        return True
