"""Times on the wire and back."""

import pytest

from things.errors import Invalid
from things.lake import TIME_MAX, TIME_MIN
from things.times import parse_time, rfc3339


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01t00:00:00.000001z", 1),
        ("1969-12-31T23:59:59Z", -1_000_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ("2026-03-01T00:00:00.123456789Z", 1_772_323_200_123_456),
        ("0001-01-01T00:00:00Z", TIME_MIN),
        ("9999-12-31T23:59:59.999999Z", TIME_MAX),
    ],
)
def test_time_is_read_to_the_microsecond(text: str, at: int) -> None:
    assert parse_time(text) == at


@pytest.mark.parametrize("at", [0, 1, 1_500_000, -1, 1_772_323_200_123_456, TIME_MIN, TIME_MAX])
def test_time_survives_a_round_trip(at: int) -> None:
    assert parse_time(rfc3339(at)) == at


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2026-01-01", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00", "１", "0000-12-31T23:59:59Z"),
        *("0001-01-01T00:59:59+01:00", "9999-12-31T23:59:59-00:01", "9999-12-31T23:59:60Z"),
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_time(text)
