"""The names that senders choose: accounts, Things, affordances, requests. Each rule is written here and nowhere else.

A name is parsed once, where it comes in, by the function of its kind, which raises BadAddress (`bad-address`) for what
the kind refuses; from then on its type says that it was. `things.messages.Message` asks again whatever door it comes
by, so the answers are remembered.

An affordance's name is a level of MQTT topics and a segment of HTTP paths, percent-encoded by
`things.addresses.encode_segment`: it must not be empty, nor be a path's `.` or `..`, and it must fit a topic however
many bytes its characters take. The others need no encoding.
"""

import re
from functools import lru_cache
from typing import NewType

from things.errors import BadAddress

Account = NewType("Account", str)
"""Who sends: `[a-z0-9][a-z0-9._-]{0,63}`."""
ThingID = NewType("ThingID", str)
"""A Thing as its agent calls it, below its account: `[A-Za-z0-9._:@-]{1,128}`."""
AffordanceName = NewType("AffordanceName", str)
"""A property, action or event of a Thing."""
RequestID = NewType("RequestID", str)
"""A request, as the runtime names it: `[A-Za-z0-9._:@~-]{1,128}`."""

MAX_NAME_CHARS = 128
GUEST_PREFIX = "guest~"
"""What names of guests begin with; no account has a `~`."""
_REMEMBERED = 65_536

_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_THING = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
_NAME = re.compile(rf"(?!\.\.?\Z)[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{{1,{MAX_NAME_CHARS}}}")
_REQUEST = re.compile(r"[A-Za-z0-9._:@~-]{1,128}")


@lru_cache(maxsize=_REMEMBERED)
def checked_account(text: str) -> Account:
    """`text` if it can name an account; raises BadAddress."""
    if not _ACCOUNT.fullmatch(text):
        raise BadAddress(f"{text[:80]!r} cannot name an account: use a-z, 0-9, '.', '_', '-', at most 64")
    return Account(text)


@lru_cache(maxsize=_REMEMBERED)
def checked_thing(text: str) -> ThingID:
    """`text` if it can be an agent's own Thing id; raises BadAddress."""
    if not _THING.fullmatch(text):
        raise BadAddress(f"{text[:80]!r} cannot name a Thing: use letters, digits and . _ : @ -, at most 128")
    return ThingID(text)


@lru_cache(maxsize=_REMEMBERED)
def checked_name(text: str) -> AffordanceName:
    """`text` if it can name a property, action or event; raises BadAddress."""
    if not is_name(text):
        raise BadAddress(
            f"{text[:80]!r} cannot name a property, action or event: 1 to {MAX_NAME_CHARS} characters, "
            "no control characters or line breaks, not '.' or '..'"
        )
    return AffordanceName(text)


def checked_request(text: str) -> RequestID:
    """`text` if it can be the id of a request; raises BadAddress."""
    if not _REQUEST.fullmatch(text):
        raise BadAddress(f"{text[:80]!r} cannot name a request: use letters, digits and . _ : @ ~ -, at most 128")
    return RequestID(text)


def is_name(text: str) -> bool:
    """Whether `text` can name a property, action or event."""
    return _NAME.fullmatch(text) is not None


def shown(name: str) -> str:
    """A name for a sentence or a log, also one that cannot be one: then shortened, and with its characters escaped."""
    return name if is_name(name) else ascii(name[:40])
