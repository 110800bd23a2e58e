"""JSON around values: what carries a value is nested deeper than the value, and may be larger.

A value is held to the limits of a message wherever it stands, so that what one way in refuses no other takes.
"""

from collections.abc import Callable

from things.errors import TooDeep, TooLarge
from things.jsontext import MAX_DEPTH, MAX_MESSAGE_BYTES, decode, encode, nesting
from things.messages import JSONValue

MAX_CARRIED_DEPTH = 128
"""Of an envelope with values too deep for a message; they are refused, and what stands beside them is not."""


def decode_whole(payload: bytes | str, levels: int, *, max_bytes: int) -> JSONValue:
    """An envelope whose values stand `levels` below its top, refused whole for any of them. Raises Malformed,
    TooLarge, TooDeep."""
    try:
        return decode(payload, max_bytes=max_bytes, max_depth=MAX_DEPTH + levels)
    except TooDeep:
        raise TooDeep(MAX_DEPTH) from None


def decode_around(
    payload: bytes, levels: int, *, max_bytes: int = MAX_MESSAGE_BYTES
) -> tuple[JSONValue, Callable[[JSONValue], None]]:
    """An envelope whose values stand `levels` below its top, and the test of one of them, which raises TooDeep or
    TooLarge. Raises Malformed, TooLarge, TooDeep for the whole."""
    is_large = len(payload) > MAX_MESSAGE_BYTES
    try:
        found, is_deep = decode(payload, max_bytes=max_bytes, max_depth=MAX_DEPTH + levels), False
    except TooDeep:
        found, is_deep = decode(payload, max_bytes=max_bytes, max_depth=MAX_CARRIED_DEPTH), True

    def check(value: JSONValue) -> None:
        if is_deep and nesting(value) > MAX_DEPTH:
            raise TooDeep(MAX_DEPTH)
        if is_large and len(encode(value)) > MAX_MESSAGE_BYTES:
            raise TooLarge(MAX_MESSAGE_BYTES)

    return found, check
