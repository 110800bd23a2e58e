"""What a run notes of the time, and what the next one makes of it."""

from pathlib import Path

import pytest

from gateway.timekeeping import FILE, Timekeeping
from things.errors import StorageDamaged

T0 = 1_770_000_000_000_000
HOUR = 3_600_000_000
SOON = 60_000_000
"""Longer than a test takes."""


def _run(home: Path, *readings: int, is_awaited: bool) -> tuple[int, int]:
    """A run in which the clock on the wall shows these times, noted at each: its last time, and its steady time."""
    shown = list(readings)
    time = Timekeeping(home, wall=lambda: shown[0])
    time.resume(is_awaited=is_awaited)
    time.note()
    while len(shown) > 1:
        del shown[0]
        time.note()
    return time.now(), time.steady()


@pytest.mark.parametrize("is_awaited", [True, False])
def test_without_a_note_time_is_that_of_the_wall(tmp_path: Path, is_awaited: bool) -> None:
    now, steady = _run(tmp_path, T0, is_awaited=is_awaited)

    assert now == T0
    assert T0 <= steady < T0 + SOON


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(T0,), (T0 + HOUR,)], T0 + HOUR),
        # Set right while it runs: both readings of the next pause are good.
        ([(T0,), (HOUR, T0 + 24 * HOUR), (T0 + 25 * HOUR,)], T0 + HOUR),
        # Set right while it was off: how long that was is not known.
        ([(T0,), (HOUR,), (T0 + 25 * HOUR,)], T0),
        # Set back while it runs.
        ([(T0,), (T0 + HOUR, T0 - HOUR), (T0,)], T0 + HOUR),
        ([(T0,), (HOUR,), (2 * HOUR,), (HOUR,)], T0),
    ],
)
def test_the_steady_clock_goes_on_where_it_was_while_something_waits(
    tmp_path: Path, runs: list[tuple[int, ...]], expected: int
) -> None:
    for readings in runs:
        _, steady = _run(tmp_path, *readings, is_awaited=True)

    assert expected <= steady < expected + SOON


def test_the_steady_clock_starts_at_the_wall_again_when_nothing_waits(tmp_path: Path) -> None:
    for readings in [(T0,), (HOUR, T0 + 24 * HOUR)]:
        _run(tmp_path, *readings, is_awaited=True)

    _, steady = _run(tmp_path, T0 + 25 * HOUR, is_awaited=False)

    assert T0 + 25 * HOUR <= steady < T0 + 25 * HOUR + SOON


def test_a_clock_that_catches_up_is_believed_again(tmp_path: Path) -> None:
    _run(tmp_path, T0, is_awaited=False)
    shown = HOUR
    time = Timekeeping(tmp_path, wall=lambda: shown)

    assert T0 <= time.now() < T0 + SOON
    assert time.problem is not None
    shown = T0 + HOUR
    assert time.now() == T0 + HOUR
    assert time.problem is None


def test_a_clock_that_is_set_back_is_followed_and_said_so(tmp_path: Path) -> None:
    shown = T0
    time = Timekeeping(tmp_path, wall=lambda: shown)
    assert (time.now(), time.behind_us, time.problem) == (T0, 0, None)

    shown = T0 + HOUR
    assert (time.now(), time.behind_us) == (T0 + HOUR, 0)
    shown = T0 + 1
    assert (time.now(), time.behind_us) == (T0 + 1, HOUR - 1)
    assert "set back by 3600 s" in (time.problem or "")
    shown = T0 + HOUR - 1_000
    assert time.problem is None


def test_a_clock_behind_values_that_are_kept_is_said_so(tmp_path: Path) -> None:
    time = Timekeeping(tmp_path, wall=lambda: T0)
    time.stamped(T0 - 1)
    assert time.problem is None

    time.stamped(T0 + HOUR)

    assert time.is_trusted
    assert "set back by 3600 s" in (time.problem or "")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"now": "x", "steady": 1, "trusted": true}'])
def test_a_note_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)

    with pytest.raises(StorageDamaged, match="remove it"):
        Timekeeping(tmp_path)
