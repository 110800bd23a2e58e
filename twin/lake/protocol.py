"""What the runtime and its lake process say to each other: one JSON object a line, answers in any order, by id.

`{"id", "do", "with"}` → `{"id", "result"}` or `{"id", "error": {"code", "detail"}}`. Both sides import this; it needs
no pyarrow.
"""

from collections.abc import Mapping
from typing import Any

from things import errors
from things.errors import Invalid, SkepError

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
    """The exception an answer stands for, of the class with its code."""
    failure = SkepError(str(error.get("detail", "the lake process failed")))
    found = _classes().get(str(error.get("code")))
    if found is not None:
        # Every class builds its own sentence; this one was built on the other side already.
        other = found.__new__(found)
        Exception.__init__(other, failure.detail)
        other.detail = failure.detail
        if isinstance(other, Invalid):
            other.problems = ()
        return other
    return failure


def _classes() -> dict[str, type[SkepError]]:
    found: dict[str, type[SkepError]] = {}
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, SkepError):
            found[value.code] = value
    return found
