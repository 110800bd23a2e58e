"""Pages of readings: the first rows of any order, whatever order they come in, and values as they were stored."""

import random
from typing import Any

import pyarrow as pa
import pytest

from things.lake import READINGS_COLUMNS
from twin.lake import pages
from twin.lake.tables import arrow_schema


def batches(count: int, size: int) -> list[pa.RecordBatch]:
    """Rows with mixed-up times, two at each."""
    times = [number // 2 for number in range(count)]
    random.Random(3).shuffle(times)
    rows = [
        {
            "row_id": row_id,
            "thing_id": "dtw:agent1:lamp",
            "name": "n",
            "kind": "event",
            "created": time,
            "received": time,
            "value_double": row_id / 2,
            "quality": 0,
            "td_version": 1,
        }
        for row_id, time in enumerate(times, 1)
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(READINGS_COLUMNS))
    return list(table.select(list(pages.COLUMNS)).to_batches(max_chunksize=size))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("order", [("created", "row_id"), ("row_id",)])
def test_a_page_holds_the_first_rows_and_few_beyond(
    monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...], descending: bool
) -> None:
    monkeypatch.setattr(pages, "SPARE_ROWS", 20)
    given = batches(500, 7)

    page = pages.first_rows(given, order, 30, descending=descending)

    every = [(row[4], row[0]) if len(order) == 2 else row[0] for row in pages.rows_of(pa.Table.from_batches(given))]
    found = [(row[4], row[0]) if len(order) == 2 else row[0] for row in pages.rows_of(page)]
    assert found == sorted(every, reverse=descending)[:30]


def test_no_row_is_an_empty_page() -> None:
    assert pages.rows_of(pages.first_rows([], ("row_id",), 5, descending=False)) == []


@pytest.mark.parametrize(
    ("spread", "quality", "text"),
    [
        ((21.5, None, None, None, None), 0, "21.5"),
        ((7.0, 7, None, None, None), 0, "7"),
        ((None, None, False, None, None), 0, "false"),
        ((None, None, None, 'a "b"', None), 0, '"a \\"b\\""'),
        ((None, None, None, None, '{"x":1}'), 0, '{"x":1}'),
        ((1.2e21, None, None, "1180591620717411303424", None), 512, "1180591620717411303424"),
        ((None, None, None, None, None), 0, "null"),
    ],
)
def test_a_value_is_told_as_it_was_stored(spread: Any, quality: int, text: str) -> None:
    assert pages.json_text(*(*spread, quality)) == text
