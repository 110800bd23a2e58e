"""Encoding the packets a server sends, MQTT 3.1.1 and 5.

A PUBLISH is encoded in two parts, so that a fan-out is encoded once: everything before the packet id and everything
behind it are the same for every receiver of the same QoS and level.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from bindings.mqtt.engines.codec.fields import utf8, varint
from bindings.mqtt.engines.codec.packets import PacketType
from bindings.mqtt.engines.codec.properties import Properties, Property, write_properties
from bindings.mqtt.engines.seam import Publish

PINGRESP = b"\xd0\x00"
_ACK_HEADS = {
    PacketType.PUBACK: b"\x40",
    PacketType.PUBREC: b"\x50",
    PacketType.PUBREL: b"\x62",
    PacketType.PUBCOMP: b"\x70",
}
_ACK_HEADS_2 = {packet_type: head + b"\x02" for packet_type, head in _ACK_HEADS.items()}
DUPLICATE = 0x08
_FIRST = tuple(bytes((0x30 | flags,)) for flags in range(8))
"""The first byte of a PUBLISH by QoS and retain flag."""


class Encoded(NamedTuple):
    """A PUBLISH without its packet id: the whole packet is `head + packet id + tail`, for QoS 0 it is `head`."""

    head: bytes
    tail: bytes
    size: int
    """Bytes of the whole packet."""


def encode_publish(
    message: Publish, level: int, *, qos: int, topic: str | None = None, alias: int = 0, expiry_s: int | None = None
) -> Encoded:
    """`message` at `qos`. `topic` replaces its topic (empty behind a known alias), `expiry_s` what is left of it."""
    name = _topic(message.topic if topic is None else topic)
    tail = message.payload
    if level == 5:
        tail = publish_properties(message, alias, expiry_s) + tail
    length = len(name) + len(tail)
    first = _FIRST[qos << 1 | message.retain]
    if not qos:
        head = first + varint(length) + name + tail
        return Encoded(head, b"", len(head))
    head = first + varint(length + 2) + name
    return Encoded(head, tail, len(head) + 2 + len(tail))


@lru_cache(maxsize=4_096)
def _topic(text: str) -> bytes:
    """A topic as it is sent; devices and their readers repeat a few for ever."""
    return utf8(text)


def publish_properties(message: Publish, alias: int, expiry_s: int | None) -> bytes:
    """The properties of an outgoing PUBLISH, with their length."""
    properties: Properties = {}
    if message.payload_is_text:
        properties[Property.PAYLOAD_FORMAT] = 1
    if expiry_s is not None:
        properties[Property.MESSAGE_EXPIRY] = expiry_s
    if alias:
        properties[Property.TOPIC_ALIAS] = alias
    if message.content_type is not None:
        properties[Property.CONTENT_TYPE] = message.content_type
    if message.response_topic is not None:
        properties[Property.RESPONSE_TOPIC] = message.response_topic
    if message.correlation is not None:
        properties[Property.CORRELATION_DATA] = message.correlation
    if message.subscription_ids:
        properties[Property.SUBSCRIPTION_ID] = message.subscription_ids
    if message.user_properties:
        properties[Property.USER_PROPERTY] = message.user_properties
    return write_properties(properties) if properties else b"\0"


def encode_ack(
    packet_type: PacketType, packet_id: int, level: int, reason_code: int = 0, properties: Properties | None = None
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; 3.1.1 has neither reason code nor properties."""
    if level == 4 or (not reason_code and not properties):
        return _ACK_HEADS_2[packet_type] + packet_id.to_bytes(2, "big")
    body = packet_id.to_bytes(2, "big") + bytes((reason_code,))
    if properties:
        body += write_properties(properties)
    return _ACK_HEADS[packet_type] + varint(len(body)) + body


def encode_connack(
    level: int, reason_code: int, *, session_present: bool = False, properties: Properties | None = None
) -> bytes:
    """CONNACK; `reason_code` is a return code of 3.1.1 on level 4."""
    body = bytes((session_present, reason_code))
    if level == 5:
        body += write_properties(properties or {})
    return b"\x20" + varint(len(body)) + body


def encode_suback(packet_id: int, level: int, codes: Sequence[int]) -> bytes:
    """SUBACK; 3.1.1 knows one refusal, 0x80."""
    if level == 5:
        body = packet_id.to_bytes(2, "big") + b"\0" + bytes(codes)
    else:
        body = packet_id.to_bytes(2, "big") + bytes(code if code < 0x80 else 0x80 for code in codes)
    return b"\x90" + varint(len(body)) + body


def encode_unsuback(packet_id: int, level: int, codes: Sequence[int]) -> bytes:
    """UNSUBACK; in 3.1.1 it has no codes."""
    body = packet_id.to_bytes(2, "big")
    if level == 5:
        body += b"\0" + bytes(codes)
    return b"\xb0" + varint(len(body)) + body


def encode_disconnect(reason_code: int, properties: Properties | None = None) -> bytes:
    """DISCONNECT of a server, MQTT 5 only."""
    body = bytes((reason_code,))
    if properties:
        body += write_properties(properties)
    return b"\xe0" + varint(len(body)) + body


def encode_auth(reason_code: int, properties: Properties) -> bytes:
    """AUTH, MQTT 5 only."""
    body = bytes((reason_code,)) + write_properties(properties)
    return b"\xf0" + varint(len(body)) + body
