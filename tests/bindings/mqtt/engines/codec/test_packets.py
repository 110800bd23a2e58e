"""The codec: every packet a server reads, good and bad, and every packet it writes."""

import contextlib
import itertools
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bindings.mqtt.engines.codec import packets
from bindings.mqtt.engines.codec.encoding import encode_ack, encode_publish
from bindings.mqtt.engines.codec.fields import MAX_VARINT, read_varint, varint
from bindings.mqtt.engines.codec.framing import Framer
from bindings.mqtt.engines.codec.packets import PacketType
from bindings.mqtt.engines.codec.properties import RULES, Place, Property, read_properties, write_properties
from bindings.mqtt.engines.codec.properties import ValueKind as Written
from bindings.mqtt.engines.codec.reasons import BadPacket, Reason
from bindings.mqtt.engines.seam import Publish
from tests.bindings.mqtt.engines.native.peer import ack, connect, packet, props, publish, subscribe, text, unsubscribe

LIMIT = 1 << 20


def decode(data: bytes, level: int) -> object:
    """Frame and decode one packet as a server of `level` would."""
    framer = Framer(LIMIT)
    framer.feed(data)
    frame = framer.take()
    assert frame is not None, "incomplete"
    first, body, start, end = frame
    flags, kind = first & 15, first >> 4
    decoders: dict[int, Callable[[], object]] = {
        PacketType.CONNECT: lambda: packets.decode_connect(body, start, end),
        PacketType.PUBLISH: lambda: packets.decode_publish(flags, body, start, end, level, {}, 10),
        PacketType.SUBSCRIBE: lambda: packets.decode_subscribe(flags, body, start, end, level),
        PacketType.UNSUBSCRIBE: lambda: packets.decode_unsubscribe(flags, body, start, end, level),
        PacketType.PINGREQ: lambda: packets.decode_ping(flags, start, end),
        PacketType.DISCONNECT: lambda: packets.decode_disconnect(flags, body, start, end, level),
        PacketType.AUTH: lambda: packets.decode_auth(flags, body, start, end, level),
    }
    if kind in decoders:
        return decoders[kind]()
    return packets.decode_ack(kind, flags, body, start, end, level)


def connect_flags(flags: int, level: int = 5, name: str = "MQTT", rest: bytes = b"") -> bytes:
    head = text(name) + bytes([level, flags]) + b"\0\x0a" + (b"\0" if level == 5 else b"")
    return packet(0x10, head + text("c") + rest)


def test_a_full_connect_is_read() -> None:
    data = connect(
        "c",
        level=5,
        clean=False,
        keep_alive=600,
        will=("w/t", b"\xff", 2),
        properties=props(b"\x11\0\0\0\x0a", b"\x21\0\x14", b"\x26" + text("k") + text("v")),
        will_properties=props(b"\x18\0\0\0\5", b"\x02\0\0\0\x09"),
    )

    got = decode(data, 5)

    assert got == packets.Connect(
        level=5,
        client_id="c",
        clean_start=False,
        keep_alive_s=600,
        will=Publish(topic="w/t", payload=b"\xff", qos=2, expiry_s=9),
        will_delay_s=5,
        user_name="alice",
        password=b"secret",
        properties={Property.SESSION_EXPIRY: 10, Property.RECEIVE_MAXIMUM: 20, Property.USER_PROPERTY: [("k", "v")]},
    )


