"""Moments as people write them: RFC 3339, `2026-03-31 14:00`, or how long ago: `10m`, `10 minutes ago`."""

import re
import time
from datetime import UTC, datetime

import click

from things.durations import window_seconds
from things.errors import Invalid
from things.times import parse_time, rfc3339

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)(?:\s+ago)?")
_UNITS = {"second": "s", "sec": "s", "minute": "m", "min": "m", "hour": "h", "day": "d", "week": "w"}


def moment(text: str, *, now: int | None = None) -> int:
    """µs UTC; raises Invalid."""
    now = time.time_ns() // 1_000 if now is None else now
    wanted = text.strip()
    if wanted == "now":
        return now
    match = _AGO.fullmatch(wanted.lower())
    if match:
        unit = match[2] if match[2] in _UNITS.values() else _UNITS.get(match[2].removesuffix("s"), match[2])
        return now - round(window_seconds(f"{match[1]}{unit}") * 1_000_000)
    try:
        return parse_time(wanted)
    except Invalid:
        pass
    try:
        found = datetime.fromisoformat(wanted)
    except ValueError as error:
        raise Invalid(f"{text[:40]!r} is no moment; write 2026-03-31T14:00:00Z, or 10m for ten minutes ago") from error
    return round(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1_000_000)


class Moment(click.ParamType[str]):
    """An option that takes a moment and hands over RFC 3339 text."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return rfc3339(moment(str(value)))
