"""How errors look on MQTT 5: one table of reason codes."""

from things.errors import (
    BadAddress,
    Conflict,
    Forbidden,
    Invalid,
    NotConnected,
    NotFound,
    QueueFull,
    RateLimited,
    SkepError,
    StorageDamaged,
    StorageFailed,
    StorageFull,
    TimedOut,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from things.problems import ValuesRefused

UNSPECIFIED, IMPLEMENTATION_SPECIFIC, NOT_AUTHORIZED = 0x80, 0x83, 0x87
SERVER_BUSY = 0x89
TOPIC_NAME_INVALID, QUOTA_EXCEEDED, PAYLOAD_FORMAT_INVALID = 0x90, 0x97, 0x99

REASON_CODES: dict[type[SkepError], int] = {
    BadAddress: TOPIC_NAME_INVALID,
    Invalid: PAYLOAD_FORMAT_INVALID,
    TooLarge: PAYLOAD_FORMAT_INVALID,
    Unauthenticated: NOT_AUTHORIZED,
    Forbidden: NOT_AUTHORIZED,
    NotFound: TOPIC_NAME_INVALID,
    Conflict: IMPLEMENTATION_SPECIFIC,
    NotConnected: IMPLEMENTATION_SPECIFIC,
    TimedOut: IMPLEMENTATION_SPECIFIC,
    QueueFull: QUOTA_EXCEEDED,
    TooMany: QUOTA_EXCEEDED,
    RateLimited: QUOTA_EXCEEDED,
    StorageFull: QUOTA_EXCEEDED,
    StorageFailed: QUOTA_EXCEEDED,
    StorageDamaged: QUOTA_EXCEEDED,
    Unavailable: IMPLEMENTATION_SPECIFIC,
    SkepError: UNSPECIFIED,
}
"""Only codes that PUBACK and PUBREC may carry. The nearest class above an error that is not listed counts."""

TEMPORARY = (StorageFull, StorageFailed, StorageDamaged, RateLimited)
"""The same publish may succeed later: MQTT 5 clients are told 0x97 and keep it; for 3.1.1, which cannot be told, there
is no acknowledgement and the connection closes, so that the client sends it again."""


def reason_code(error: SkepError) -> int:
    """The MQTT 5 reason code of a refused publish."""
    if isinstance(error, ValuesRefused) and error.common is not None:
        error = error.common
    return next(REASON_CODES[kind] for kind in type(error).__mro__ if kind in REASON_CODES)


def filter_reason(error: SkepError) -> int:
    """The reason code of a refused filter: full, or nothing permitted can match."""
    return QUOTA_EXCEEDED if isinstance(error, QueueFull) else NOT_AUTHORIZED
