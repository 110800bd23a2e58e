"""The files of hot history: what happens to one while others read it."""

from contextlib import closing
from pathlib import Path

import pytest

from twin.history import files


@pytest.mark.timeout(4)  # less than the driver would wait for the reader
def test_a_day_is_closed_while_somebody_reads_it(tmp_path: Path) -> None:
    day = files.create(tmp_path, "2026-01-01", 1)
    row = (1, 1, 7, 1, b"1", 7, 0, 1, None)
    with closing(files.writer(day)) as connection, files.reader(day.path) as reader:
        connection.execute("INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?)", row)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM rows").fetchall()
        connection.execute("INSERT INTO rows VALUES (?,?,?,?,?,?,?,?,?)", (2, 1, 8, *row[3:]))

        files.close_span(day)

    assert (day.min_created, day.max_created) == (7, 8)
