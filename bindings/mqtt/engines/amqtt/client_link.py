"""The link of engines without deliveries of their own: ordered acknowledgements, a delivery window, a bounded queue.

An engine hands it what it decoded (`received`, `released`, `acknowledged`, `subscribe`, `unsubscribe`) and gives it a
`Wire` that encodes. The link keeps every promise of the seam towards the gate: one `closed` for each `opened`, the will
before it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from bindings.mqtt.engines.acks import Acknowledgements, Start
from bindings.mqtt.engines.latest import Latest
from bindings.mqtt.engines.outbox import Outbox
from bindings.mqtt.engines.seam import (
    ACCEPTED,
    Closed,
    Flow,
    Gate,
    Grant,
    Hello,
    Limits,
    Outcome,
    Publish,
    SubscribeOptions,
)
from bindings.mqtt.topics import is_filter
from things.identity import Principal

log = logging.getLogger(__name__)

_NO_WILL = frozenset({Closed.DISCONNECT, Closed.SHUTDOWN})
"""A runtime that stops says nothing about its clients: their wills do not fire."""

_MAX_UNRELEASED = 4_096
"""QoS 2 publishes whose PUBREL is owed; more is no honest client."""

_LATEST_PER_TURN = 32
"""Latest values made for one client in one turn of the loop."""

_BAD_FILTER, _QUOTA, _UNKNOWN = 0x8F, 0x97, 0x11

Delivered = Callable[[], None] | None


class Wire(Protocol):
    """What a link asks of its engine; nothing here blocks or raises for a dead client."""

    def publish(self, message: Publish, qos: int, packet_id: int | None) -> None: ...

    def acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        """PUBACK for QoS 1, PUBREC for QoS 2."""
        ...

    def complete(self, packet_id: int) -> None:
        """PUBCOMP."""
        ...

    def subscribed(self, packet_id: int, codes: Sequence[int]) -> None:
        """SUBACK, with a granted QoS or a refusal for each filter."""
        ...

    def unsubscribed(self, packet_id: int, codes: Sequence[int]) -> None:
        """UNSUBACK."""
        ...

    @property
    def has_room(self) -> bool: ...

    def when_room(self, then: Callable[[], None]) -> None: ...

    def close(self) -> None:
        """Send what is queued, then close the connection and end its reader."""
        ...


class ClientLink:
    """One client's link (`bindings.mqtt.engines.seam.Link`)."""

    def __init__(
        self, *, gate: Gate, hello: Hello, principal: Principal, limits: Limits, wire: Wire, start: Start, max_qos: int
    ) -> None:
        self.principal = principal
        self.client_id = hello.client_id
        self.source = hello.source
        self.local: str | None = None  # its listener does not say
        self.protocol_level = hello.protocol_level
        self.filters: set[str] = set()
        self.is_closed = False
        self._will = hello.will
        self._gate = gate
        self._limits = limits
        self._wire = wire
        self._start = start
        self._max_qos = max_qos
        self._is_open = False
        self._is_stopping = False
        self._wake: asyncio.Event = asyncio.Event()
        self._acks = Acknowledgements(self._acknowledge, self._refused, self._failed, start)
        self._unreleased: dict[int, bool] = {}
        self._outbox = Outbox(limits.max_queued, limits.max_queued_bytes)
        self._latest = Latest()
        self._pumping = False
        self._inflight: dict[int, Delivered] = {}
        self._packet_id = 0

    # ------------------------------------------------------------ life

    def open(self) -> bool:
        """CONNACK is on its way; False if the link was closed before it ever opened."""
        if self.is_closed:
            return False
        self._is_open = True
        self._gate.opened(self, resumed=False)
        return not self.is_closed

    def close(self, reason: Closed) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._is_open:
            try:
                if self._will is not None and reason not in _NO_WILL:
                    self._acks.add(replace(self._will, qos=0), 0, self._gate.will(self, self._will))
            finally:
                self._gate.closed(self, reason)
        self._outbox.clear()
        self._latest = Latest()
        self._inflight.clear()
        self._wake.set()
        self._wire.close()

    async def stop(self) -> None:
        """Take nothing more from the client, and return when what it sent is answered."""
        self._is_stopping = True
        await self._acks.settled()

    async def credit(self) -> None:
        """Return when the runtime has answered enough for another packet and the account owes nothing for what it
        sent, or the link is closed."""
        while not self.is_closed and not self._is_stopping and (owed_s := self._gate.owed_s(self)) > 0:  # noqa: ASYNC110
            # Nothing tells when a debt is paid but the time.
            await asyncio.sleep(min(owed_s, 1.0))
        while not self.is_closed and (self._is_stopping or len(self._acks) >= self._limits.max_unacknowledged):
            self._wake.clear()
            await self._wake.wait()

    # ------------------------------------------------------------ from the client

    def received(self, message: Publish, packet_id: int) -> None:
        """A PUBLISH, in order of arrival."""
        if self.is_closed:
            return
        if not self._is_short_enough(message.topic):
            self.close(Closed.PROTOCOL)
            return
        if message.qos == 2:
            if packet_id in self._unreleased:
                if self._unreleased[packet_id]:
                    self._wire.acknowledge(2, packet_id, ACCEPTED)
                return
            if len(self._unreleased) >= _MAX_UNRELEASED:
                self.close(Closed.PROTOCOL)
                return
            self._unreleased[packet_id] = False
        answer = self._start_answer(message)
        self._acks.add(message, packet_id, answer)
        answer.add_done_callback(self._answered)

    def released(self, packet_id: int) -> None:
        """A PUBREL: the answer is PUBCOMP in any case."""
        self._unreleased.pop(packet_id, None)
        self._wire.complete(packet_id)

    def acknowledged(self, packet_id: int) -> None:
        """A PUBACK for a delivery; unknown ones are no error, since a client may repeat itself."""
        if packet_id in self._inflight:
            delivered = self._inflight.pop(packet_id)
            if delivered is not None:
                delivered()
            self._pump()

    def subscribe(self, packet_id: int, filters: Sequence[tuple[str, SubscribeOptions]]) -> None:
        """A SUBSCRIBE: SUBACK, then the latest values, a few in a turn of the loop; none behind a newer one."""
        granted = [self._subscribed(topic_filter, options) for topic_filter, options in filters]
        codes = [min(each.qos, self._max_qos) if isinstance(each, Grant) else each for each in granted]
        self._wire.subscribed(packet_id, codes)
        for (topic_filter, _), grant in zip(filters, granted, strict=True):
            if isinstance(grant, Grant) and grant.latest:
                self._latest.add(topic_filter, grant.latest)
        self._pump()

    def unsubscribe(self, packet_id: int, filters: Sequence[str]) -> None:
        """An UNSUBSCRIBE."""
        self.filters.difference_update(filters)
        for topic_filter in filters:
            self._latest.drop(topic_filter)
        known = [self._gate.unsubscribe(self, topic_filter) for topic_filter in filters]
        self._wire.unsubscribed(packet_id, [0 if each else _UNKNOWN for each in known])

    def _subscribed(self, topic_filter: str, options: SubscribeOptions) -> Grant | int:
        """One filter: within the limits it is for the gate to decide."""
        if not is_filter(topic_filter) or not self._is_short_enough(topic_filter):
            return _BAD_FILTER
        if topic_filter not in self.filters and len(self.filters) >= self._limits.max_subscriptions:
            return _QUOTA
        granted = self._gate.subscribe(self, topic_filter, options)
        if isinstance(granted, Grant):
            self.filters.add(topic_filter)
        return granted

    # ------------------------------------------------------------ to the client

    @property
    def has_room(self) -> bool:
        """What is pushed now is sent at once."""
        return not self.is_closed and not self._outbox and self._can_send(self._max_qos)

    def push(self, message: Publish, delivered: Delivered = None) -> bool:
        if self.is_closed:
            return False
        if self._latest and message.flow is Flow.PROPERTY:
            self._latest.delivered(message.topic)
        if not self._outbox and self._can_send(message.qos):
            self._send(message, delivered)
            return True
        if not self._outbox:
            self._outbox.rights = self._gate.rights
        return self._outbox.offer(message, delivered, dropped=self._crowded_out)

    def _crowded_out(self, message: Publish) -> None:
        # It may have been a value of which the client has heard nothing else.
        self._latest.repeat_all()
        self._gate.dropped(self, message, "queue-full")

    def _pump(self) -> None:
        outbox = self._outbox
        while outbox and not self.is_closed and self._can_send(next(iter(outbox)).message.qos):
            entry = outbox.take()
            is_judged = outbox.rights is not None and outbox.rights == self._gate.rights
            message = entry.message if is_judged else self._gate.reviewed(self, entry.message)
            if message is not None:
                self._send(message, entry.delivered)
        if self._latest and not outbox and not self._pumping:
            self._pumping = True
            asyncio.get_running_loop().call_soon(self._pump_latest)

    def _pump_latest(self) -> None:
        self._pumping = False
        for _ in range(_LATEST_PER_TURN):
            if not self._latest or self._outbox or self.is_closed:
                return
            if (owed_s := self._gate.owed_s(self)) > 0:
                self._pumping = True
                asyncio.get_running_loop().call_later(min(owed_s, 1.0), self._pump_latest)
                return
            has_waited = self._latest.is_held
            message = self._latest.step()
            if message is not None:
                if not self._can_send(message.qos):
                    return
                self._latest.taken()
                shown = self._gate.reviewed(self, message) if has_waited else message
                if shown is not None:
                    self._send(replace(shown, retain=True), None)
        self._pump()

    def _can_send(self, qos: int) -> bool:
        if not self._wire.has_room:
            self._wire.when_room(self._pump)
            return False
        return not (qos and self._max_qos) or len(self._inflight) < self._limits.max_inflight

    def _send(self, message: Publish, delivered: Delivered) -> None:
        qos = min(message.qos, self._max_qos)
        packet_id = None
        if qos:
            packet_id = self._packet_id
            while (packet_id := packet_id % 65_535 + 1) in self._inflight:
                pass
        try:
            self._wire.publish(message, qos, packet_id)
        except (ValueError, OverflowError) as error:
            # Too long for its length field, or no Unicode: that delivery is given up, not the link.
            extra = {"topic": message.topic[:120], "error": repr(error)}
            log.warning("a delivery that no PUBLISH can hold is given up", extra=extra)
            self._gate.dropped(self, message, "unencodable")
            return
        if packet_id is not None:
            self._packet_id = packet_id
            self._inflight[packet_id] = delivered
        elif delivered is not None:
            delivered()

    def _is_short_enough(self, topic: str) -> bool:
        limits = self._limits
        return len(topic.encode()) <= limits.max_topic_bytes and topic.count("/") < limits.max_topic_levels

    # ------------------------------------------------------------ answers

    def _start_answer(self, message: Publish) -> "asyncio.Future[Any]":
        answer = self._gate.received(self, message)
        return answer if isinstance(answer, asyncio.Future) else self._start(_wait_for(answer))

    def _answered(self, _done: "asyncio.Future[Any]") -> None:
        self._wake.set()

    def _acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        if self.is_closed:
            return
        if qos == 2:
            if outcome.reason_code >= 0x80:
                # A refused publish was not taken: its packet id is free again.
                del self._unreleased[packet_id]
            else:
                self._unreleased[packet_id] = True
        self._wire.acknowledge(qos, packet_id, outcome)

    def _refused(self, message: Publish, error: Exception) -> Outcome:
        return self._gate.refused(self, message, error)

    def _failed(self, error: BaseException) -> None:
        if not self.is_closed:
            log.info("publish not committed, closing", extra={"account": self.principal.account, "error": repr(error)})
            self.close(Closed.REFUSED)


async def _wait_for(answer: Awaitable[object]) -> object:
    return await answer
