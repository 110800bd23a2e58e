"""MQTT 5 properties: one table says what each is called, how it is written, where it may stand and what it may be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any

from bindings.mqtt.engines.codec.fields import (
    binary,
    read_binary,
    read_byte,
    read_four,
    read_text,
    read_two,
    read_varint,
    utf8,
    varint,
)
from bindings.mqtt.engines.codec.reasons import BadPacket, Reason, malformed, protocol_error

MAX_USER_PROPERTIES = 256
"""In one packet. A stranger's CONNECT could hold fifty thousand, and keep the loop for half a second."""


class Property(IntEnum):
    """Property identifiers (MQTT 5.0, 2.2.2.2)."""

    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTH_METHOD = 0x15
    AUTH_DATA = 0x16
    REQUEST_PROBLEM = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_AVAILABLE = 0x28
    SUBSCRIPTION_ID_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


class Place(Enum):
    """Where a property may stand: the packets a server reads, and the will inside CONNECT."""

    CONNECT = "CONNECT"
    WILL = "will"
    PUBLISH = "PUBLISH"
    ACK = "acknowledgement"
    SUBSCRIBE = "SUBSCRIBE"
    UNSUBSCRIBE = "UNSUBSCRIBE"
    DISCONNECT = "DISCONNECT"
    AUTH = "AUTH"
    ANSWER = "answer"
    """What only a server writes: CONNACK, SUBACK, UNSUBACK."""


class ValueKind(Enum):
    """How a property's value is written."""

    BYTE = "byte"
    TWO = "two bytes"
    FOUR = "four bytes"
    VARINT = "variable byte integer"
    TEXT = "text"
    BINARY = "binary"
    PAIR = "pair of texts"


@dataclass(frozen=True, slots=True)
class PropertyRule:
    """One line of the table."""

    kind: ValueKind
    places: frozenset[Place]
    minimum: int = 0
    maximum: int | None = None
    offence: Reason = Reason.PROTOCOL_ERROR
    """What a value outside the bounds is."""
    servers: frozenset[Place] = frozenset()
    """Packets of both sides in which only a server writes it."""


Properties = dict[int, Any]
"""Property id → value. User properties are a list of pairs, subscription ids a list of numbers; others stand once."""

_P = Property
_MESSAGE = frozenset({Place.PUBLISH, Place.WILL})
_CONNECT = frozenset({Place.CONNECT})
_ANSWER = frozenset({Place.ANSWER})
_BOTH = _CONNECT | _ANSWER

RULES: Mapping[int, PropertyRule] = {
    _P.PAYLOAD_FORMAT: PropertyRule(ValueKind.BYTE, _MESSAGE, maximum=1),
    _P.MESSAGE_EXPIRY: PropertyRule(ValueKind.FOUR, _MESSAGE),
    _P.CONTENT_TYPE: PropertyRule(ValueKind.TEXT, _MESSAGE),
    _P.RESPONSE_TOPIC: PropertyRule(ValueKind.TEXT, _MESSAGE),
    _P.CORRELATION_DATA: PropertyRule(ValueKind.BINARY, _MESSAGE),
    _P.SUBSCRIPTION_ID: PropertyRule(
        ValueKind.VARINT, frozenset({Place.SUBSCRIBE, Place.ANSWER}), minimum=1, servers=frozenset({Place.PUBLISH})
    ),
    _P.SESSION_EXPIRY: PropertyRule(ValueKind.FOUR, _BOTH | {Place.DISCONNECT}),
    _P.ASSIGNED_CLIENT_ID: PropertyRule(ValueKind.TEXT, _ANSWER),
    _P.SERVER_KEEP_ALIVE: PropertyRule(ValueKind.TWO, _ANSWER),
    _P.AUTH_METHOD: PropertyRule(ValueKind.TEXT, _BOTH | {Place.AUTH}),
    _P.AUTH_DATA: PropertyRule(ValueKind.BINARY, _BOTH | {Place.AUTH}),
    _P.REQUEST_PROBLEM: PropertyRule(ValueKind.BYTE, _CONNECT, maximum=1),
    _P.WILL_DELAY: PropertyRule(ValueKind.FOUR, frozenset({Place.WILL})),
    _P.REQUEST_RESPONSE: PropertyRule(ValueKind.BYTE, _CONNECT, maximum=1),
    _P.RESPONSE_INFORMATION: PropertyRule(ValueKind.TEXT, _ANSWER),
    _P.SERVER_REFERENCE: PropertyRule(ValueKind.TEXT, _ANSWER, servers=frozenset({Place.DISCONNECT})),
    _P.REASON_STRING: PropertyRule(ValueKind.TEXT, frozenset({Place.ACK, Place.DISCONNECT, Place.AUTH, Place.ANSWER})),
    _P.RECEIVE_MAXIMUM: PropertyRule(ValueKind.TWO, _BOTH, minimum=1),
    _P.TOPIC_ALIAS_MAXIMUM: PropertyRule(ValueKind.TWO, _BOTH),
    _P.TOPIC_ALIAS: PropertyRule(
        ValueKind.TWO, frozenset({Place.PUBLISH}), minimum=1, offence=Reason.TOPIC_ALIAS_INVALID
    ),
    _P.MAXIMUM_QOS: PropertyRule(ValueKind.BYTE, _ANSWER, maximum=1),
    _P.RETAIN_AVAILABLE: PropertyRule(ValueKind.BYTE, _ANSWER, maximum=1),
    _P.USER_PROPERTY: PropertyRule(ValueKind.PAIR, frozenset(Place)),
    _P.MAXIMUM_PACKET_SIZE: PropertyRule(ValueKind.FOUR, _BOTH, minimum=1),
    _P.WILDCARD_AVAILABLE: PropertyRule(ValueKind.BYTE, _ANSWER, maximum=1),
    _P.SUBSCRIPTION_ID_AVAILABLE: PropertyRule(ValueKind.BYTE, _ANSWER, maximum=1),
    _P.SHARED_AVAILABLE: PropertyRule(ValueKind.BYTE, _ANSWER, maximum=1),
}


