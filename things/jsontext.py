"""JSON text in and out, strictly: UTF-8, no NaN or Infinity, bounded size and depth.

The decoder is the edge where wire bytes become values; nothing behind it checks again.
"""

import json
import re
from collections.abc import Iterator
from itertools import accumulate, islice
from math import isfinite
from typing import Any

from pydantic_core import from_json, to_json

from things.errors import Malformed, Problem, TooDeep, TooLarge
from things.messages import JSONValue
from things.pointers import pointer

MAX_MESSAGE_BYTES = 262_144
MAX_DEPTH = 32
MAX_REPEATED = 200
"""Repeated keys that are named."""

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.S)
_LARGE = re.compile(rb"[0-9](?:[eE]\+?[0-9]{3}|[0-9]{299})")
"""Only text like this can hold a number that becomes infinite. It begins with one class, which is quick to look for."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""A level deeper, or back, as a signed byte."""
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def decode(text: bytes | str, *, max_bytes: int = MAX_MESSAGE_BYTES, max_depth: int = MAX_DEPTH) -> JSONValue:
    """The value in `text`; raises TooLarge, TooDeep or Malformed. Repeated keys: the last one counts."""
    raw = text if isinstance(text, bytes) else text.encode()
    if len(raw) > max_bytes:
        raise TooLarge(max_bytes)
    if raw.count(b"[") + raw.count(b"{") > max_depth:
        _check_nesting(_STRINGS.sub(b"", raw), max_depth)
    return _value(raw)


def decode_unique(text: bytes | str, *, max_bytes: int = MAX_MESSAGE_BYTES, max_depth: int = MAX_DEPTH) -> JSONValue:
    """Like `decode`, but repeated keys in one object are malformed, each with its pointer: documents that
    people write come this way."""
    raw = text if isinstance(text, bytes) else text.encode()
    if len(raw) > max_bytes:
        raise TooLarge(max_bytes)
    bare = _STRINGS.sub(b"", raw)
    _check_nesting(bare, max_depth)
    value = _value(raw)
    # Outside of strings a colon stands behind every key and nowhere else.
    if bare.count(b":") != _members(value):
        _name_repeated(raw)
    return value


def encode(value: object) -> bytes:
    """`value` as compact UTF-8 JSON; NaN and infinities, which JSON lacks, become null."""
    return to_json(value, inf_nan_mode="null")


def nesting(value: JSONValue) -> int:
    """How many arrays and objects stand within each other in a decoded value."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        one, level = waiting.pop()
        if isinstance(one, dict | list):
            deepest = max(deepest, level)
            waiting.extend((member, level + 1) for member in (one.values() if isinstance(one, dict) else one))
    return deepest


def _check_nesting(bare: bytes, max_depth: int) -> None:
    # Strangers may send 100,000 brackets: they are counted without a step of Python for each.
    steps = memoryview(bare.translate(_STEPS, _OTHERS)).cast("b")
    if max(accumulate(steps), default=0) > max_depth:
        raise TooDeep(max_depth)


def _value(raw: bytes) -> JSONValue:
    try:
        value: JSONValue = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise Malformed(f"not valid JSON: {error}") from error
    # Most values are one number or text: a look at their spelling would cost more than all the rest.
    may_be_infinite = _LARGE.search(raw) is not None if isinstance(value, dict | list) else isinstance(value, float)
    if may_be_infinite and not _is_finite(value):
        raise Malformed("a number is larger than a double can hold")
    return value


def _is_finite(value: JSONValue) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(_is_finite(member) for member in value.values())
    return all(_is_finite(member) for member in value) if isinstance(value, list) else True


def _members(value: JSONValue) -> int:
    """How many members all objects in it have together."""
    found = 0
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found += len(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
    return found


def _name_repeated(raw: bytes) -> None:
    """Raise Malformed with every key that stands twice in one object, and where."""
    try:
        document = json.loads(raw, object_pairs_hook=_Members)
    except ValueError as error:
        raise Malformed(f"not valid JSON: {error}") from error
    problems = [
        Problem(pointer=pointer(*at), detail=f"the key {at[-1]!r} stands twice in one object", code="repeated")
        for at in islice(_repeated(document, ()), MAX_REPEATED)
    ]
    raise Malformed(f"not valid JSON: {problems[0].detail}", problems)


class _Members(list[tuple[str, Any]]):
    """The members of an object, none of them lost."""


def _repeated(value: Any, at: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, _Members):
        known: set[str] = set()
        for name, member in value:
            if name in known:
                yield (*at, name)
            known.add(name)
            yield from _repeated(member, (*at, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated(item, (*at, index))
