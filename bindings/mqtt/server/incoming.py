"""What one client publishes: to the gate in order of arrival, and acknowledged in that order.

QoS 2 ids belong to the session, from their arrival to PUBREL: a publish that is sent again, on this connection or a
later one, is acknowledged again and routed no second time. The id of a kept session is on disk before its PUBREC.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from bindings.mqtt.acks import Acknowledgements
from bindings.mqtt.seam import ACCEPTED, Closed, Outcome
from bindings.mqtt.server.encoding import encode_ack
from bindings.mqtt.server.packets import Kind, decode_publish
from bindings.mqtt.server.properties import Properties, Property
from bindings.mqtt.server.reasons import BadPacket, Reason, protocol_error
from bindings.mqtt.server.sessions import Session
from bindings.mqtt.server.store import SessionStore
from bindings.mqtt.server.terms import TOPIC_ALIASES

if TYPE_CHECKING:
    from bindings.mqtt.server.connection import Connection
    from bindings.mqtt.server.engine import NativeEngine

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 1_024
MAX_UNRELEASED = 4_096
"""QoS 2 publishes of one session whose PUBREL is owed. MQTT 5 says how many there may be, 3.1.1 does not."""
_TOO_LONG = Outcome(reason_code=Reason.TOPIC_NAME_INVALID, reason="topic over the limit")
_IN_USE = Outcome(reason_code=Reason.PACKET_IDENTIFIER_IN_USE, reason="the packet id stands for another publish")


class Incoming:
    """The receiving side of one open link, over its session."""

    __slots__ = ("_acks", "_aliases", "_connection", "_engine", "_ids", "_is_5", "_received", "_session", "_unfinished")

    def __init__(self, connection: "Connection", engine: "NativeEngine") -> None:
        self._connection = connection
        self._engine = engine
        self._session = session = connection.session
        if session.incoming is None:
            session.incoming = {}
        self._received = session.incoming
        self._is_5 = connection.protocol_level == 5
        self._acks = Acknowledgements(self._acknowledge, self._failed, engine.start, connection.advanced)
        self._ids: set[int] = set()
        """QoS 1 publishes of MQTT 5 that the client waits for."""
        # Of an earlier connection; our receive maximum counts what came on this one ([MQTT-3.3.4-9], 4.9).
        self._unfinished = min(len(self._received), engine.limits.max_unacknowledged)
        self._aliases: dict[int, str] | None = {} if self._is_5 else None

    @property
    def unanswered(self) -> int:
        """Publishes the runtime has not answered."""
        return len(self._acks)

    def publish(self, flags: int, data: bytes, start: int, end: int) -> None:
        """Take the PUBLISH whose body is `data[start:end]`. Raises BadPacket."""
        is_5, engine = self._is_5, self._engine
        message, packet_id = decode_publish(flags, data, start, end, 5 if is_5 else 4, self._aliases, TOPIC_ALIASES)
        topic, qos, limits, acks = message.topic, message.qos, engine.limits, self._acks
        answer: Awaitable[Outcome]
        # 3.1.1 says nothing of a QoS 1 id that comes again before its PUBACK: some of its clients repeat themselves.
        if (qos == 2 or (qos and is_5)) and (known := self._known(qos, packet_id)) is not None:
            acks.add(qos, packet_id, known)
            return
        if len(topic) > limits.max_topic_bytes or topic.count("/") >= limits.max_topic_levels:
            engine.counts["topic-refused"] += 1
            answer = engine.answered(_TOO_LONG)
        else:
            answer = engine.gate.received(self._connection, message)
        if qos == 2:
            answer = self._received[packet_id] = self._stored(packet_id, answer)
        acks.add(qos, packet_id, answer)
        if len(acks) > limits.max_unacknowledged:
            self._connection.hold()

    def _known(self, qos: int, packet_id: int) -> Awaitable[Outcome] | None:
        """The answer to a publish that is not to be routed; None for a new one, whose id is noted. Raises BadPacket."""
        received, ids = self._received, self._ids
        if qos == 2 and packet_id in received:
            running = received[packet_id]
            if running is None or not running.done() or (not running.cancelled() and running.exception() is None):
                return running or self._engine.answered(ACCEPTED)
            # Its commit failed, so that it has not been routed yet.
            del received[packet_id]
        if not self._is_5:
            if len(received) >= MAX_UNRELEASED:
                raise protocol_error("more QoS 2 publishes without PUBREL than are kept")
            return None
        if packet_id in ids or packet_id in received:
            return self._engine.answered(_IN_USE)
        if len(ids) + len(received) - self._unfinished >= self._engine.limits.max_unacknowledged:
            raise BadPacket(Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes than the receive maximum")
        if qos == 1:
            ids.add(packet_id)
        return None

    def _stored(self, packet_id: int, answer: Awaitable[Outcome]) -> "asyncio.Future[Outcome]":
        store, session = self._engine.store, self._session
        if store is not None and session.is_kept:
            return self._engine.start(_mark(store, session, packet_id, answer))
        return answer if isinstance(answer, asyncio.Future) else self._engine.start(_answer(answer))

    def _acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        code, connection = outcome.reason_code, self._connection
        if qos == 1:
            self._ids.discard(packet_id)
        elif packet_id in (received := self._received):
            if code >= 0x80 and self._is_5:
                # [MQTT-4.3.3] a refused PUBREC ends the exchange, and frees the id.
                del received[packet_id]
            else:
                received[packet_id] = None
        if not code or not self._is_5:
            connection.write((b"\x40\x02" if qos == 1 else b"\x50\x02") + packet_id.to_bytes(2, "big"))
            return
        kind, terms = Kind.PUBACK if qos == 1 else Kind.PUBREC, connection.terms
        properties: Properties = {}
        if outcome.reason and terms.wants_reasons:
            properties[Property.REASON_STRING] = outcome.reason[:MAX_REASON_CHARS]
        packet = encode_ack(kind, packet_id, 5, code, properties)
        if terms.max_packet and len(packet) > terms.max_packet:
            packet = encode_ack(kind, packet_id, 5, code)
        connection.write(packet)

    def _failed(self, error: BaseException) -> None:
        """A commit failed: no acknowledgement, and the client sends it again on its next connection."""
        self._engine.counts["commit-failed"] += 1
        log.error("a publish could not be committed", extra={"client": self._connection.client_id}, exc_info=error)
        self._connection.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)

    def released(self, packet_id: int) -> None:
        """Take a PUBREL: PUBCOMP answers every one ([MQTT-4.3.3]); 3.1.1 cannot say that the id is unknown."""
        session, store = self._session, self._engine.store
        if packet_id not in self._received:
            self._complete(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        elif store is not None and session.is_kept:
            self._engine.start(self._unmark(store, packet_id))
        else:
            self._complete(packet_id)

    async def _unmark(self, store: SessionStore, packet_id: int) -> None:
        try:
            await store.mark(self._session.key, packet_id, received=False)
        except sqlite3.Error:
            # Not finished: the client sends PUBREL again on its next connection.
            self._connection.end(Closed.REFUSED, Reason.UNSPECIFIED_ERROR)
        else:
            self._complete(packet_id)

    def _complete(self, packet_id: int, reason: Reason = Reason.SUCCESS) -> None:
        self._received.pop(packet_id, None)
        self._connection.write(encode_ack(Kind.PUBCOMP, packet_id, 5 if self._is_5 else 4, reason))

    async def settled(self) -> None:
        """Return when every publish that was read has been answered."""
        await self._acks.settled()


async def _answer(answer: Awaitable[Outcome]) -> Outcome:
    return await answer


async def _mark(store: SessionStore, session: Session, packet_id: int, answer: Awaitable[Outcome]) -> Outcome:
    outcome = await answer
    if outcome.reason_code < 0x80:
        session.is_stored = True
        await store.mark(session.key, packet_id, received=True)
    return outcome
