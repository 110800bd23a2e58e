"""What is remembered of topics: bounded, and of use for more series than fit."""

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from bindings.mqtt import clients, known_topics
from bindings.mqtt.clients import PublicationEncoder
from bindings.mqtt.engines.codec import packets
from bindings.mqtt.known_topics import KnownTopics, ValueTopic
from runtime.ports import Publication
from things.addresses import Kind, TwinID
from things.bounded import Bounded
from things.errors import Forbidden
from things.messages import Operation

MOST = 100
SERIES = 3_000


def topic(number: int) -> str:
    return f"agents/meters/property/meter-{number // 3}/value{number % 3}"


def published(number: int) -> bytes:
    """The body of a PUBLISH of QoS 0."""
    name = topic(number).encode()
    return len(name).to_bytes(2, "big") + name + b"1"


def publication(number: int) -> Publication:
    twin = TwinID.of("meters", f"meter-{number // 3}")
    return Publication(
        twin=twin,
        thing_id=str(twin),
        kind=Kind.PROPERTY,
        name=f"value{number % 3}",
        value=1,
        payload=b"1",
        created=1,
    )


def misses(monkeypatch: pytest.MonkeyPatch, owner: object, slow: str, use: Callable[[int], object]) -> int:
    """How often `slow` is called by ten turns over one series more than fit, after the first."""
    called = 0
    real = getattr(owner, slow)

    def counting(*arguments: object) -> object:
        nonlocal called
        called += 1
        return real(*arguments)

    monkeypatch.setattr(owner, slow, counting)
    for number in range(MOST + 1):
        use(number)
    assert called == MOST + 1
    called = 0
    for _ in range(10):
        for number in range(MOST + 1):
            use(number)
    return called


def test_topics_of_publishes_in_turn_one_more_than_fit_are_seldom_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTopics(MOST)

    assert misses(monkeypatch, known_topics, "parse_topic", lambda each: known.parse("meters", topic(each))) < 2 * MOST


def test_topics_in_turn_one_more_than_fit_are_seldom_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packets, "_topics", Bounded[bytes, str](MOST))

    def decode(number: int) -> None:
        body = published(number)
        packets.decode_publish(0, body, 0, len(body), 4, None, 0)

    assert misses(monkeypatch, packets, "_new_topic", decode) < 2 * MOST


def test_series_in_turn_one_more_than_fit_are_seldom_spelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_TOPICS", MOST)
    encoder = PublicationEncoder()

    def encode(number: int) -> None:
        encoder.encode(publication(number), 0, is_5=False)

    assert misses(monkeypatch, clients, "publication_topic", encode) < 2 * MOST


def test_fifty_thousand_series_are_remembered_in_less_than_two_kibibytes_each() -> None:
    assert min(known_topics.MAX_KNOWN, clients.MAX_TOPICS, packets.MAX_TOPICS) >= 50_000
    gc.collect()
    tracemalloc.start()
    try:
        known, encoder, before = KnownTopics(), PublicationEncoder(), tracemalloc.get_traced_memory()[0]
        for number in range(SERIES):
            body = published(number)
            found, _ = packets.decode_publish(0, body, 0, len(body), 4, None, 0)
            known.parse("meters", found.topic)
            encoder.encode(publication(number), 0, is_5=False)
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert held / SERIES < 2_048


def test_only_topics_of_values_that_may_be_published_to_are_remembered() -> None:
    known = KnownTopics(MOST)
    long = "agents/meters/property/" + "t" * 128 + "/" + "%C3%A9" * 30

    with pytest.raises(Forbidden):
        known.parse("meters", "agents/pumps/property/p/flow")
    known.parse("meters", "agents/meters/td/meter")
    assert known.parse("meters", long) == ValueTopic(
        Operation.PUBLISH_PROPERTY, f"dtw:meters:{'t' * 128}", "t" * 128, "é" * 30
    )

    assert ("meters", "agents/pumps/property/p/flow") not in known
    assert ("meters", "agents/meters/td/meter") not in known
    assert ("meters", long) not in known, "what is remembered is bounded in bytes too"
