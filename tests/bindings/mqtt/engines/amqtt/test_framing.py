"""Cutting and checking packets: however the bytes arrive, and whatever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.mqtt.engines.amqtt.framing import check, read_connect, refusal, whole
from bindings.mqtt.engines.codec.framing import Frame, Framer
from bindings.mqtt.engines.codec.reasons import BadPacket
from tests.bindings.mqtt import wire
from things.identity import ShownCertificate

PACKETS = [
    wire.publish("a/b", b"payload", qos=1),
    wire.publish("ü", b""),
    wire.subscribe(7, ("a/#", 1), ("b", 0)),
    wire.unsubscribe(8, "a/#"),
    wire.puback(9),
    wire.pubrel(10),
    wire.publish("big", b"." * 20_000),
    wire.PINGREQ_BYTES,
    wire.DISCONNECT_BYTES,
]

SHOWN = ShownCertificate(name="cn", serial="1f", not_before=0, not_after=1)


def frame(packet: bytes) -> Frame:
    """A whole packet, cut from a stream."""
    framing = Framer(100_000)
    framing.feed(packet)
    cut = framing.take()
    assert cut is not None
    return cut


@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=60))
def test_packets_come_out_whole_however_the_stream_is_split(sizes: list[int]) -> None:
    stream, framing, found = b"".join(PACKETS), Framer(100_000), []
    while stream:
        for size in sizes:
            framing.feed(stream[:size])
            stream = stream[size:]
            while (packet := framing.take()) is not None:
                check(packet)
                found.append(whole(packet))

    assert found == PACKETS


@given(st.binary(max_size=200))
def test_any_bytes_are_cut_and_checked_or_refused(data: bytes) -> None:
    framing = Framer(100)
    framing.feed(data)
    try:
        while (packet := framing.take()) is not None:
            check(packet)
    except BadPacket:
        return


@given(st.sampled_from(PACKETS[:6]), st.data())
def test_a_changed_byte_never_lets_a_length_run_over_the_packet(packet: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(packet) - 1))
    changed = packet[:at] + bytes([data.draw(st.integers(0, 255))]) + packet[at + 1 :]
    framing = Framer(100_000)
    framing.feed(changed)
    try:
        cut = framing.take()
        if cut is not None:
            check(cut)
    except BadPacket:
        return


@given(st.binary(max_size=120))
def test_any_first_packet_is_a_connect_or_refused(body: bytes) -> None:
    try:
        hello, _ = read_connect(frame(wire.packet(0x10, body)), source=None, certificate=None)
    except BadPacket:
        return
    assert hello.protocol_level == 4


def test_a_connect_says_all_the_gate_needs() -> None:
    packet = wire.connect("id", "ann", "se:cret", clean=False, keep_alive=7, will=("w/t", b"\x00\xff", 2))

    hello, keep_alive_s = read_connect(frame(packet), source="10.0.0.1", certificate=SHOWN)

    assert (hello.client_id, hello.user_name, hello.password) == ("id", "ann", b"se:cret")
    assert (hello.clean_start, hello.source, hello.certificate_name, keep_alive_s) == (False, "10.0.0.1", "cn", 7)
    assert hello.will is not None
    assert (hello.will.topic, hello.will.payload, hello.will.qos) == ("w/t", b"\x00\xff", 2)


CONNECTS = [
    ("password without user name", b"\x00\x04MQTT\x04\x42\x00\x3c\x00\x01c\x00\x01p"),
    ("reserved flag", b"\x00\x04MQTT\x04\x03\x00\x3c\x00\x01c"),
    ("will QoS without will", b"\x00\x04MQTT\x04\x0a\x00\x3c\x00\x01c"),
    ("will retain without will", b"\x00\x04MQTT\x04\x22\x00\x3c\x00\x01c"),
    ("will QoS 3", b"\x00\x04MQTT\x04\x1e\x00\x3c\x00\x01c\x00\x01t\x00\x00"),
    ("will with a wildcard", b"\x00\x04MQTT\x04\x06\x00\x3c\x00\x01c\x00\x01#\x00\x00"),
    ("bytes behind", b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x01c!"),
    ("cut short", b"\x00\x04MQTT\x04\x02\x00"),
    ("client id over its end", b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x09c"),
    ("U+0000 in the client id", b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x01\x00"),
    ("surrogate in the client id", b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x03\xed\xa0\x80"),
    ("nothing", b""),
]


@pytest.mark.parametrize("body", [body for _, body in CONNECTS], ids=[name for name, _ in CONNECTS])
def test_a_contradicting_connect_is_refused(body: bytes) -> None:
    with pytest.raises(BadPacket):
        read_connect(frame(wire.packet(0x10, body)), source=None, certificate=None)


REFUSED = [
    ("MQTT 5", b"\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x01c", b"\x20\x03\x00\x84\x00"),
    ("3.1", b"\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x01c", b"\x20\x02\x00\x01"),
    ("a level to come", b"\x00\x04MQTT\x06\x02\x00\x3c\x00\x01c", b"\x20\x02\x00\x01"),
    ("another protocol", b"\x00\x04AMQP\x04\x02\x00\x3c\x00\x01c", b""),
    ("a session without a client id", b"\x00\x04MQTT\x04\x00\x00\x3c\x00\x00", b"\x20\x02\x00\x02"),
]


@pytest.mark.parametrize(("body", "answer"), [each[1:] for each in REFUSED], ids=[name for name, *_ in REFUSED])
def test_a_client_is_refused_in_the_words_of_its_version(body: bytes, answer: bytes) -> None:
    with pytest.raises(BadPacket) as bad:
        read_connect(frame(wire.packet(0x10, body)), source=None, certificate=None)

    assert refusal(bad.value) == answer
