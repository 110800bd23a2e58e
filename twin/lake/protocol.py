"""What the runtime and its lake process say to each other: one JSON object a line, answers in any order, by id.

`{"id", "do", "with", "now"}` → `{"id", "result"}` or `{"id", "error": {"code", "detail"}}`. `now` is the
runtime's time (µs UTC), by which commits are stamped and files grow old. Both sides import this; it needs no pyarrow.
"""

from collections.abc import Mapping
from typing import Any

from things.errors import SkepError, error_named

MAX_LINE_BYTES = 64 * 1024 * 1024
"""One answer; pages of rows are far smaller."""
IDLE_S = 30.0
"""A lake process without work ends after this; the next request starts another."""


def error_of(failure: BaseException) -> dict[str, str]:
    """An exception as an answer carries it."""
    if isinstance(failure, SkepError):
        return {"code": failure.code, "detail": failure.detail}
    return {"code": "internal", "detail": f"{type(failure).__name__}: {failure}"}


def raised(error: Mapping[str, Any]) -> SkepError:
    """The exception an answer stands for."""
    return error_named(str(error.get("code", "internal")), str(error.get("detail", "the lake process failed")))
