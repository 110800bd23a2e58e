"""JSON pointers (RFC 6901)."""

import json
from typing import Any

import pytest

from things.pointers import pointer, resolved

ABSENT = object()
# The document of RFC 6901, section 5.
DOCUMENT: dict[str, Any] = {"foo": ["bar", "baz"], "": 0, "a/b": 1, "c%d": 2, "m~n": 8, " ": 7, "~1": {"x": None}}


def test_pointers_are_escaped() -> None:
    assert pointer("a/b", "c~d", 0) == "/a~1b/c~0d/0"
    assert pointer() == ""
    assert json.dumps(pointer("ü")) == '"/\\u00fc"'


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/m~0n", 8),
        ("/ ", 7),
        ("/~01/x", None),
        ("/foo/2", ABSENT),
        ("/foo/-", ABSENT),
        ("/foo/-1", ABSENT),
        ("/foo/01", ABSENT),
        ("/foo/²", ABSENT),
        ("/foo/" + "9" * 5_000, ABSENT),
        ("/foo/0/0", ABSENT),
        ("/nothing", ABSENT),
    ],
)
def test_a_pointer_leads_to_a_value_or_nowhere(path: str, expected: object) -> None:
    assert resolved(DOCUMENT, path, ABSENT) == expected


def test_what_is_spelled_leads_back() -> None:
    assert resolved({"a/b": [{"c~1": 5}]}, pointer("a/b", 0, "c~1")) == 5