ALIAS = b"\x23\0\1"
M, P = Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR
BAD: list[tuple[str, int, bytes, Reason]] = [
    # CONNECT
    ("wrong protocol name", 5, connect_flags(2, name="MQTX"), M),
    ("MQTT 3.1", 4, connect_flags(2, 3, "MQIsdp"), Reason.UNSUPPORTED_PROTOCOL_VERSION),
    ("level 6", 5, connect_flags(2, 6), Reason.UNSUPPORTED_PROTOCOL_VERSION),
    ("reserved connect flag", 5, connect_flags(3), M),
    ("will QoS 3", 5, connect_flags(0x1E, rest=b"\0" + text("w") + text("")), M),
    ("will QoS without will", 5, connect_flags(0x0A), M),
    ("will retain without will", 5, connect_flags(0x22), M),
    ("will topic with wildcard", 5, connect_flags(6, rest=b"\0" + text("w/#") + text("")), Reason.TOPIC_NAME_INVALID),
    ("empty will topic", 4, connect_flags(6, 4, rest=text("") + text("")), Reason.TOPIC_NAME_INVALID),
    ("password without user in 3.1.1", 4, connect_flags(0x42, 4, rest=text("p")), M),
    ("missing user name", 5, connect_flags(0x82), M),
    ("bytes behind CONNECT", 5, connect_flags(2, rest=b"x"), M),
    ("client id not UTF-8", 5, packet(0x10, text("MQTT") + b"\5\2\0\0\0" + text(b"\xff")), M),
    ("client id with U+0000", 5, packet(0x10, text("MQTT") + b"\5\2\0\0\0" + text("a\0")), M),
    ("client id with a surrogate", 5, packet(0x10, text("MQTT") + b"\5\2\0\0\0" + text(b"\xed\xa0\x80")), M),
    ("truncated CONNECT", 5, packet(0x10, text("MQTT") + b"\5\2"), M),
    ("receive maximum 0", 5, connect(level=5, properties=props(b"\x21\0\0")), P),
    ("maximum packet size 0", 5, connect(level=5, properties=props(b"\x27\0\0\0\0")), P),
    ("property twice", 5, connect(level=5, properties=props(b"\x21\0\1", b"\x21\0\1")), P),
    ("property that does not exist", 5, connect(level=5, properties=props(b"\x7f\0")), M),
    ("property of another packet", 5, connect(level=5, properties=props(ALIAS)), M),
    ("property of CONNACK", 5, connect(level=5, properties=props(b"\x12" + text("c"))), M),
    ("server reference of a client", 5, packet(0xE0, b"\0" + props(b"\x1c" + text("s"))), P),
    ("request problem 2", 5, connect(level=5, properties=props(b"\x17\2")), P),
    ("authentication data alone", 5, connect(level=5, properties=props(b"\x16" + text("d"))), P),
    ("property length past the end", 5, packet(0x10, text("MQTT") + b"\5\2\0\0\x7f"), M),
    ("property value past its end", 5, connect(level=5, properties=b"\2\x11\0"), M),
    # PUBLISH
    ("QoS 3", 4, packet(0x36, text("t") + b"\0\1"), M),
    ("duplicate of QoS 0", 4, packet(0x38, text("t")), M),
    ("packet id 0", 4, publish("t", b"", 1, 0), P),
    ("no topic", 4, publish("", b""), P),
    ("no topic and no alias", 5, publish("", b"", level=5), P),
    ("plus in a topic", 4, publish("a/+", b""), Reason.TOPIC_NAME_INVALID),
    ("hash in a topic", 5, publish("a/#", b"", level=5), Reason.TOPIC_NAME_INVALID),
    ("topic with U+0000", 5, publish("a\0", level=5), M),
    ("topic with a surrogate", 4, publish(b"\xed\xbf\xbf"), M),
    ("topic over-long encoded", 4, publish(b"\xc0\xaf"), M),
    ("topic past the end", 4, packet(0x30, b"\0\5abc"), M),
    ("no packet id", 4, packet(0x32, text("t") + b"\0"), M),
    ("empty body", 4, packet(0x30, b""), M),
    ("alias 0", 5, publish("t", b"", level=5, properties=props(b"\x23\0\0")), Reason.TOPIC_ALIAS_INVALID),
    ("alias too large", 5, publish("t", b"", level=5, properties=props(b"\x23\0\x0b")), Reason.TOPIC_ALIAS_INVALID),
    ("alias never given", 5, publish("", b"", level=5, properties=props(ALIAS)), P),
    ("alias twice", 5, publish("t", b"", level=5, properties=props(ALIAS, ALIAS)), P),
    ("subscription id from a client", 5, publish("t", b"", level=5, properties=props(b"\x0b\1")), P),
    ("payload format 2", 5, publish("t", b"", level=5, properties=props(b"\1\2")), P),
    ("response topic with wildcard", 5, publish("t", b"", level=5, properties=props(b"\x08" + text("a/+"))), P),
    ("empty response topic", 5, publish("t", b"", level=5, properties=props(b"\x08" + text(""))), P),
    ("no properties", 5, packet(0x30, text("t")), M),
    ("long property length", 5, packet(0x30, text("t") + b"\x80\0"), M),
    # acknowledgements
    ("PUBACK with flags", 4, ack(0x41, 1), M),
    ("PUBREL without flags", 4, ack(0x60, 1), M),
    ("PUBACK for id 0", 4, ack(0x40, 0), P),
    ("PUBACK too short", 4, packet(0x40, b"\0"), M),
    ("PUBACK too long in 3.1.1", 4, ack(0x40, 1, 0), M),
    ("PUBACK with another's code", 5, ack(0x40, 1, 0x92), P),
    ("PUBREL with another's code", 5, ack(0x62, 1, 0x80), P),
    ("PUBACK with bytes behind", 5, ack(0x40, 1, 0, 0, 0), M),
    # SUBSCRIBE
    ("SUBSCRIBE flags", 4, b"\x80" + subscribe("t")[1:], M),
    ("SUBSCRIBE id 0", 4, subscribe("t", packet_id=0), P),
    ("SUBSCRIBE without filter", 4, subscribe(), P),
    ("empty filter", 4, subscribe(""), M),
    ("subscribe QoS 3", 4, subscribe("t", qos=3), P),
    ("reserved option in 3.1.1", 4, subscribe("t", options=4), M),
    ("reserved option in 5", 5, subscribe("t", options=0x40, level=5), M),
    ("retain handling 3", 5, subscribe("t", options=0x30, level=5), P),
    ("hash not at the end", 4, subscribe("a/#/b"), M),
    ("hash inside a level", 4, subscribe("a/b#"), M),
    ("plus inside a level", 5, subscribe("a+/b", level=5), M),
    ("filter without options", 4, packet(0x82, b"\0\1" + text("t")), M),
    ("subscription id 0", 5, subscribe("t", level=5, properties=props(b"\x0b\0")), P),
    ("subscription id twice", 5, subscribe("t", level=5, properties=props(b"\x0b\1", b"\x0b\2")), P),
    ("no local and shared", 5, subscribe("$share/g/t", options=4, level=5), P),
    ("share without filter", 5, subscribe("$share/g", level=5), P),
    ("share with empty filter", 5, subscribe("$share/g/", level=5), M),
    ("share without group", 5, subscribe("$share//t", level=5), P),
    ("share with wildcard group", 5, subscribe("$share/+/t", level=5), P),
    # UNSUBSCRIBE
    ("UNSUBSCRIBE flags", 4, b"\xa0" + unsubscribe("t")[1:], M),
    ("UNSUBSCRIBE without filter", 4, unsubscribe(), P),
    ("UNSUBSCRIBE empty filter", 5, unsubscribe("", level=5), M),
    ("UNSUBSCRIBE id 0", 5, unsubscribe("t", packet_id=0, level=5), P),
    # PINGREQ, DISCONNECT, AUTH
    ("PINGREQ with a body", 4, b"\xc0\1x", M),
    ("PINGREQ flags", 4, b"\xc1\0", M),
    ("DISCONNECT flags", 4, b"\xe1\0", M),
    ("DISCONNECT body in 3.1.1", 4, b"\xe0\1\0", M),
    ("DISCONNECT with a server's code", 5, b"\xe0\1\x8b", P),
    ("DISCONNECT with bytes behind", 5, b"\xe0\3\0\0x", M),
    ("AUTH in 3.1.1", 4, b"\xf0\0", M),
    ("AUTH without method", 5, b"\xf0\2\x19\0", P),
    ("AUTH of success", 5, packet(0xF0, b"\0" + props(b"\x15" + text("token"))), P),
    ("AUTH without a code", 5, b"\xf0\0", P),
    ("AUTH flags", 5, b"\xf1\0", M),
]


