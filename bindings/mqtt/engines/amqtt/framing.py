"""What amqtt sees of a client's stream: packets of MQTT 3.1.1 that the codec has read without complaint.

`read_connect` reads the first packet, `check` every other one; both raise BadPacket. amqtt decodes the same bytes again
and can trust them.
"""

from typing import NamedTuple

from bindings.mqtt.engines.codec import packets
from bindings.mqtt.engines.codec.encoding import encode_connack
from bindings.mqtt.engines.codec.fields import varint
from bindings.mqtt.engines.codec.framing import Frame
from bindings.mqtt.engines.codec.packets import PacketType
from bindings.mqtt.engines.codec.reasons import RETURN_CODES_3, BadPacket, Reason, protocol_error
from bindings.mqtt.engines.seam import Hello
from things.identity import ShownCertificate


class Connect(NamedTuple):
    """A CONNECT: what the gate is asked, and what only the engine needs."""

    hello: Hello
    keep_alive_s: int


def whole(frame: Frame) -> bytes:
    """The packet as it came."""
    first, data, start, end = frame
    return bytes((first,)) + varint(end - start) + data[start:end]


def check(frame: Frame) -> None:
    """Raise BadPacket unless it is a well-formed packet that a client may send after CONNECT."""
    first, data, start, end = frame
    packet_type, flags = first >> 4, first & 15
    match packet_type:
        case PacketType.PUBLISH:
            packets.decode_publish(flags, data, start, end, 4, None, 0)
        case PacketType.PUBACK | PacketType.PUBREC | PacketType.PUBREL | PacketType.PUBCOMP:
            packets.decode_ack(packet_type, flags, data, start, end, 4)
        case PacketType.SUBSCRIBE:
            packets.decode_subscribe(flags, data, start, end, 4)
        case PacketType.UNSUBSCRIBE:
            packets.decode_unsubscribe(flags, data, start, end, 4)
        case PacketType.PINGREQ:
            packets.decode_ping(flags, start, end)
        case PacketType.DISCONNECT:
            packets.decode_disconnect(flags, data, start, end, 4)
        case _:
            raise protocol_error(f"packet type {packet_type} is not for clients to send here")


def read_connect(frame: Frame, *, source: str | None, certificate: ShownCertificate | None) -> Connect:
    """Read the first packet of a connection; other versions than 3.1.1 are refused."""
    first, data, start, end = frame
    if first != PacketType.CONNECT << 4:
        raise protocol_error("the first packet is not CONNECT")
    connect = packets.decode_connect(data, start, end)
    if connect.level != 4:
        bad = BadPacket(Reason.UNSUPPORTED_PROTOCOL_VERSION, "MQTT 5 is not spoken here")
        bad.level = connect.level
        raise bad
    if not connect.client_id and not connect.clean_start:
        raise BadPacket(Reason.CLIENT_IDENTIFIER_NOT_VALID, "a persistent session needs a client id")
    hello = Hello(
        client_id=connect.client_id,
        user_name=connect.user_name,
        password=connect.password,
        protocol_level=connect.level,
        clean_start=connect.clean_start,
        will=connect.will,
        source=source,
        certificate=certificate,
    )
    return Connect(hello, connect.keep_alive_s)


def refusal(bad: BadPacket) -> bytes:
    """The CONNACK that says why a CONNECT was refused, in the words of its own version; empty where there is none."""
    if bad.level == 5 and bad.reason is Reason.UNSUPPORTED_PROTOCOL_VERSION:
        return encode_connack(5, bad.reason)
    return encode_connack(4, RETURN_CODES_3[bad.reason]) if bad.reason in RETURN_CODES_3 else b""
