"""Durations in TDs and windows."""

import pytest

from things.durations import iso_seconds, iso_text, td_seconds, window_seconds
from things.errors import Invalid


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0),
        ("PT30S", 30),
        ("PT5M", 300),
        ("PT1H30M", 5400),
        ("P1D", 86_400),
        ("P1DT12H", 129_600),
        ("P2W", 1_209_600),
        ("PT0.5S", 0.5),
        ("PT0,5S", 0.5),
    ],
)
def test_iso_duration_of_fixed_length_is_read(text: str, seconds: float) -> None:
    assert iso_seconds(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "P",
        "PT",
        "P1DT",
        "P1Y",
        "P1M",
        "5m",
        "PT5",
        "-PT5M",
        "PT5M ",
        "pt5m",
        "P1W1D",
        "PT٣S",
        "P9999W9D",
        "P9999999D",
    ],
)
def test_other_text_is_no_iso_duration(text: str) -> None:
    with pytest.raises(Invalid):
        iso_seconds(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("30s", 30), ("5m", 300), ("1.5h", 5400), ("7d", 604_800), ("2w", 1_209_600)]
)
def test_window_is_read(text: str, seconds: float) -> None:
    assert window_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "m", "0s", "-5m", "5M", "5 m", "5m5s", "99999999w"])
def test_other_text_is_no_window(text: str) -> None:
    with pytest.raises(Invalid):
        window_seconds(text)


@pytest.mark.parametrize(("value", "seconds"), [(0, 0), (2.5, 2.5), ("PT1M", 60)])
def test_td_duration_is_iso_text_or_seconds(value: object, seconds: float) -> None:
    assert td_seconds(value) == seconds


@pytest.mark.parametrize("value", [None, True, -1, [], "60", 1e12, float("inf"), float("nan")])
def test_other_values_are_no_td_duration(value: object) -> None:
    with pytest.raises(Invalid):
        td_seconds(value)


@pytest.mark.parametrize("text", ["PT0S", "PT0.25S", "PT5M", "P1D", "P1DT1H1M1.5S"])
def test_iso_text_writes_what_was_read(text: str) -> None:
    assert iso_text(iso_seconds(text)) == text
