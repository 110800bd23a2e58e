"""What the outgoing queue of one client keeps and gives up at its bound."""

import pytest

from bindings.mqtt.engines.outbox import OVERHEAD_BYTES, Outbox
from bindings.mqtt.engines.seam import Flow, Publish


def message(topic: str, payload: bytes = b"", flow: Flow = Flow.EVENT) -> Publish:
    return Publish(topic=topic, payload=payload, flow=flow)


def drained(box: Outbox) -> list[tuple[str, bytes]]:
    taken = []
    while box:
        entry = box.take()
        taken.append((entry.message.topic, entry.message.payload))
    return taken


def test_deliveries_leave_in_the_order_they_were_offered() -> None:
    box = Outbox(10, 10_000)

    for number in range(5):
        assert box.offer(message(f"e/{number}"))

    assert [topic for topic, _ in drained(box)] == [f"e/{number}" for number in range(5)]
    assert box.size == 0


def test_the_oldest_event_is_dropped_and_counted_when_the_queue_is_full() -> None:
    box = Outbox(3, 10_000)

    for number in range(5):
        assert box.offer(message(f"e/{number}"))

    assert box.dropped == 2
    assert [topic for topic, _ in drained(box)] == ["e/2", "e/3", "e/4"]


def test_a_waiting_property_is_replaced_by_the_newer_value_of_its_topic() -> None:
    box = Outbox(3, 10_000)

    for number in range(50):
        assert box.offer(message("p/a", b"%d" % number, Flow.PROPERTY))
        assert box.offer(message("p/b", b"%d" % number, Flow.PROPERTY))

    assert box.coalesced == 98
    assert box.dropped == 0
    assert drained(box) == [("p/a", b"49"), ("p/b", b"49")]


def test_more_property_topics_than_the_bound_drop_the_oldest_topic() -> None:
    box = Outbox(2, 10_000)

    for topic in "abc":
        assert box.offer(message(topic, flow=Flow.PROPERTY))

    assert box.dropped == 1
    assert [topic for topic, _ in drained(box)] == ["b", "c"]


def test_ledger_deliveries_push_out_events_and_are_refused_once_only_they_remain() -> None:
    box = Outbox(2, 10_000)
    box.offer(message("e/1"))
    box.offer(message("e/2"))

    assert box.offer(message("r/1", flow=Flow.LEDGER))
    assert box.offer(message("r/2", flow=Flow.LEDGER))
    assert not box.offer(message("r/3", flow=Flow.LEDGER))

    assert box.dropped == 2
    assert [topic for topic, _ in drained(box)] == ["r/1", "r/2"]


def test_an_event_is_not_taken_when_only_ledger_deliveries_wait() -> None:
    box = Outbox(1, 10_000)
    box.offer(message("r/1", flow=Flow.LEDGER))

    assert not box.offer(message("e/1"))
    assert not box.offer(message("p/1", flow=Flow.PROPERTY))

    assert box.dropped == 2
    assert [topic for topic, _ in drained(box)] == ["r/1"]


@pytest.mark.parametrize("flow", list(Flow))
def test_bytes_bound_the_queue_as_well_as_the_count(flow: Flow) -> None:
    limit = 10 * (OVERHEAD_BYTES + 100 + 1)
    box = Outbox(1_000, limit)

    for number in range(50):
        box.offer(message(chr(ord("A") + number), bytes(100), flow))

    assert len(box) == 10
    assert box.size == limit
    assert not box.offer(message("b", bytes(limit), flow))


def test_clearing_leaves_nothing() -> None:
    box = Outbox(10, 10_000)
    for flow in Flow:
        box.offer(message("t", b"x", flow))

    box.clear()

    assert len(box) == 0
    assert box.size == 0
    assert box.offer(message("t", b"x", Flow.PROPERTY))
