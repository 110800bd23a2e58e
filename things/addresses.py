"""Thing and twin ids, and how names are spelled in topics and paths.

A twin id is `dtw:{account}:{thing}`, parsed at the first two colons. Account and Thing ids never need encoding; names
of affordances and ids of other directory entries are percent-encoded byte by byte outside `A-Za-z0-9-._~:@`, alike in
MQTT topics and HTTP paths.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote_to_bytes

from things.errors import BadAddress
from things.identity import checked_account

TWIN_PREFIX = "dtw:"
MAX_NAME_CHARS = 128

_THING = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
_ENCODED = re.compile(r"(?:[A-Za-z0-9\-._~:@]|%[0-9A-Fa-f]{2})+")


class Kind(StrEnum):
    """What an address below a Thing names. `kind` and `name` together are the key of a series."""

    EVENT = "event"
    PROPERTY = "property"
    ACTION = "action"
    TD = "td"


@dataclass(frozen=True, slots=True)
class TwinID:
    """The id under which consumers know a Thing of an agent."""

    account: str
    thing: str

    def __str__(self) -> str:
        return f"{TWIN_PREFIX}{self.account}:{self.thing}"

    @staticmethod
    def parse(text: str) -> "TwinID":
        """`dtw:{account}:{thing}`; raises BadAddress."""
        return _parsed(text)


class Address(NamedTuple):
    """What a decision, a publication or a subscription is about; kind and name are None for the Thing as a whole."""

    thing_id: str
    kind: Kind | None = None
    name: str | None = None


def checked_thing(text: str) -> str:
    """`text` if it can be an agent's own Thing id (`[A-Za-z0-9._:@-]{1,128}`); raises BadAddress."""
    if not _THING.fullmatch(text):
        raise BadAddress(f"{text[:80]!r} cannot name a Thing: use letters, digits and . _ : @ -, at most 128")
    return text


@lru_cache(maxsize=16_384)
def own_twin(account: str, thing: str) -> str:
    """The id of the twin of an agent's own Thing; raises BadAddress as `checked_thing`."""
    return str(TwinID(account, checked_thing(thing)))


def is_twin(thing_id: str) -> bool:
    """Whether `thing_id` claims to be a twin rather than another directory entry."""
    return thing_id.startswith(TWIN_PREFIX)


@lru_cache(maxsize=4_096)
def encode_segment(text: str) -> str:
    """`text` as one topic level or path segment."""
    return quote(text, safe="-._~:@")


def decode_segment(segment: str) -> str:
    """The text that `encode_segment` spelled; raises BadAddress for anything it would not have written."""
    if not _ENCODED.fullmatch(segment):
        raise BadAddress(f"{segment[:80]!r} is not a valid name here; percent-encode other characters")
    if "%" not in segment:
        return segment
    try:
        return unquote_to_bytes(segment).decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise BadAddress(f"{segment[:80]!r} is not percent-encoded UTF-8") from error


@lru_cache(maxsize=16_384)
def _parsed(text: str) -> TwinID:
    prefix, _, rest = text.partition(":")
    account, colon, thing = rest.partition(":")
    if prefix != "dtw" or not colon:
        raise BadAddress(f"{text[:80]!r} is not a twin id; expected dtw:ACCOUNT:THING")
    return TwinID(checked_account(account), checked_thing(thing))
