"""Times on the wire: RFC 3339 with `Z`; inside they are integer µs UTC."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from things.errors import Invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)")


def rfc3339(at: int) -> str:
    """µs UTC as `2026-01-31T12:00:00.000001Z`; whole seconds without a fraction."""
    second, fraction = divmod(at, 1_000_000)
    return f"{_second(second)}.{fraction:06d}Z" if fraction else f"{_second(second)}Z"


@lru_cache(maxsize=1_024)
def _second(second: int) -> str:
    # What is written now was mostly created now; spelling the date costs as much as encoding a small document.
    # isoformat and not strftime, which writes the year 1 as "1".
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:19]


def from_datetime(at: datetime) -> int:
    """An aware time as µs UTC; raises Invalid for one without a zone, which could be any of 26 hours."""
    if at.utcoffset() is None:
        raise Invalid(f"{at.isoformat()} has no time zone; write datetime.now(UTC), or .replace(tzinfo=UTC)")
    return (at - _EPOCH) // _MICROSECOND


def to_datetime(at: int) -> datetime:
    """µs UTC as an aware time."""
    return _EPOCH + at * _MICROSECOND


def parse_time(text: str) -> int:
    """An RFC 3339 time as µs UTC. A leap second counts as the second after; raises Invalid."""
    if not _RFC3339.fullmatch(text):
        raise Invalid(f"{text[:40]!r} is not a time such as 2026-01-31T12:00:00Z")
    body, leap = text.upper().replace(" ", "T"), 0
    if body[17:19] == "60":
        body, leap = f"{body[:17]}59{body[19:]}", 1
    # datetime reads at most six digits of a fraction.
    body = re.sub(r"(\.\d{6})\d+", r"\1", body)
    try:
        moment = datetime.fromisoformat(body.replace("Z", "+00:00")) + timedelta(seconds=leap)
        # Near both ends an offset leads out of the years that can be written.
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Invalid(f"{text[:40]!r} is not a time: {error}") from error
    return (moment - _EPOCH) // _MICROSECOND
