"""Whole packets in and coalesced writes out, over asyncio streams; for engines that bring no transport of their own."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from bindings.mqtt.engines.codec.encoding import encode_ack, encode_publish, encode_suback, encode_unsuback
from bindings.mqtt.engines.codec.framing import Frame, Framer
from bindings.mqtt.engines.codec.packets import PacketType
from bindings.mqtt.engines.seam import Limits, Outcome, Publish

HIGH_WATER_BYTES = 65_536
"""Written but not taken by the client; beyond it deliveries wait in the bounded queue of their link."""

MAX_UNREAD_BYTES = 4 * HIGH_WATER_BYTES
"""Beyond it (acknowledgements of a client that writes and never reads) its packets are not read either."""

_READ_BYTES = 65_536
_LINGER_S = 2.0
"""How long a closed connection may take to swallow its last bytes."""


class PacketReader:
    """Packets of one client; each must be whole before the clock of `idle_s` runs out, so a drip of bytes is idle."""

    __slots__ = ("_framer", "_last", "_loop", "_reader", "idle_s")

    def __init__(self, reader: asyncio.StreamReader, limits: Limits) -> None:
        self._reader = reader
        self._framer = Framer(limits.max_connect_bytes)
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self.idle_s = limits.connect_timeout_s

    def allow(self, max_packet_bytes: int) -> None:
        """Packets may be so large from now on."""
        self._framer.limit = max_packet_bytes

    async def packet(self) -> Frame | None:
        """The next packet; None when the client is gone. Raises BadPacket, TimeoutError."""
        framer = self._framer
        while (packet := framer.take()) is None:
            try:
                async with asyncio.timeout_at(self._last + self.idle_s):
                    data = await self._reader.read(_READ_BYTES)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                return None
            if not data:
                return None
            framer.feed(data)
        self._last = self._loop.time()
        return packet

    def excuse(self) -> None:
        """Start the clock anew: the runtime kept the client waiting, not the client the runtime."""
        self._last = self._loop.time()


class CoalescingWriter:
    """What a client link writes, as MQTT 3.1.1 and in one write per turn of the loop."""

    __slots__ = ("_chunks", "_loop", "_pending", "_start", "_waiting", "_writer", "closed")

    def __init__(
        self, writer: asyncio.StreamWriter, start: Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]]
    ) -> None:
        self._writer = writer
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._chunks: list[bytes] = []
        self._pending = 0
        self._waiting = False
        self.closed = False
        writer.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def write(self, data: bytes) -> None:
        """Send with whatever else is written in this turn; nothing once closed."""
        if self.closed:
            return
        if not self._chunks:
            self._loop.call_soon(self._flush)
        self._chunks.append(data)
        self._pending += len(data)

    def publish(self, message: Publish, qos: int, packet_id: int | None) -> None:
        """A PUBLISH at `qos`; it has a packet id if that is not 0."""
        head, tail, _ = encode_publish(message, 4, qos=qos)
        self.write(head + (packet_id.to_bytes(2, "big") if packet_id else b"") + tail)

    def acknowledge(self, qos: int, packet_id: int, outcome: Outcome) -> None:
        """PUBACK for QoS 1, PUBREC for QoS 2; why something was refused cannot be said."""
        self.write(encode_ack(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, packet_id, 4))

    def complete(self, packet_id: int) -> None:
        """PUBCOMP."""
        self.write(encode_ack(PacketType.PUBCOMP, packet_id, 4))

    def subscribed(self, packet_id: int, codes: Sequence[int]) -> None:
        """SUBACK; every refusal is 0x80."""
        self.write(encode_suback(packet_id, 4, codes))

    def unsubscribed(self, packet_id: int, codes: Sequence[int]) -> None:
        """UNSUBACK; it has no codes."""
        self.write(encode_unsuback(packet_id, 4, codes))

    @property
    def unread_bytes(self) -> int:
        """What the client has not taken from us yet, beyond the sockets' buffers."""
        return self._pending + self._writer.transport.get_write_buffer_size()

    @property
    def has_room(self) -> bool:
        return self.unread_bytes <= HIGH_WATER_BYTES

    def when_room(self, then: Callable[[], None]) -> None:
        """Call `then` once the client has taken enough; one caller at a time."""
        if not self._waiting and not self.closed:
            self._waiting = True
            self._start(self._drained(then))

    async def drain(self) -> None:
        """Return when the client has taken enough, or is gone."""
        self._flush()
        with suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        """Send what is left and close; a client that does not take it is cut off."""
        if self.closed:
            return
        self._flush()
        self.closed = True
        self._writer.close()
        self._loop.call_later(_LINGER_S, self._writer.transport.abort)

    async def _drained(self, then: Callable[[], None]) -> None:
        await self.drain()
        self._waiting = False
        if not self.closed:
            then()

    def _flush(self) -> None:
        if self._chunks and not self.closed:
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._pending = 0
            self._writer.write(data)
