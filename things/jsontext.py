"""JSON text in and out, strictly: UTF-8, no NaN or Infinity, bounded size and depth.

The decoder is the edge where wire bytes become values; nothing behind it checks again.
"""

import json
from typing import Any

from pydantic_core import from_json, to_json

from things.errors import Malformed, TooDeep, TooLarge
from things.messages import JSONValue

MAX_MESSAGE_BYTES = 262_144
MAX_DEPTH = 32


def decode(text: bytes | str, *, max_bytes: int = MAX_MESSAGE_BYTES, max_depth: int = MAX_DEPTH) -> JSONValue:
    """The value in `text`; raises TooLarge, TooDeep or Malformed. Repeated keys: the last one counts."""
    raw = text if isinstance(text, bytes) else text.encode()
    if len(raw) > max_bytes:
        raise TooLarge(max_bytes)
    _check_depth(raw, max_depth)
    try:
        return from_json(raw, allow_inf_nan=False)  # type: ignore[no-any-return]
    except ValueError as error:
        raise Malformed(f"not valid JSON: {error}") from error


def decode_unique(text: bytes | str, *, max_bytes: int = MAX_MESSAGE_BYTES, max_depth: int = MAX_DEPTH) -> JSONValue:
    """Like `decode`, but repeated keys in one object are malformed: documents that people write come this way."""
    raw = text if isinstance(text, bytes) else text.encode()
    if len(raw) > max_bytes:
        raise TooLarge(max_bytes)
    _check_depth(raw, max_depth)
    try:
        return json.loads(  # type: ignore[no-any-return]
            raw.decode("utf-8", "strict"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except ValueError as error:
        raise Malformed(f"not valid JSON: {error}") from error


def encode(value: object) -> bytes:
    """`value` as compact UTF-8 JSON; NaN and infinities, which JSON lacks, become null."""
    return to_json(value, inf_nan_mode="null")


def _check_depth(raw: bytes, max_depth: int) -> None:
    if raw.count(b"[") + raw.count(b"{") <= max_depth:
        return
    depth = 0
    in_string = escaped = False
    for byte in raw:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in (0x5B, 0x7B):
            depth += 1
            if depth > max_depth:
                raise TooDeep(max_depth)
        elif byte in (0x5D, 0x7D):
            depth -= 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} stands twice in one object")
        result[key] = value
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
