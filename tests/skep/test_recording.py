"""Recordings: what is found in a CSV file by looking at it, and which rows are not guessed at."""

from pathlib import Path

import pytest

from skep.recording import Recorded, Recording, Unreadable, time_of
from things.errors import Invalid, Malformed, NotFound
from things.td import ThingDescription

NEW_YEAR = 1_767_225_600_000_000


def recording(folder: Path, text: str, *, time_column: str | None = None) -> Recording:
    path = folder / "r.csv"
    path.write_bytes(text.encode())
    return Recording.open(path, time_column=time_column)


@pytest.mark.parametrize(
    ("cell", "at"),
    [
        ("2026-01-01T00:00:00Z", NEW_YEAR),
        ("2026-01-01 00:00:00", NEW_YEAR),
        ("2026-01-01", NEW_YEAR),
        ("2026/01/01 00:00", NEW_YEAR),
        ("01.01.2026 00:00", NEW_YEAR),
        ("2026-01-01T01:00:00+01:00", NEW_YEAR),
        ("2025-12-31T23:59:60Z", NEW_YEAR),
        ("2025-12-31 23:59:60.5", NEW_YEAR + 500_000),
        ("2026-01-01T00:59:60+01:00", NEW_YEAR),
        ("1767225600", NEW_YEAR),
        ("1767225600.5", NEW_YEAR + 500_000),
        ("1767225600000", NEW_YEAR),
        ("", None),
        ("12.5", None),
        ("yesterday", None),
        ("2026-13-01", None),
        ("2026-13-01T23:59:60Z", None),
        ("123456", None),
    ],
)
def test_times_are_read_in_their_common_forms(cell: str, at: int | None) -> None:
    assert time_of(cell) == at


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_header_time_and_types_are_found(tmp_path: Path, delimiter: str) -> None:
    rows = [
        ["room temperature", "when", "count", "open", "state"],
        ["19.5", "2026-01-01T00:00:00Z", "1", "true", "ok"],
        ["20", "2026-01-01T00:05:00Z", "2", "false", "ok"],
        ["", "2026-01-01T00:10:00Z", "3", "true", "bad"],
    ]

    found = recording(tmp_path, "\n".join(delimiter.join(row) for row in rows) + "\n")

    assert [(column.name, column.type) for column in found.columns] == [
        ("room temperature", "number"),
        ("count", "integer"),
        ("open", "boolean"),
        ("state", "string"),
    ]
    assert found.interval_s == 300
    assert list(found.rows())[2] == Recorded(
        line=4, at=NEW_YEAR + 600_000_000, values={"count": 3, "open": True, "state": "bad"}
    )


def test_file_without_header_gets_numbered_columns(tmp_path: Path) -> None:
    found = recording(tmp_path, "2026-01-01,1.5\n2026-01-02,2.5\n")

    assert [column.name for column in found.columns] == ["column2"]
    assert len(list(found.rows())) == 2


def test_rows_that_do_not_fit_are_told_with_line_and_reason(tmp_path: Path) -> None:
    readable = "".join(f"2026-01-01T00:{minute:02}:00Z,{minute}.5\n" for minute in range(20))
    found = recording(tmp_path, "time,value\n" + readable + "soon,1\n2026-01-02,much\n2026-01-03,\n\n2026-01-04,4.5\n")

    rows = list(found.rows())

    assert [row for row in rows if isinstance(row, Unreadable)] == [
        Unreadable(line=22, reason="'soon' is not a time"),
        Unreadable(line=23, reason="value: 'much' is not a number"),
        Unreadable(line=24, reason="no value"),
    ]
    assert isinstance(rows[-1], Recorded)
    assert rows[-1].line == 26


def test_byte_order_mark_and_repeated_names_are_no_trouble(tmp_path: Path) -> None:
    found = recording(tmp_path, "\ufefftime,a,a\n2026-01-01,1,2\n")

    assert [column.name for column in found.columns] == ["a", "a-3"]


def test_description_of_a_recording_is_valid_and_carries_units(tmp_path: Path) -> None:
    found = recording(tmp_path, "time,a\n2026-01-01T00:00:00Z,1.5\n2026-01-01T01:00:00Z,2\n")

    td = ThingDescription.parse(found.td("Hall", {"a": "degC"}), agent=True)

    assert td.title == "Hall"
    assert td.document["properties"]["a"]["unit"] == "degC"
    assert td.document["properties"]["a"]["skep:interval"] == "PT1H"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", Malformed),
        ("time,a\n", Malformed),
        ("a,b\n1,2\n3,4\n", Invalid),
        ("time\n2026-01-01\n", Invalid),
    ],
)
def test_files_that_are_no_recording_are_refused(tmp_path: Path, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        recording(tmp_path, text)


def test_missing_file_and_missing_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Recording.open(tmp_path / "none.csv")
    with pytest.raises(Invalid, match="it has time, a"):
        recording(tmp_path, "time,a\n2026-01-01,1\n", time_column="when")
