"""Cells of exported readings, which spreadsheets and terminals take for text."""

import json

import pytest

from things.csv_rows import csv_row


@pytest.mark.parametrize("value", ['=HYPERLINK("x")', "\x1b[31m", "+1", "@x", [1, "="], None, -5])
def test_a_value_is_its_json_text(value: object) -> None:
    (cell,) = csv_row({"value": value}, ("value",))

    assert json.loads(cell) == value
    assert not any(ord(character) < 32 for character in cell)
    assert not cell.startswith(("=", "+", "@"))


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@sum"])
def test_a_name_that_begins_like_a_formula_becomes_text(name: str) -> None:
    assert csv_row({"name": name, "kind": "event"}, ("kind", "name")) == ["event", f"'{name}"]


def test_other_cells_stay_as_they_are() -> None:
    assert csv_row({"rowID": 7, "thingID": "dtw:a:b", "sourceTime": None}, ("rowID", "thingID", "sourceTime")) == [
        7,
        "dtw:a:b",
        None,
    ]