@pytest.mark.parametrize(("name", "level", "data", "reason"), BAD, ids=[each[0] for each in BAD])
def test_a_bad_packet_is_rejected_with_its_reason_code(name: str, level: int, data: bytes, reason: Reason) -> None:
    with pytest.raises(BadPacket) as raised:
        decode(data, level)

    assert raised.value.reason is reason, raised.value.detail


@pytest.mark.parametrize("topic", ["/", "a//b", "$SYS/x", "a b", "\u00e4/\U0001f600", "\ufeffa"])
def test_an_unusual_topic_is_allowed(topic: str) -> None:
    message, _ = packets.decode_publish(0, *framed(publish(topic, b"x")), 4, {}, 0)

    assert (message.topic, message.payload) == (topic, b"x")


@pytest.mark.parametrize("text_", ["#", "+", "/", "a/+/b", "+/+", "a/#", "/#", "$SYS/#", "a//#", "+/b/#"])
def test_a_good_filter_is_allowed(text_: str) -> None:
    got = decode(subscribe(text_, qos=2), 4)

    assert isinstance(got, packets.Subscribe)
    assert got.filters[0][0] == text_


def framed(data: bytes) -> tuple[bytes, int, int]:
    framer = Framer(LIMIT)
    framer.feed(data)
    frame = framer.take()
    assert frame is not None
    return frame[1:]


