"""What one client publishes: to the gate in order of arrival, and acknowledged in that order.

QoS 2 ids belong to the session, from their arrival to PUBREL: a publish that is sent again, on this connection or a
later one, is acknowledged again and routed no second time. The id of a kept session is on disk before its PUBREC.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable
from typing import Any, Protocol

from bindings.mqtt.engines.acks import Acknowledgements
from bindings.mqtt.engines.codec.encoding import encode_ack
from bindings.mqtt.engines.codec.packets import PacketType, decode_publish
from bindings.mqtt.engines.codec.properties import Properties, Property
from bindings.mqtt.engines.codec.reasons import BadPacket, Reason, protocol_error
from bindings.mqtt.engines.native.negotiated import TOPIC_ALIASES, Terms
from bindings.mqtt.engines.native.sessions import Session
from bindings.mqtt.engines.native.shared import Shared
from bindings.mqtt.engines.native.store import SessionStore
from bindings.mqtt.engines.native.writing import Writer
from bindings.mqtt.engines.seam import ACCEPTED, Link, Outcome, Publish
from things.errors import SkepError
from things.refusals import REFUSALS

log = logging.getLogger(__name__)

MAX_REASON_CHARS = 1_024
MAX_UNRELEASED = 4_096
"""QoS 2 publishes of one session whose PUBREL is owed. MQTT 5 says how many there may be, 3.1.1 does not."""
_TOO_LONG = Outcome(reason_code=Reason.TOPIC_NAME_INVALID, reason="topic over the limit")
_IN_USE = Outcome(reason_code=Reason.PACKET_IDENTIFIER_IN_USE, reason="the packet id stands for another publish")


class Publisher(Link, Protocol):
    """The link that publishes."""

    def hold_back(self) -> None:
        """Read no further: the runtime is behind with what was read."""

    def read_on(self) -> None:
        """Enough was answered."""

    def fail(self) -> None:
        """Close: what was sent could not be kept, and is to be sent again."""


class Incoming:
    """The receiving side of one open link, over its session."""

    __slots__ = (
        "_acks",
        "_aliases",
        "_ids",
        "_is_5",
        "_is_behind",
        "_link",
        "_received",
        "_session",
        "_shared",
        "_terms",
        "_unfinished",
        "_writer",
    )

    def __init__(self, shared: Shared, session: Session, link: Publisher, writer: Writer, terms: Terms) -> None:
        self._shared = shared
        self._link = link
        self._writer = writer
        self._terms = terms
        self._session = session
        if session.incoming is None:
            session.incoming = {}
        self._received = session.incoming
        self._is_5 = link.protocol_level == 5
        self._is_behind = False
        """The link was asked to hold back."""
        self._acks = Acknowledgements(self._acknowledge, self._refused, self._failed, shared.start, self._advanced)
        self._ids: set[int] = set()
        """QoS 1 publishes of MQTT 5 that the client waits for."""
        # Of an earlier connection; our receive maximum counts what came on this one ([MQTT-3.3.4-9], 4.9).
        self._unfinished = min(len(self._received), shared.limits.max_unacknowledged)
        self._aliases: dict[int, str] | None = {} if self._is_5 else None

    def publish(self, flags: int, data: bytes, start: int, end: int) -> None:
        """Take the PUBLISH whose body is `data[start:end]`. Raises BadPacket."""
        is_5, shared = self._is_5, self._shared
        message, packet_id = decode_publish(flags, data, start, end, 5 if is_5 else 4, self._aliases, TOPIC_ALIASES)
        topic, qos, limits, acks = message.topic, message.qos, shared.limits, self._acks
        answer: Awaitable[object]
        # 3.1.1 says nothing of a QoS 1 id that comes again before its PUBACK: some of its clients repeat themselves.
        if (qos == 2 or (qos and is_5)) and (known := self._known(qos, packet_id)) is not None:
            acks.add(message, packet_id, known)
            return
        if len(topic) > limits.max_topic_bytes or topic.count("/") >= limits.max_topic_levels:
            shared.counts["topic-refused"] += 1
            answer = _answered(_TOO_LONG)
        else:
            answer = shared.gate.received(self._link, message)
        if qos == 2:
            answer = self._received[packet_id] = self._stored(packet_id, answer)
        if acks.add(message, packet_id, answer) > limits.max_unacknowledged:
            self._is_behind = True
            self._link.hold_back()

    def _known(self, qos: int, packet_id: int) -> Awaitable[object] | None:
        """The answer to a publish that is not to be routed; None for a new one, whose id is noted. Raises BadPacket."""
        received, ids = self._received, self._ids
        if qos == 2 and packet_id in received:
            running = received[packet_id]
            if running is None or not running.done() or (not running.cancelled() and running.exception() is None):
                return running or _answered(ACCEPTED)
            # Its commit failed, so that it has not been routed yet.
            del received[packet_id]
        if not self._is_5:
            if len(received) >= MAX_UNRELEASED:
                raise protocol_error("more QoS 2 publishes without PUBREL than are kept")
            return None
        if packet_id in ids or packet_id in received:
            return _answered(_IN_USE)
        if len(ids) + len(received) - self._unfinished >= self._shared.limits.max_unacknowledged:
            raise BadPacket(Reason.RECEIVE_MAXIMUM_EXCEEDED, "more publishes than the receive maximum")
        if qos == 1:
            ids.add(packet_id)
        return None

    def _stored(self, packet_id: int, answer: Awaitable[object]) -> "asyncio.Future[Any]":
        store, session = self._shared.store, self._session
        if store is not None and session.is_kept:
            return self._shared.start(_mark(store, session, packet_id, answer))
        return answer if isinstance(answer, asyncio.Future) else self._shared.start(_answer(answer))

    def _advanced(self) -> None:
        if self._is_behind and len(self._acks) * 2 <= self._shared.limits.max_unacknowledged:
            self._is_behind = False
            self._link.read_on()

    def _acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        code, writer = outcome.reason_code, self._writer
        if qos == 1:
            self._ids.discard(packet_id)
        elif packet_id in (received := self._received):
            if code >= 0x80 and self._is_5:
                # [MQTT-4.3.3] a refused PUBREC ends the exchange, and frees the id.
                del received[packet_id]
            else:
                received[packet_id] = None
        if not code or not self._is_5:
            writer.write((b"\x40\x02" if qos == 1 else b"\x50\x02") + packet_id.to_bytes(2, "big"))
            return
        packet_type, terms = PacketType.PUBACK if qos == 1 else PacketType.PUBREC, self._terms
        properties: Properties = {}
        if terms.wants_reasons:
            if outcome.reason:
                properties[Property.REASON_STRING] = outcome.reason[:MAX_REASON_CHARS]
            if outcome.error_code:
                properties[Property.USER_PROPERTY] = [("code", outcome.error_code)]
        packet = encode_ack(packet_type, packet_id, 5, code, properties)
        if terms.max_packet and len(packet) > terms.max_packet:
            packet = encode_ack(packet_type, packet_id, 5, code)
        writer.write(packet)

    def _refused(self, message: Publish, error: Exception) -> Outcome:
        return self._shared.gate.refused(self._link, message, error)

    def _failed(self, error: BaseException) -> None:
        """A commit failed: no acknowledgement, and the client sends it again on its next connection."""
        self._shared.counts["commit-failed"] += 1
        if isinstance(error, SkepError):
            # A full disk is expected to come, and says what it is.
            REFUSALS.note(
                log, "a publish was not committed", who=self._session.key[0], code=error.code, detail=error.detail
            )
        else:
            log.error("a publish could not be committed", extra={"client": self._link.client_id}, exc_info=error)
        self._link.fail()

    def released(self, packet_id: int) -> None:
        """Take a PUBREL: PUBCOMP answers every one ([MQTT-4.3.3]); 3.1.1 cannot say that the id is unknown."""
        session, store = self._session, self._shared.store
        if packet_id not in self._received:
            self._complete(packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND)
        elif store is not None and session.is_kept:
            self._shared.start(self._unmark(store, packet_id))
        else:
            self._complete(packet_id)

    async def _unmark(self, store: SessionStore, packet_id: int) -> None:
        try:
            await store.mark(self._session.key, packet_id, received=False)
        except sqlite3.Error:
            # Not finished: the client sends PUBREL again on its next connection.
            self._link.fail()
        else:
            self._complete(packet_id)

    def _complete(self, packet_id: int, reason: Reason = Reason.SUCCESS) -> None:
        self._received.pop(packet_id, None)
        self._writer.write(encode_ack(PacketType.PUBCOMP, packet_id, 5 if self._is_5 else 4, reason))

    async def settled(self) -> None:
        """Return when every publish that was read has been answered."""
        await self._acks.settled()


def _answered(outcome: Outcome) -> "asyncio.Future[Outcome]":
    """An answer that is already there."""
    future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    future.set_result(outcome)
    return future


async def _answer(answer: Awaitable[object]) -> object:
    return await answer


async def _mark(store: SessionStore, session: Session, packet_id: int, answer: Awaitable[object]) -> object:
    outcome = await answer
    if not isinstance(outcome, Outcome) or outcome.reason_code < 0x80:
        session.is_stored = True
        await store.mark(session.key, packet_id, received=True)
    return outcome
