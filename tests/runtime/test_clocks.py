"""Ids that sort by creation."""

import uuid

from runtime.clocks import IDs, SteadyClock, wall_clock


def test_ids_are_uuid7_and_rise_strictly() -> None:
    new_id = IDs()
    ids = [new_id() for _ in range(10_000)]

    assert ids == sorted(set(ids))
    assert {(uuid.UUID(text).version, uuid.UUID(text).variant) for text in ids} == {(7, uuid.RFC_4122)}


def test_an_id_carries_the_time_it_was_made() -> None:
    before = wall_clock() // 1_000
    made = uuid.UUID(IDs()()).int >> 80

    assert before <= made <= wall_clock() // 1_000 + 1


def test_the_steady_clock_starts_at_wall_time_and_moves_forward() -> None:
    steady = SteadyClock()

    first = steady()
    assert abs(first - wall_clock()) < 1_000_000
    assert steady() >= first