@pytest.mark.parametrize("data", [b"\x30\x80\x80\x80\x80\1", b"\x30\xff\xff\xff\xff", b"\x30\x80\0"])
def test_a_bad_remaining_length_is_malformed(data: bytes) -> None:
    framer = Framer(LIMIT)
    framer.feed(data)

    with pytest.raises(BadPacket) as raised:
        framer.take()

    assert raised.value.reason is Reason.MALFORMED_PACKET


def test_a_packet_at_the_limit_is_taken_and_one_over_it_is_refused_before_it_arrives() -> None:
    framer = Framer(1_000)
    framer.feed(packet(0x30, bytes(997)))
    assert framer.take() is not None

    framer.feed(packet(0x30, bytes(998))[:3])
    with pytest.raises(BadPacket) as raised:
        framer.take()

    assert raised.value.reason is Reason.PACKET_TOO_LARGE


STREAM = [
    connect(level=5),
    publish("t", bytes(300), 1, 5, level=5),
    b"\xc0\0",
    subscribe("a", "b/#", level=5),
    publish("t", b"", level=5),
    publish("big", bytes(20_000), level=5),
    b"\xe0\0",
]


@settings(deadline=None)
@given(st.lists(st.integers(0, sum(map(len, STREAM))), max_size=20), st.booleans())
def test_a_stream_cut_anywhere_yields_the_same_packets(cuts: list[int], lazily: bool) -> None:
    data = b"".join(STREAM)
    edges = [0, *sorted(cuts), len(data)]
    framer, got = Framer(LIMIT), []

    def take() -> None:
        while (frame := framer.take()) is not None:
            first, body, start, end = frame
            got.append((first, body[start:end]))

    for start, end in itertools.pairwise(edges):
        framer.feed(data[start:end])
        if not lazily:
            take()
    take()

    assert [packet(first, body) for first, body in got] == STREAM
    assert len(framer) == 0


def test_a_stream_byte_by_byte_yields_the_same_packets() -> None:
    framer, got = Framer(LIMIT), []
    for byte in b"".join(STREAM):
        framer.feed(bytes([byte]))
        if (frame := framer.take()) is not None:
            got.append(packet(frame[0], frame[1][frame[2] : frame[3]]))

    assert got == STREAM


GOOD = [data for data in STREAM if data[0] >> 4 != 2] + [
    connect("c", level=4, will=("w", b"x", 1)),
    connect("c", level=5, will=("w", b"x", 1), properties=props(b"\x11\0\0\0\1", b"\x15" + text("m"))),
    publish("t", b"x", 1, level=5, properties=props(ALIAS, b"\x26" + text("a") + text("b"), b"\x09" + text("c"))),
    ack(0x40, 1, 0x10),
    ack(0x62, 1),
    unsubscribe("a", "b", level=5),
    packet(0xE0, b"\4" + props(b"\x1f" + text("why"))),
    packet(0xF0, b"\x19" + props(b"\x15" + text("token"), b"\x16" + text("d"))),
]


