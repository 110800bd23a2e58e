"""Whole MQTT 3.1.1 packets cut from a byte stream, each checked before any decoder sees it.

`Framing` cuts; `check` walks a packet's inner lengths, texts, flags and packet ids, so that a decoder behind it can
trust them; `read_connect` reads the first packet, of any version, into a `Hello`. Everything wrong raises FramingError.
"""

from typing import NamedTuple

from bindings.mqtt.seam import Hello, Publish

CONNECT, PUBLISH, PUBACK, PUBREL, SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT = 1, 3, 4, 6, 8, 10, 12, 14
_PUBREC, _PUBCOMP = 5, 7

_ACKNOWLEDGEMENTS = frozenset({PUBACK, _PUBREC, PUBREL, _PUBCOMP})
_FLAGS = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}
"""[MQTT-2.2.2-2] fixed flags; 0 for every other packet but PUBLISH."""

_MAX_LENGTH_BYTES = 4


class FramingError(ValueError):
    """The bytes are no well-formed packet; `answer` is what to send before closing (a CONNACK, or nothing)."""

    def __init__(self, what: str, answer: bytes = b"") -> None:
        super().__init__(what)
        self.answer = answer


class Connect(NamedTuple):
    """A CONNECT: what the gate is asked, and the two things only the engine needs."""

    hello: Hello
    keep_alive_s: int


class Framing:
    """Cuts packets out of what is fed, one at a time; never holds more than one packet over the limit's worth."""

    __slots__ = ("_buffer", "max_packet_bytes")

    def __init__(self, max_packet_bytes: int) -> None:
        self.max_packet_bytes = max_packet_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what the socket gave."""
        self._buffer += data

    def next(self) -> bytes | None:
        """The next whole packet, None if more bytes are needed. Raises FramingError, for a packet over the limit as
        soon as its length is known."""
        buffer = self._buffer
        length = shift = 0
        for index in range(1, _MAX_LENGTH_BYTES + 1):
            if index >= len(buffer):
                return None
            byte = buffer[index]
            length |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
        else:
            raise FramingError("remaining length of more than four bytes")
        total = 1 + index + length
        if total > self.max_packet_bytes:
            raise FramingError(f"packet of {total} bytes, over the limit of {self.max_packet_bytes}")
        if len(buffer) < total:
            return None
        packet = bytes(buffer[:total])
        del buffer[:total]
        return packet


def check(packet: bytes) -> None:
    """Raise FramingError unless `packet` is a well-formed packet that a client may send after CONNECT."""
    kind, flags = packet[0] >> 4, packet[0] & 0x0F
    fields = Fields(packet)
    if kind == PUBLISH:
        qos = flags >> 1 & 3
        if qos == 3:
            raise FramingError("QoS 3")
        if qos == 0 and flags & 8:
            raise FramingError("duplicate flag with QoS 0")
        topic = fields.text("topic")
        if not topic or "+" in topic or "#" in topic:
            raise FramingError("a publish topic is not empty and holds no wildcards")
        if qos:
            fields.packet_id()
        return
    if flags != _FLAGS.get(kind, 0):
        raise FramingError(f"reserved flags {flags:#x} in packet type {kind}")
    if kind in _ACKNOWLEDGEMENTS:
        fields.packet_id()
    elif kind in (SUBSCRIBE, UNSUBSCRIBE):
        fields.packet_id()
        if fields.at_end:
            raise FramingError("no filters")
        while not fields.at_end:
            if not fields.text("filter"):
                raise FramingError("empty filter")
            if kind == SUBSCRIBE and fields.byte() > 2:
                raise FramingError("requested QoS over 2")
    elif kind not in (PINGREQ, DISCONNECT):
        raise FramingError(f"packet type {kind} is not for clients to send here")
    if not fields.at_end:
        raise FramingError("bytes behind the packet's content")


def read_connect(packet: bytes, *, source: str | None, certificate_name: str | None) -> Connect:
    """Read the first packet of a connection. Raises FramingError, with the CONNACK to send where the protocol has one:
    versions other than 3.1.1 are refused in their own words."""
    if packet[0] != CONNECT << 4:
        raise FramingError("the first packet is not CONNECT")
    fields = Fields(packet)
    protocol, level = fields.text("protocol name"), fields.byte()
    if (protocol, level) == ("MQTT", 5):
        raise FramingError("MQTT 5 is not spoken here", b"\x20\x03\x00\x84\x00")
    if (protocol, level) != ("MQTT", 4):
        if protocol not in ("MQTT", "MQIsdp"):
            raise FramingError("wrong protocol name")
        raise FramingError(f"protocol level {level} is not spoken here", connack(1))
    flags = fields.byte()
    has_user, has_password, has_will, clean = (bool(flags & bit) for bit in (0x80, 0x40, 0x04, 0x02))
    will_qos, will_retain = flags >> 3 & 3, bool(flags & 0x20)
    if flags & 1 or will_qos == 3 or (not has_will and (will_qos or will_retain)) or (has_password and not has_user):
        raise FramingError(f"contradicting connect flags {flags:#04x}")
    keep_alive_s = fields.number()
    client_id = fields.text("client id")
    will: Publish | None = None
    if has_will:
        topic = fields.text("will topic")
        if not topic or "+" in topic or "#" in topic:
            raise FramingError("a will topic is not empty and holds no wildcards")
        will = Publish(topic=topic, payload=fields.data(), qos=will_qos, retain=will_retain)
    user_name = fields.text("user name") if has_user else None
    password = fields.data() if has_password else None
    if not fields.at_end:
        raise FramingError("bytes behind the packet's content")
    if not client_id and not clean:
        raise FramingError("a persistent session needs a client id", connack(2))
    hello = Hello(
        client_id=client_id,
        user_name=user_name,
        password=password,
        protocol_level=level,
        clean_start=clean,
        will=will,
        source=source,
        certificate_name=certificate_name,
    )
    return Connect(hello, keep_alive_s)


def connack(code: int) -> bytes:
    """CONNACK of MQTT 3.1.1, session present 0."""
    return bytes((0x20, 0x02, 0x00, code))


class Fields:
    """Reads a packet's fields in order; raises FramingError instead of running over the end."""

    __slots__ = ("_at", "_packet")

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._at = 1
        while packet[self._at] & 0x80:
            self._at += 1
        self._at += 1

    @property
    def at_end(self) -> bool:
        return self._at == len(self._packet)

    def byte(self) -> int:
        return self._take(1)[0]

    def number(self) -> int:
        return int.from_bytes(self._take(2), "big")

    def packet_id(self) -> int:
        value = self.number()
        if not value:
            raise FramingError("packet id 0")
        return value

    def data(self) -> bytes:
        return self._take(self.number())

    def text(self, what: str) -> str:
        try:
            text = self.data().decode("utf-8", "strict")
        except UnicodeDecodeError as error:
            raise FramingError(f"{what} is not UTF-8") from error
        if "\0" in text:
            raise FramingError(f"{what} holds U+0000")
        return text

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._packet):
            raise FramingError("a length inside the packet runs over its end")
        taken = self._packet[self._at : end]
        self._at = end
        return taken
