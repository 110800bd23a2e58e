"""The list of problems that a set of rules fills, and the small checks that every rule uses."""

import re
from collections.abc import Iterable
from typing import Any

from things.errors import Invalid, Problem
from things.pointers import pointer
from things.times import parse_time

MAX_FINDINGS = 200
"""Problems listed for one document; a hostile one could have a hundred thousand."""

Path = tuple[str | int, ...]
"""Where in the document: member names and indexes from the root."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:", re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s<>\"{}|\\^`\x00-\x1f]+", re.ASCII)
_USER_INFO = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#@]*:[^/?#@]*@", re.ASCII)


class Findings:
    """Problems found so far, in the order of the document."""

    __slots__ = ("patterns", "problems")

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.patterns = 0
        """Patterns met so far; their number is bounded."""

    def add(self, at: Path, detail: str, code: str = "invalid") -> None:
        """Note a problem at `at`."""
        if len(self.problems) < MAX_FINDINGS:
            self.problems.append(Problem(pointer=pointer(*at), detail=detail, code=code))
        elif len(self.problems) == MAX_FINDINGS:
            self.problems.append(Problem(pointer="", detail="there are more problems than are listed", code="more"))

    def texts(self, at: Path, members: dict[str, Any], names: Iterable[str]) -> None:
        """Each of the named members that is there must be text."""
        for name in names:
            if name in members and not isinstance(members[name], str):
                self.add((*at, name), "must be text", "type")

    def flags(self, at: Path, members: dict[str, Any], names: Iterable[str]) -> None:
        """Each of the named members that is there must be true or false."""
        for name in names:
            if name in members and not isinstance(members[name], bool):
                self.add((*at, name), "must be true or false", "type")

    def languages(self, at: Path, members: dict[str, Any], names: Iterable[str]) -> None:
        """Each of the named members that is there must map language tags to text."""
        for name in names:
            if name not in members:
                continue
            if not isinstance(members[name], dict):
                self.add((*at, name), "must be an object of texts by language", "shape")
            else:
                self.texts((*at, name), members[name], members[name])

    def text_or_texts(self, at: Path, value: Any, *, at_least_one: bool = False) -> list[str]:
        """`value` must be text or a list of texts; returns the texts."""
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            self.add(at, "must be text or a list of texts", "type")
            return []
        if at_least_one and not value:
            self.add(at, "must name at least one", "empty")
        for index, item in enumerate(value):
            if not isinstance(item, str):
                self.add((*at, index), "must be text", "type")
        return [item for item in value if isinstance(item, str)]

    def date_time(self, at: Path, value: Any) -> None:
        """`value` must be an RFC 3339 date and time."""
        if not isinstance(value, str) or not is_date_time(value):
            self.add(at, "must be a date and time such as 2026-01-31T12:00:00Z", "date-time")

    def address(self, at: Path, value: Any) -> bool:
        """`value` must be text that can be a URI reference and holds no password; whether it is text."""
        if not isinstance(value, str):
            self.add(at, "must be text (a URI)", "type")
            return False
        if _USER_INFO.match(value):
            self.add(at, "holds a password; a Thing Description must not hold secrets", "secret")
        return True


def is_uri(text: str) -> bool:
    """Whether `text` is a URI with a scheme."""
    return _URI.fullmatch(text) is not None


def is_relative(text: str) -> bool:
    """Whether `text`, a URI reference, needs a base."""
    return _SCHEME.match(text) is None


def is_date_time(text: str) -> bool:
    """Whether `text` is an RFC 3339 date and time that the calendar has."""
    try:
        parse_time(text)
    except Invalid:
        return False
    return True


def json_key(value: Any) -> Any:
    """A hashable stand-in for a JSON value: two values are the same JSON exactly if their keys are equal."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, dict):
        return ("object", frozenset((name, json_key(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("array", tuple(json_key(item) for item in value))
    return value