@settings(deadline=None)
@given(st.sampled_from(GOOD), st.lists(st.tuples(st.integers(1, 200), st.integers(0, 255)), max_size=4), st.data())
def test_a_mutated_packet_is_read_or_rejected_and_nothing_else(
    good: bytes, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    framer = Framer(LIMIT)
    framer.feed(good)
    frame = framer.take()
    assert frame is not None
    body = bytearray(frame[1][frame[2] : frame[3]])
    for at, value in changes:
        if body:
            body[at % len(body)] = value
    body = body[: data.draw(st.integers(0, len(body)))]
    first = good[0] ^ (data.draw(st.integers(0, 15)) if data.draw(st.booleans()) else 0)

    for level in (4, 5):
        with contextlib.suppress(BadPacket):
            decode(packet(first, bytes(body)), level)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_framed_or_rejected(data: bytes) -> None:
    framer = Framer(100)
    try:
        for byte in data:
            framer.feed(bytes([byte]))
            while framer.take() is not None:
                pass
    except BadPacket:
        pass
    assert len(framer) <= 200


@settings(deadline=None)
@given(st.integers(0, MAX_VARINT))
def test_a_variable_byte_integer_round_trips(value: int) -> None:
    data = varint(value)

    assert read_varint(data, 0, len(data)) == (value, len(data))


def test_a_variable_byte_integer_over_its_range_is_not_written() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        varint(MAX_VARINT + 1)


TEXT = st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)
VALUES = {
    Written.BYTE: st.integers(0, 1),
    Written.TWO: st.integers(1, 0xFFFF),
    Written.FOUR: st.integers(1, 0xFFFF_FFFF),
    Written.VARINT: st.lists(st.integers(1, MAX_VARINT), min_size=1, max_size=1),
    Written.TEXT: TEXT,
    Written.BINARY: st.binary(max_size=20),
    Written.PAIR: st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3),
}


@settings(deadline=None)
@given(st.data(), st.sampled_from(list(Place)))
def test_properties_round_trip_where_they_may_stand(data: st.DataObject, place: Place) -> None:
    allowed = [each for each, rule in RULES.items() if place in rule.places]
    chosen = data.draw(st.lists(st.sampled_from(allowed), unique=True, max_size=6))
    properties = {each: data.draw(VALUES[RULES[each].kind]) for each in chosen}

    raw = write_properties(properties)

    assert read_properties(raw, 0, len(raw), place) == (properties, len(raw))


@settings(deadline=None)
@given(
    st.builds(
        Publish, topic=st.just("a/b"), payload=st.binary(max_size=300), qos=st.integers(0, 2), retain=st.booleans()
    )
)
@pytest.mark.parametrize("level", [4, 5])
def test_an_encoded_publish_reads_back(level: int, message: Publish) -> None:
    encoded = encode_publish(message, level, qos=message.qos)
    data = encoded.head + (struct.pack("!H", 77) + encoded.tail if message.qos else b"")

    got, packet_id = packets.decode_publish(data[0] & 15, *framed(data), level, {}, 0)

    assert got == message
    assert packet_id == (77 if message.qos else 0)
    assert encoded.size == len(data)


def test_acknowledgements_are_written_as_short_as_they_may_be() -> None:
    assert encode_ack(PacketType.PUBACK, 1, 4, 0x87) == b"\x40\2\0\1"
    assert encode_ack(PacketType.PUBACK, 1, 5) == b"\x40\2\0\1"
    assert encode_ack(PacketType.PUBREL, 258, 5, 0x92) == b"\x62\3\1\2\x92"
    assert encode_ack(PacketType.PUBREC, 1, 5, 0x87, {Property.REASON_STRING: "no"}) == b"\x50\x09\0\1\x87\5\x1f\0\2no"
