"""The data types MQTT packets are built of (MQTT 5.0, 1.5), read with every bound checked.

A reader takes `(data, pos, end)` and returns `(value, next position)`; it never looks at or beyond `end`, and raises
`BadPacket` for anything that does not fit.
"""

from bindings.mqtt.engines.codec.reasons import malformed

MAX_VARINT = 268_435_455


def read_byte(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """One byte."""
    if pos >= end:
        raise malformed("the packet ends early")
    return data[pos], pos + 1


def read_two(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A two byte integer, big-endian."""
    if pos + 2 > end:
        raise malformed("the packet ends early")
    return data[pos] << 8 | data[pos + 1], pos + 2


def read_four(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A four byte integer, big-endian."""
    if pos + 4 > end:
        raise malformed("the packet ends early")
    return int.from_bytes(data[pos : pos + 4], "big"), pos + 4


def read_varint(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """A variable byte integer of at most four bytes, in its shortest form."""
    value = shift = 0
    while True:
        if pos >= end:
            raise malformed("the packet ends early")
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            # [MQTT-1.5.5-1] the shortest form is the only one.
            if byte == 0 and shift:
                raise malformed("a variable byte integer is longer than it needs to be")
            return value, pos
        shift += 7
        if shift > 21:
            raise malformed("a variable byte integer has more than four bytes")


def read_binary(data: bytes, pos: int, end: int) -> tuple[bytes, int]:
    """Binary data with a two byte length."""
    if pos + 2 > end:
        raise malformed("the packet ends early")
    stop = pos + 2 + (data[pos] << 8 | data[pos + 1])
    if stop > end:
        raise malformed("a length inside the packet reaches past its end")
    return data[pos + 2 : stop], stop


def read_text(data: bytes, pos: int, end: int) -> tuple[str, int]:
    """UTF-8 text with a two byte length: no surrogates, no U+0000 ([MQTT-1.5.4-1], [MQTT-1.5.4-2])."""
    raw, pos = read_binary(data, pos, end)
    return text(raw), pos


def text(raw: bytes) -> str:
    """`raw` as MQTT text; raises BadPacket if it is not well-formed UTF-8 or has U+0000."""
    try:
        decoded = raw.decode()
    except UnicodeDecodeError:
        raise malformed("text is not well-formed UTF-8") from None
    if "\0" in decoded:
        raise malformed("text contains U+0000")
    return decoded


def varint(value: int) -> bytes:
    """`value` as a variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value <= MAX_VARINT:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    raise ValueError(f"{value} does not fit a variable byte integer")


def binary(value: bytes) -> bytes:
    """`value` behind its two byte length."""
    return len(value).to_bytes(2, "big") + value


def utf8(value: str) -> bytes:
    """`value` as UTF-8 behind its two byte length."""
    raw = value.encode()
    return len(raw).to_bytes(2, "big") + raw
