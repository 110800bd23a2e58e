"""Readings as rows of CSV that no spreadsheet takes for a formula and no terminal for a command.

Values are JSON texts, so that nothing is lost: a text begins with a quotation mark, and control characters are escaped.
The names that agents choose may begin like a formula; an apostrophe before such a name makes it text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from things.jsontext import encode

_FORMULA = ("=", "+", "-", "@")


def csv_row(reading: Mapping[str, Any], columns: Sequence[str]) -> list[Any]:
    """The cells of one reading, as the history service gives it, in the order of `columns`."""
    return [encode(reading.get(one)).decode() if one == "value" else text_cell(reading.get(one)) for one in columns]


def text_cell(content: Any) -> Any:
    """A cell whose text is no formula."""
    return f"'{content}" if isinstance(content, str) and content.startswith(_FORMULA) else content
