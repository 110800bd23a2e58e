"""What was asked for by pattern, found by series."""

import pytest

from runtime.ports import ByPattern, Pattern
from things.addresses import Kind, TwinID

ASKED = ByPattern(
    [
        (Pattern(), "all"),
        (Pattern("mill"), "mill"),
        (Pattern("mill", "pump"), "pump"),
        (Pattern("mill", "pump"), "pump again"),
        (Pattern(None, "pump", Kind.EVENT), "events of pumps"),
        (Pattern("mill", "pump", Kind.EVENT, "alarm"), "alarm"),
        (Pattern(None, None, Kind.PROPERTY, "flow"), "flow"),
    ]
)


@pytest.mark.parametrize(
    ("series", "found"),
    [
        (("mill", "pump", "event", "alarm"), {"all", "mill", "pump", "pump again", "events of pumps", "alarm"}),
        (("mill", "pump", "property", "flow"), {"all", "mill", "pump", "pump again", "flow"}),
        (("mill", "fan", Kind.EVENT, "alarm"), {"all", "mill"}),
        (("port", "pump", Kind.EVENT, "stall"), {"all", "events of pumps"}),
    ],
)
def test_a_series_finds_every_pattern_that_matches_it(series: tuple[str, str, str, str], found: set[str]) -> None:
    agent, thing, kind, name = series

    assert sorted(ASKED.matching(TwinID.parse(f"dtw:{agent}:{thing}"), kind, name)) == sorted(found)


def test_nothing_is_found_where_nothing_was_asked_for() -> None:
    assert not ByPattern([]).matching(TwinID.parse("dtw:mill:pump"), "event", "alarm")
    assert not ByPattern([(Pattern("port"), 1)]).matching(TwinID.parse("dtw:mill:pump"), "event", "alarm")
