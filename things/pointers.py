"""JSON pointers (RFC 6901): spelled and followed."""

from collections.abc import Mapping
from typing import Any

_MAX_DIGITS = 9
"""Of an index: no array is longer, and a number of a thousand digits is never read."""


def pointer(*steps: str | int) -> str:
    """A JSON pointer made of `steps`."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def resolved(document: Any, path: str, absent: Any = None) -> Any:
    """What the JSON pointer `path` leads to in `document`; `absent` if there is nothing."""
    value = document
    for step in path.split("/")[1:]:
        name = unescaped(step)
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_index(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            return absent
    return value


def unescaped(step: str) -> str:
    """A step of a pointer as the name it stands for."""
    return step.replace("~1", "/").replace("~0", "~")


def _is_index(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS and (name == "0" or name[0] != "0")
