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

from things.errors import BadAddress, Forbidden
from things.names import Account, ThingID, checked_account, checked_thing

TWIN_PREFIX = "dtw:"

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

    account: Account
    thing: ThingID

    def __str__(self) -> str:
        return f"{TWIN_PREFIX}{self.account}:{self.thing}"

    @staticmethod
    def of(account: str, thing: str) -> "TwinID":
        """The twin of an agent's own Thing; raises BadAddress for an account or Thing that cannot be one."""
        return TwinID(checked_account(account), checked_thing(thing))

    @staticmethod
    def parse(text: str) -> "TwinID":
        """`dtw:{account}:{thing}`; raises BadAddress."""
        return parsed_twin(text)


class Address(NamedTuple):
    """What a decision, a publication or a subscription is about; kind and name are None for the Thing as a whole."""

    thing_id: str
    kind: Kind | None = None
    name: str | None = None


@lru_cache(maxsize=65_536)
def own_twin(account: str, thing: str) -> str:
    """The id of the twin of an account's own Thing, which it names by its own id or by that of the twin. Raises
    BadAddress, and Forbidden for somebody else's."""
    if not is_twin(thing):
        return str(TwinID.of(account, thing))
    twin = TwinID.parse(thing)
    if twin.account != account:
        raise Forbidden("only your own Things are yours to publish for")
    return str(twin)


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


@lru_cache(maxsize=65_536)
def parsed_twin(text: str) -> TwinID:
    """`TwinID.parse`, for where a call more would be paid for by every message."""
    prefix, _, rest = text.partition(":")
    account, colon, thing = rest.partition(":")
    if prefix != "dtw" or not colon:
        raise BadAddress(f"{text[:80]!r} is not a twin id; expected dtw:ACCOUNT:THING")
    return TwinID.of(account, thing)
