"""What groups of commits learn: to wait where others come, and not where nobody does."""

from collections.abc import Iterator
from random import Random

from twin.gathering import FEW, MANY, RAREST_PROBE, Gathering

WAIT_S = 0.012
COMMIT_S = 0.003


def groups(gathering: Gathering, arrivals: Iterator[float], count: int) -> list[tuple[int, float]]:
    """The sizes of so many groups of jobs that come at these times, and how long the first job of each waited."""
    found = []
    at = next(arrivals)
    free_at = 0.0
    for _ in range(count):
        began, size = at, 1
        wait_s = gathering.begin()
        until = began + wait_s
        at = next(arrivals)
        while at <= until and size < gathering.enough:
            size, until = size + 1, (at if size + 1 >= gathering.enough else until)
            at = next(arrivals)
        gathering.handed_over(size)
        # What was handed over while a commit ran shares the next one; counted together as the thread does.
        gathering.committed(size if until >= free_at else size + 1)
        free_at = max(until, free_at) + COMMIT_S
        found.append((size, until - began))
    return found


def every(seconds: float) -> Iterator[float]:
    at = 0.0
    while True:
        at += seconds
        yield at


def at_random(per_second: float) -> Iterator[float]:
    rng, at = Random(1), 0.0
    while True:
        at += rng.expovariate(per_second)
        yield at


def test_who_waits_for_each_acknowledgement_alone_is_hardly_ever_made_to_wait() -> None:
    gathering = Gathering(WAIT_S)

    waits = []
    for _ in range(2_000):
        waits.append(gathering.begin())
        gathering.handed_over(1)
        gathering.committed(1)

    assert sum(map(bool, waits[RAREST_PROBE:])) <= 2_000 / RAREST_PROBE
    assert sum(map(bool, waits)) < 20


def test_readings_at_a_middle_rate_share_their_commits() -> None:
    found = groups(Gathering(WAIT_S), at_random(1_000), 1_000)[100:]

    assert sum(size for size, _ in found) / len(found) > 8
    assert max(waited for _, waited in found) < WAIT_S + 1e-9


def test_a_slow_rate_shares_some() -> None:
    found = groups(Gathering(WAIT_S), at_random(100), 3_000)

    assert sum(size for size, _ in found) / len(found) > 1.4


def test_clients_that_each_wait_for_their_acknowledgement_are_complete_at_once() -> None:
    gathering, waits = Gathering(WAIT_S), 0

    for _ in range(1_000):
        wait_s = gathering.begin()
        # Ten come, if they are waited for, and no eleventh.
        size = min(10, gathering.enough) if wait_s else 1
        waits += bool(wait_s) and size < gathering.enough
        gathering.handed_over(size)
        gathering.committed(10)

    assert gathering.enough in (10, MANY)
    assert waits < 1_000 / 50


def test_groups_that_grow_by_themselves_wait_for_nothing_until_they_no_longer_do() -> None:
    gathering = Gathering(WAIT_S)
    for _ in range(10):
        gathering.begin()
        gathering.handed_over(MANY)
        gathering.committed(MANY)
    assert gathering.begin() == 0.0

    gathering.committed(FEW - 1)

    assert gathering.begin() == WAIT_S


def test_without_a_wait_nothing_ever_waits() -> None:
    gathering = Gathering(0.0)
    for _ in range(100):
        assert gathering.begin() == 0.0
        gathering.handed_over(5)
        gathering.committed(5)
