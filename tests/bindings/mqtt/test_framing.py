"""Cutting and checking packets: however the bytes arrive, and whatever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bindings.mqtt.framing import Framing, FramingError, check, read_connect
from tests.bindings.mqtt import wire

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


@given(st.lists(st.integers(1, 4_000), min_size=1, max_size=60))
def test_packets_come_out_whole_however_the_stream_is_split(sizes: list[int]) -> None:
    stream, framing, found = b"".join(PACKETS), Framing(100_000), []
    while stream:
        for size in sizes:
            framing.feed(stream[:size])
            stream = stream[size:]
            while (packet := framing.next()) is not None:
                check(packet)
                found.append(packet)

    assert found == PACKETS


@given(st.binary(max_size=200))
def test_any_bytes_are_cut_and_checked_or_refused(data: bytes) -> None:
    framing = Framing(100)
    framing.feed(data)
    try:
        while (packet := framing.next()) is not None:
            check(packet)
    except FramingError:
        return


@given(st.sampled_from(PACKETS[:6]), st.data())
def test_a_changed_byte_never_lets_a_length_run_over_the_packet(packet: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(packet) - 1))
    changed = packet[:at] + bytes([data.draw(st.integers(0, 255))]) + packet[at + 1 :]
    framing = Framing(100_000)
    framing.feed(changed)
    try:
        cut = framing.next()
        if cut is not None:
            check(cut)
    except FramingError:
        return


@given(st.binary(max_size=120))
def test_any_first_packet_is_a_connect_or_refused(body: bytes) -> None:
    try:
        hello, _ = read_connect(wire.packet(0x10, body), source=None, certificate_name=None)
    except FramingError:
        return
    assert hello.protocol_level == 4


def test_a_connect_says_all_the_gate_needs() -> None:
    packet = wire.connect("id", "ann", "se:cret", clean=False, keep_alive=7, will=("w/t", b"\x00\xff", 2))

    hello, keep_alive_s = read_connect(packet, source="10.0.0.1", certificate_name="cn")

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
    with pytest.raises(FramingError):
        read_connect(wire.packet(0x10, body), source=None, certificate_name=None)
