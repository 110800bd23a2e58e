"""Which of two values is the latest, by what their source and the runtime's clock say."""

import pytest

from things.lateness import TRUST_WINDOW_US, is_late

T0 = 1_770_000_000_000_000
S = 1_000_000
HOUR = 3_600 * S


@pytest.mark.parametrize(
    ("value", "standing", "expected"),
    [
        # (created, received) in µs after T0.
        pytest.param((2, 3), (1, 2), False, id="created later"),
        pytest.param((1, 3), (1, 2), False, id="created at the same time: arrival decides"),
        pytest.param((1 * S, 4 * S), (2 * S, 3 * S), True, id="two stated times: the older one came late"),
        pytest.param((-HOUR, 4 * S), (2 * S, 3 * S), True, id="an hour late"),
        pytest.param((-HOUR, 4 * S), (3 * S, 3 * S), True, id="an hour late, beside the runtime's own time"),
        pytest.param((4 * S, 4 * S), (60 * S, 3 * S), False, id="no time of its own, beside a source that is ahead"),
        pytest.param((2 * S, 4 * S), (3 * S, 3 * S), False, id="near its arrival, beside the runtime's own time"),
        pytest.param((3 * S, 4 * S), (60 * S, 3 * S), False, id="a source whose clock was ahead and was set right"),
        pytest.param((59 * S, 4 * S), (60 * S, 3 * S), True, id="a source that is ahead, out of order"),
        pytest.param((4 * S, 4 * S), (HOUR, HOUR), False, id="clock set back, no times stated"),
        pytest.param((4 * S, 5 * S), (HOUR, HOUR + S), False, id="clock set back, with the source's"),
        pytest.param((-HOUR, 5 * S), (0, HOUR), False, id="clock set back, a source that is always an hour behind"),
        pytest.param((-HOUR, 5 * S), (HOUR, HOUR), True, id="clock set back, and an hour late"),
        pytest.param((4 * S, 5 * S), (400 * 24 * HOUR, 400 * 24 * HOUR), False, id="clock set back by a year"),
        pytest.param((1, 5), (3, 6), True, id="two that overtook each other inside the runtime"),
        pytest.param((-TRUST_WINDOW_US, 4), (3, 3), True, id="just outside the window"),
        pytest.param((4 - TRUST_WINDOW_US, 4), (3, 3), False, id="just inside the window"),
    ],
)
def test_only_a_stated_time_makes_a_value_late(
    value: tuple[int, int], standing: tuple[int, int], expected: bool
) -> None:
    assert is_late(T0 + value[0], T0 + value[1], T0 + standing[0], T0 + standing[1]) is expected
