"""Spans of time as text: ISO 8601 durations in Thing Descriptions, `5m` in windows; plain numbers are seconds.

Only durations of a fixed length are accepted: weeks, days, hours, minutes and seconds. Months and years have none.
"""

import re

from things.errors import Invalid

MAX_SECONDS = 10 * 366 * 86_400.0
"""Ten years: longer spans are mistakes, and this keeps sums of µs far from their limits."""

_ISO = re.compile(
    r"P(?:(?P<weeks>\d{1,9}(?:[.,]\d{1,9})?)W|(?:(?P<days>\d{1,9}(?:[.,]\d{1,9})?)D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9}(?:[.,]\d{1,9})?)H)?(?:(?P<minutes>\d{1,9}(?:[.,]\d{1,9})?)M)?"
    r"(?:(?P<seconds>\d{1,9}(?:[.,]\d{1,9})?)S)?)?)",
    re.ASCII,
)
_WINDOW = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d|w)", re.ASCII)
_SECONDS = {"weeks": 604_800.0, "days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
_WINDOW_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def iso_seconds(text: str) -> float:
    """Seconds of an ISO 8601 duration such as `PT5M` or `P1DT12H`; raises Invalid."""
    match = _ISO.fullmatch(text)
    parts = {unit: match[unit] for unit in _SECONDS if match[unit] is not None} if match else {}
    if match is None or not parts or match["time"] == "T":
        raise Invalid(f"{text[:40]!r} is not a duration of fixed length such as PT30S, PT5M or P1D")
    return _bounded(sum(float(number.replace(",", ".")) * _SECONDS[unit] for unit, number in parts.items()), text)


def window_seconds(text: str) -> float:
    """Seconds of a window such as `250ms`, `30s`, `5m`, `1h`, `7d` or `2w`; more than zero. Raises Invalid."""
    match = _WINDOW.fullmatch(text)
    seconds = float(match[1]) * _WINDOW_SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise Invalid(f"{text[:40]!r} is not a window such as 30s, 5m, 1h or 7d")
    return _bounded(seconds, text)


def td_seconds(value: object) -> float:
    """Seconds of a duration as Thing Descriptions write it: ISO 8601 text, or a number of seconds. Raises Invalid."""
    if isinstance(value, str):
        return iso_seconds(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise Invalid("a duration is ISO 8601 text such as PT5M, or a number of seconds that is not negative")
    return _bounded(value, str(value))


def iso_text(seconds: float) -> str:
    """`seconds` as an ISO 8601 duration, in days, hours, minutes and seconds."""
    whole_ms = round(seconds * 1000)
    days, rest = divmod(whole_ms, 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    time = f"{hours}H" * (hours > 0) + f"{minutes}M" * (minutes > 0)
    if rest or not (days or time):
        time += f"{rest / 1000:g}S"
    return "P" + f"{days}D" * (days > 0) + (f"T{time}" if time else "")


def _bounded(seconds: float, text: str) -> float:
    if not seconds <= MAX_SECONDS:
        raise Invalid(f"{text[:40]!r} is longer than ten years")
    return float(seconds)
