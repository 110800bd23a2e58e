"""What one socket's queue keeps, drops and refuses."""

import anyio
import pytest

from bindings.websocket.outbox import WebThingOutbox

pytestmark = pytest.mark.anyio


async def drained(outbox: WebThingOutbox) -> list[bytes]:
    found: list[bytes] = []
    with anyio.move_on_after(0.05):
        while (item := await outbox.next()) is not None:
            found.append(item[0])
            if item[1] is not None:
                item[1]()
    return found


async def test_what_is_owed_goes_in_order_and_is_confirmed_when_taken() -> None:
    outbox = WebThingOutbox(max_owed=3, max_notifications=10, max_bytes=1_000)
    written: list[int] = []
    for number in range(3):
        assert outbox.owe(b"%d" % number, lambda number=number: written.append(number))  # type: ignore[misc]

    assert not outbox.owe(b"3")
    assert not outbox.has_room
    assert await drained(outbox) == [b"0", b"1", b"2"]
    assert written == [0, 1, 2]
    assert outbox.has_room
    assert outbox.owe(b"4")


@pytest.mark.parametrize(("max_notifications", "max_bytes"), [(10, 100_000), (1_000, 100)])
async def test_notifications_over_the_bound_keep_the_newest_and_never_cost_what_is_owed(
    max_notifications: int, max_bytes: int
) -> None:
    outbox = WebThingOutbox(max_owed=3, max_notifications=max_notifications, max_bytes=max_bytes)
    outbox.owe(b"answer")
    for number in range(50):
        outbox.note(b"event %04d" % number)
        outbox.note(b"value %04d" % number, "level")

    left = await drained(outbox)

    assert left[0] == b"answer"
    assert left[-2:] == [b"event 0049", b"value 0049"]
    assert len(left) <= 11
    assert outbox.dropped == 101 - len(left)


async def test_what_is_dropped_is_told_by_kind_but_not_a_value_that_a_newer_one_replaces() -> None:
    told: list[str] = []
    outbox = WebThingOutbox(max_owed=3, max_notifications=10, max_bytes=1_000, given_up=told.append)
    for number in range(11):
        outbox.note(b"value %d" % number, "level", kind="property")
    assert told == []
    for number in range(11):
        outbox.note(b"event %d" % number, kind="event")

    assert set(told) == {"event", "property"}
    assert len(told) == 12 - len(await drained(outbox))


async def test_exactly_the_bound_is_kept_whole() -> None:
    outbox = WebThingOutbox(max_owed=3, max_notifications=10, max_bytes=100)
    for number in range(10):
        outbox.note(b"%010d" % number)

    assert outbox.dropped == 0
    assert len(await drained(outbox)) == 10


async def test_a_closed_outbox_ends_its_writer_and_takes_nothing() -> None:
    outbox = WebThingOutbox(max_owed=3, max_notifications=10, max_bytes=100)
    outbox.owe(b"never written")
    outbox.close()
    outbox.note(b"neither")

    with anyio.fail_after(30):
        assert await outbox.next() is None
    assert not outbox.owe(b"nor this")
