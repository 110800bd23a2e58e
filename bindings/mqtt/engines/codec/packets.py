"""Decoding the packets a server receives, MQTT 3.1.1 and 5; every rule of the specification is checked here.

Each decoder takes the whole packet's body as `(data, pos, end)`, so that nothing is copied before it is needed, and
raises `BadPacket` with the reason code for what is wrong. `level` is 4 (3.1.1) or 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Final

from bindings.mqtt.engines.codec.fields import read_binary, read_byte, read_text, read_two, text
from bindings.mqtt.engines.codec.properties import Place, Properties, Property, read_properties
from bindings.mqtt.engines.codec.reasons import BadPacket, Reason, malformed, protocol_error
from bindings.mqtt.engines.seam import Publish, SubscribeOptions
from things.bounded import Bounded


class PacketType(IntEnum):
    """Control packet types (MQTT 5.0, 2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
"""The same as plain numbers, for what is done with every message: reaching a member of an enum is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """A CONNECT, checked; `will_delay_s` belongs to `will`."""

    level: int
    client_id: str
    clean_start: bool
    keep_alive_s: int
    will: Publish | None
    will_delay_s: int
    user_name: str | None
    password: bytes | None
    properties: Properties = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """A SUBSCRIBE with at least one filter."""

    packet_id: int
    filters: Sequence[tuple[str, SubscribeOptions]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """An UNSUBSCRIBE with at least one filter."""

    packet_id: int
    filters: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """A DISCONNECT; 3.1.1 has only the ordinary one."""

    reason_code: int = 0
    session_expiry_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """An AUTH of MQTT 5."""

    reason_code: int
    method: str | None = None
    data: bytes | None = None


def decode_connect(data: bytes, pos: int, end: int) -> Connect:
    """A CONNECT of either level; an unknown level is BadPacket 0x84 before anything behind it is read.
    `BadPacket.level` says in which format a refusal can be answered."""
    name, pos = read_binary(data, pos, end)
    level, pos = read_byte(data, pos, end)
    if name not in (b"MQTT", b"MQIsdp"):
        # [MQTT-3.1.2-1] whoever speaks another protocol cannot read a CONNACK.
        raise malformed("the protocol name is not MQTT")
    try:
        if name == b"MQIsdp" or level not in (4, 5):
            raise BadPacket(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol level {level} is not spoken here")
        return _connect(level, data, pos, end)
    except BadPacket as bad:
        bad.level = level
        raise


def _connect(level: int, data: bytes, pos: int, end: int) -> Connect:
    flags, pos = read_byte(data, pos, end)
    if flags & 1:
        raise malformed("the reserved connect flag is set")  # [MQTT-3.1.2-3]
    has_will, will_qos, will_retain = flags & 4, flags >> 3 & 3, flags & 0x20
    if will_qos == 3 or (not has_will and (will_qos or will_retain)):
        raise malformed("the will flags contradict each other")
    if level == 4 and flags & 0x40 and not flags & 0x80:
        raise malformed("a password without a user name")  # [MQTT-3.1.2-22] of 3.1.1
    keep_alive_s, pos = read_two(data, pos, end)
    properties: Properties = {}
    if level == 5:
        properties, pos = read_properties(data, pos, end, Place.CONNECT)
        if Property.AUTH_DATA in properties and Property.AUTH_METHOD not in properties:
            raise protocol_error("authentication data without a method")
    client_id, pos = read_text(data, pos, end)
    will, will_delay_s = None, 0
    if has_will:
        will_properties: Properties = {}
        if level == 5:
            will_properties, pos = read_properties(data, pos, end, Place.WILL)
            will_delay_s = will_properties.get(Property.WILL_DELAY, 0)
        topic, pos = read_text(data, pos, end)
        payload, pos = read_binary(data, pos, end)
        _check_topic(topic)
        will = _publish(topic, payload, will_qos, bool(will_retain), False, will_properties)
    user_name = password = None
    if flags & 0x80:
        user_name, pos = read_text(data, pos, end)
    if flags & 0x40:
        password, pos = read_binary(data, pos, end)
    _expect_end(pos, end)
    return Connect(
        level=level,
        client_id=client_id,
        clean_start=bool(flags & 2),
        keep_alive_s=keep_alive_s,
        will=will,
        will_delay_s=will_delay_s,
        user_name=user_name,
        password=password,
        properties=properties,
    )


MAX_TOPICS = 65_536
_MAX_CACHED_TOPIC = 256
_topics: Bounded[bytes, str] = Bounded(MAX_TOPICS)
"""Publish topics seen lately, decoded and checked: a device repeats its few topics for ever."""

_TOPIC_ALIAS, _PAYLOAD_FORMAT, _PUBLISH = Property.TOPIC_ALIAS, Property.PAYLOAD_FORMAT, Place.PUBLISH


def decode_publish(
    flags: int, data: bytes, pos: int, end: int, level: int, aliases: dict[int, str] | None, alias_maximum: int
) -> tuple[Publish, int]:
    """A PUBLISH and its packet id (0 for QoS 0). Topic aliases are resolved and remembered in `aliases`,
    which MQTT 3.1.1 does not need."""
    qos = flags >> 1 & 3
    if qos == 3 or (flags & 8 and not qos):
        raise malformed("QoS 3, or a duplicate of QoS 0")  # [MQTT-3.3.1-2], [MQTT-3.3.1-4]
    if pos + 2 > end:
        raise malformed("the packet ends early")
    stop = pos + 2 + (data[pos] << 8 | data[pos + 1])
    if stop > end:
        raise malformed("the topic reaches past the end of the packet")
    raw = data[pos + 2 : stop]
    topic = _topics.get(raw)
    if topic is None:
        topic = _new_topic(raw)
    pos = stop
    packet_id = 0
    if qos:
        if pos + 2 > end:
            raise malformed("the packet ends early")
        packet_id = data[pos] << 8 | data[pos + 1]
        if not packet_id:
            raise protocol_error("packet id 0")  # [MQTT-2.2.1-3]
        pos += 2
    if level == 5:
        if pos < end and not data[pos]:
            pos += 1
        else:
            properties, pos = read_properties(data, pos, end, _PUBLISH)
            if (alias := properties.get(_TOPIC_ALIAS)) is not None:
                if alias > alias_maximum:
                    raise BadPacket(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias} is over {alias_maximum}")
                if topic and aliases is not None:
                    aliases[alias] = topic
                elif not (topic := (aliases or {}).get(alias, "")):
                    raise protocol_error(f"topic alias {alias} was never given a topic")
            if not topic:
                raise protocol_error("a publish without a topic")
            return _publish(topic, data[pos:end], qos, bool(flags & 1), bool(flags & 8), properties), packet_id
    if not topic:
        raise protocol_error("a publish without a topic")
    return (
        Publish(topic=topic, payload=data[pos:end], qos=qos, retain=flags & 1 == 1, duplicate=flags & 8 == 8),
        packet_id,
    )


def _new_topic(raw: bytes) -> str:
    topic = text(raw)
    if topic:
        _check_topic(topic)
    if len(raw) <= _MAX_CACHED_TOPIC:
        _topics[raw] = topic
    return topic


def _check_topic(topic: str) -> None:
    if not topic or "+" in topic or "#" in topic:
        raise BadPacket(Reason.TOPIC_NAME_INVALID, "a topic to publish to is empty or has a wildcard")


_FIELDS: Mapping[int, str] = {
    Property.USER_PROPERTY: "user_properties",
    Property.MESSAGE_EXPIRY: "expiry_s",
    Property.RESPONSE_TOPIC: "response_topic",
    Property.CORRELATION_DATA: "correlation",
    Property.CONTENT_TYPE: "content_type",
}


def _publish(topic: str, payload: bytes, qos: int, retain: bool, duplicate: bool, properties: Properties) -> Publish:
    fields = {_FIELDS[identifier]: value for identifier, value in properties.items() if identifier in _FIELDS}
    response_topic = fields.get("response_topic")
    if response_topic is not None and (not response_topic or "+" in response_topic or "#" in response_topic):
        raise protocol_error("the response topic is empty or has a wildcard")  # [MQTT-3.3.2-14]
    is_text = properties.get(_PAYLOAD_FORMAT, 0) == 1
    return Publish(
        topic=topic, payload=payload, qos=qos, retain=retain, duplicate=duplicate, payload_is_text=is_text, **fields
    )


_ACK_CODES: Mapping[int, frozenset[int]] = {
    PacketType.PUBACK: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    PacketType.PUBREC: frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    PacketType.PUBREL: frozenset({0x00, 0x92}),
    PacketType.PUBCOMP: frozenset({0x00, 0x92}),
}
_DISCONNECT_CODES = frozenset(
    {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
)  # table 3-13, those a client may send
_AUTH_CODES = frozenset({Reason.CONTINUE_AUTHENTICATION, Reason.RE_AUTHENTICATE})


def decode_ack(packet_type: int, flags: int, data: bytes, pos: int, end: int, level: int) -> tuple[int, int]:
    """PUBACK, PUBREC, PUBREL or PUBCOMP: the packet id and the reason code (0 in 3.1.1)."""
    if flags != (2 if packet_type == PacketType.PUBREL else 0):
        raise malformed("reserved flags of the fixed header")
    if pos + 2 > end:
        raise malformed("the packet ends early")
    packet_id = data[pos] << 8 | data[pos + 1]
    if not packet_id:
        raise protocol_error("packet id 0")
    pos += 2
    if pos == end:
        return packet_id, 0
    if level == 4:
        raise malformed("the packet is too long")
    code = data[pos]
    if code not in _ACK_CODES[packet_type]:
        raise protocol_error(f"0x{code:02X} is no reason code of this packet")
    if pos + 1 < end:
        _, pos = read_properties(data, pos + 1, end, Place.ACK)
        _expect_end(pos, end)
    return packet_id, code


MAX_FILTERS = 4_096
"""In one packet, since it is decoded in one step: several times what a session may have."""


def _check_count(filters: Sequence[object]) -> None:
    if len(filters) > MAX_FILTERS:
        raise BadPacket(Reason.QUOTA_EXCEEDED, f"more than {MAX_FILTERS} filters in one packet")


def decode_subscribe(flags: int, data: bytes, pos: int, end: int, level: int) -> Subscribe:
    """A SUBSCRIBE: each filter is well-formed, each option allowed."""
    packet_id, pos = _packet_id(flags, data, pos, end)
    subscription_id = None
    if level == 5:
        properties, pos = read_properties(data, pos, end, Place.SUBSCRIBE)
        subscription_id = properties.get(Property.SUBSCRIPTION_ID, [None])[0]
    filters = []
    while pos < end:
        topic_filter, pos = read_text(data, pos, end)
        options, pos = read_byte(data, pos, end)
        shared = _check_filter(topic_filter, level)
        if options & (0xC0 if level == 5 else 0xFC):
            raise malformed("reserved subscription options are set")
        if options & 3 == 3 or options & 0x30 == 0x30:
            raise protocol_error("QoS 3 or retain handling 3")
        if shared and options & 4:
            raise protocol_error("no local on a shared subscription")  # [MQTT-3.8.3-4]
        filters.append((topic_filter, _options(options, subscription_id)))
        _check_count(filters)
    if not filters:
        raise protocol_error("a SUBSCRIBE without a filter")  # [MQTT-3.8.3-2]
    return Subscribe(packet_id=packet_id, filters=filters)


@lru_cache(maxsize=1_024)
def _options(options: int, subscription_id: int | None) -> SubscribeOptions:
    return SubscribeOptions(
        qos=options & 3,
        no_local=bool(options & 4),
        retain_as_published=bool(options & 8),
        retain_handling=options >> 4 & 3,
        subscription_id=subscription_id,
    )


def decode_unsubscribe(flags: int, data: bytes, pos: int, end: int, level: int) -> Unsubscribe:
    """An UNSUBSCRIBE: each filter is well-formed."""
    packet_id, pos = _packet_id(flags, data, pos, end)
    if level == 5:
        _, pos = read_properties(data, pos, end, Place.UNSUBSCRIBE)
    filters = []
    while pos < end:
        topic_filter, pos = read_text(data, pos, end)
        _check_filter(topic_filter, level)
        filters.append(topic_filter)
        _check_count(filters)
    if not filters:
        raise protocol_error("an UNSUBSCRIBE without a filter")  # [MQTT-3.10.3-2]
    return Unsubscribe(packet_id=packet_id, filters=filters)


def _packet_id(flags: int, data: bytes, pos: int, end: int) -> tuple[int, int]:
    if flags != 2:
        raise malformed("reserved flags of the fixed header")
    packet_id, pos = read_two(data, pos, end)
    if not packet_id:
        raise protocol_error("packet id 0")
    return packet_id, pos


def _check_filter(topic_filter: str, level: int) -> bool:
    """Raise if the filter is ill-formed; True if it is a shared subscription."""
    shared = level == 5 and topic_filter.startswith("$share/")
    rest = topic_filter
    if shared:
        _, group, *tail = topic_filter.split("/", 2)
        if not group or "+" in group or "#" in group or not tail:
            raise protocol_error("a shared subscription without a group or a filter")  # [MQTT-4.8.2-1]
        rest = tail[0]
    if not rest:
        raise malformed("an empty topic filter")  # [MQTT-4.7.3-1]
    if "+" in rest or "#" in rest:
        levels = rest.split("/")
        if any(("+" in level or "#" in level) and len(level) > 1 for level in levels) or "#" in levels[:-1]:
            raise malformed("a wildcard that does not fill its level, or '#' before the end")
    return shared


def decode_disconnect(flags: int, data: bytes, pos: int, end: int, level: int) -> Disconnect:
    """A DISCONNECT of a client."""
    if flags:
        raise malformed("reserved flags of the fixed header")
    if pos == end:
        return Disconnect()
    if level == 4:
        raise malformed("the packet is too long")
    code, pos = read_byte(data, pos, end)
    if code not in _DISCONNECT_CODES:
        raise protocol_error(f"0x{code:02X} is no reason a client may disconnect with")
    if pos == end:
        return Disconnect(reason_code=code)
    properties, pos = read_properties(data, pos, end, Place.DISCONNECT)
    _expect_end(pos, end)
    return Disconnect(reason_code=code, session_expiry_s=properties.get(Property.SESSION_EXPIRY))


def decode_auth(flags: int, data: bytes, pos: int, end: int, level: int) -> Auth:
    """An AUTH of a client; 3.1.1 has none."""
    if flags or level == 4:
        raise malformed("reserved flags of the fixed header" if flags else "packet type 15 is reserved")
    if pos == end:
        # Only a server may shorten it: a client's codes are all non-zero.
        raise protocol_error("an AUTH without a reason code")
    code, pos = read_byte(data, pos, end)
    if code not in _AUTH_CODES:
        raise protocol_error(f"0x{code:02X} is no reason code a client may send in AUTH")
    properties: Properties = {}
    if pos < end:
        properties, pos = read_properties(data, pos, end, Place.AUTH)
        _expect_end(pos, end)
    if Property.AUTH_METHOD not in properties:
        raise protocol_error("an AUTH without a method")
    return Auth(
        reason_code=code,
        method=properties[Property.AUTH_METHOD],
        data=properties.get(Property.AUTH_DATA),
    )


def decode_ping(flags: int, pos: int, end: int) -> None:
    """A PINGREQ, which says nothing."""
    if flags or pos != end:
        raise malformed("a PINGREQ with flags or a body")


def _expect_end(pos: int, end: int) -> None:
    if pos != end:
        raise malformed("the packet is longer than its content")
