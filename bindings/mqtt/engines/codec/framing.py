"""Cutting whole packets out of a byte stream that arrives in any pieces.

The length of a packet is checked before anything of it is kept, so a client can make the server hold at most one
packet of the allowed size and whatever one read brought behind it.
"""

from bindings.mqtt.engines.codec.reasons import BadPacket, Reason, malformed

Frame = tuple[int, bytes, int, int]
"""First byte, and where the body lies: `data[start:end]`. Nothing is copied before a decoder needs it."""


class Framer:
    """The part of one client's stream that has arrived and has not been taken yet."""

    __slots__ = ("_data", "_needed", "_pos", "_rest", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Most bytes a packet may have, its fixed header included."""
        self._data = b""
        self._pos = 0
        self._rest: bytearray | None = None
        """What came behind `_data`; made for the first packet that comes in parts."""
        self._needed = 0

    def __len__(self) -> int:
        """Bytes held."""
        return len(self._data) - self._pos + len(self._rest or b"")

    @property
    def first(self) -> int | None:
        """The first byte held; None if there is none."""
        return self._data[self._pos] if self._pos < len(self._data) else None

    def feed(self, data: bytes) -> None:
        """Append what the socket brought."""
        if self._rest:
            self._rest += data
        elif self._pos < len(self._data):
            self._rest = bytearray(data)
        else:
            self._data = data
            self._pos = 0

    def take(self) -> Frame | None:
        """The next whole packet, or None until more is fed; raises BadPacket for a length that may not be."""
        data, pos = self._data, self._pos
        if pos >= len(data) or self._needed:
            rest = self._rest
            if not rest or len(rest) + len(data) - pos < self._needed:
                if pos >= len(data):
                    # An idle client holds nothing: what it sent last may have been large, or a password.
                    self._data, self._pos = b"", 0
                return None
            # A partly arrived packet is joined once, when the last byte of it is there.
            data = self._data = data[pos:] + bytes(rest)
            pos = self._pos = self._needed = 0
            self._rest = None
        size = len(data)
        if pos + 2 > size:
            return self._wait(2)
        length = data[pos + 1]
        start = pos + 2
        if length > 0x7F:
            length &= 0x7F
            shift = 7
            while True:
                if start >= size:
                    return self._wait(start - pos + 1)
                byte = data[start]
                start += 1
                length |= (byte & 0x7F) << shift
                if byte < 0x80:
                    if byte == 0:
                        raise malformed("the remaining length is longer than it needs to be")
                    break
                shift += 7
                if shift > 21:
                    raise malformed("the remaining length has more than four bytes")
        end = start + length
        if end - pos > self.limit:
            raise BadPacket(Reason.PACKET_TOO_LARGE, f"a packet of {end - pos} bytes is over {self.limit}")
        if end > size:
            return self._wait(end - pos)
        self._pos = end
        return data[pos], data, start, end

    def clear(self) -> None:
        """Forget everything held."""
        self._data, self._pos, self._needed = b"", 0, 0
        self._rest = None

    def _wait(self, needed: int) -> Frame | None:
        """Keep the part that is there until `needed` bytes of the packet are."""
        self._needed = needed
        if self._pos:
            self._data = self._data[self._pos :]
            self._pos = 0
        return self.take() if len(self) >= needed else None