Reader = Callable[[bytes, int, int], tuple[Any, int]]


def _read_pair(data: bytes, pos: int, end: int) -> tuple[tuple[str, str], int]:
    name, pos = read_text(data, pos, end)
    value, pos = read_text(data, pos, end)
    return (name, value), pos


_READERS: Mapping[ValueKind, Reader] = {
    ValueKind.BYTE: read_byte,
    ValueKind.TWO: read_two,
    ValueKind.FOUR: read_four,
    ValueKind.VARINT: read_varint,
    ValueKind.TEXT: read_text,
    ValueKind.BINARY: read_binary,
    ValueKind.PAIR: _read_pair,
}
_TABLES: Mapping[Place, Mapping[int, tuple[PropertyRule, Reader]]] = {
    place: {identifier: (rule, _READERS[rule.kind]) for identifier, rule in RULES.items() if place in rule.places}
    for place in Place
}
"""By place, so that a property costs one look-up: members and hashes of an Enum are slow to come by."""

_USER_PROPERTY, _SUBSCRIPTION_ID = _P.USER_PROPERTY, _P.SUBSCRIPTION_ID


def read_properties(data: bytes, pos: int, end: int, place: Place) -> tuple[Properties, int]:
    """The properties that start at `pos` with their length; each is checked against its rule."""
    length, pos = read_varint(data, pos, end)
    stop = pos + length
    if stop > end:
        raise malformed("the property length reaches past the end of the packet")
    table = _TABLES[place]
    found: Properties = {}
    while pos < stop:
        # Every identifier fits one byte; a continuation bit makes it one that does not exist.
        identifier = data[pos]
        if identifier not in table:
            raise _misplaced(identifier, place)
        rule, read = table[identifier]
        value, pos = read(data, pos + 1, stop)
        if identifier == _USER_PROPERTY:
            pairs = found.setdefault(identifier, [])
            if len(pairs) >= MAX_USER_PROPERTIES:
                raise BadPacket(Reason.QUOTA_EXCEEDED, f"more than {MAX_USER_PROPERTIES} user properties")
            pairs.append(value)
            continue
        if identifier in found:
            raise protocol_error(f"{Property(identifier).name} stands twice")
        if isinstance(value, int) and (value < rule.minimum or (rule.maximum is not None and value > rule.maximum)):
            raise BadPacket(rule.offence, f"{Property(identifier).name} may not be {value}")
        found[identifier] = [value] if identifier == _SUBSCRIPTION_ID else value
    return found, pos


def _misplaced(identifier: int, place: Place) -> BadPacket:
    """MQTT 5.0, 2.2.2.2: not valid for the packet type makes it malformed; from the wrong side is another thing."""
    rule = RULES.get(identifier)
    if rule is None:
        return malformed(f"0x{identifier:02X} is no property")
    detail = f"{Property(identifier).name} may not stand in {place.value}"
    return protocol_error(detail) if place in rule.servers else malformed(detail)


_WRITERS: Mapping[ValueKind, Callable[[Any], bytes]] = {
    ValueKind.BYTE: lambda value: bytes((value,)),
    ValueKind.TWO: lambda value: value.to_bytes(2, "big"),
    ValueKind.FOUR: lambda value: value.to_bytes(4, "big"),
    ValueKind.VARINT: varint,
    ValueKind.TEXT: utf8,
    ValueKind.BINARY: binary,
    ValueKind.PAIR: lambda value: utf8(value[0]) + utf8(value[1]),
}
_MARKED: Mapping[int, tuple[bytes, Callable[[Any], bytes]]] = {
    identifier: (bytes((identifier,)), _WRITERS[rule.kind]) for identifier, rule in RULES.items()
}


def write_properties(properties: Properties) -> bytes:
    """`properties` behind their length, in the order given."""
    if not properties:
        return b"\0"
    parts = bytearray()
    for identifier, value in properties.items():
        mark, write = _MARKED[identifier]
        for each in value if identifier in (_USER_PROPERTY, _SUBSCRIPTION_ID) else (value,):
            parts += mark + write(each)
    return varint(len(parts)) + bytes(parts)
