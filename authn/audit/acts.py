"""What an act is: its class, its members as they are written, and what is left out of them.

Classes are kept apart, in files of their own: no number of acts of one class displaces those of another.
"""

import json
from collections.abc import Mapping
from enum import StrEnum

from things.times import rfc3339

MAX_VALUE_CHARS = 256
MAX_DETAILS = 20

_SECRET_WORDS = ("password", "secret", "token", "code", "key_pem", "private")
_SECRET_EXCEPT = ("tokenid",)


class Class(StrEnum):
    """What a line is about."""

    ADMINISTRATION = "administration"
    """Accounts, credentials, rights, configuration; and all lines of logs that had no classes yet."""
    ACCESS = "access"
    """Logins and their ends."""
    USE = "use"
    """What devices and agents were asked to do."""
    REFUSALS = "refusals"
    """Tries of somebody who is not, or not yet, known."""


_CLASSES = {
    "action": Class.USE,
    "write": Class.USE,
    "call": Class.USE,
    "confirmed": Class.USE,
    "login": Class.ACCESS,
    "logout": Class.ACCESS,
    "refresh": Class.ACCESS,
    "device-provisioned": Class.ACCESS,
    "device-asked": Class.REFUSALS,
}
_REFUSABLE = ("login", "claim")


def class_of(act: str, outcome: str) -> Class:
    """Where an act belongs."""
    if outcome != "ok" and act in _REFUSABLE:
        return Class.REFUSALS
    return _CLASSES.get(act, Class.ADMINISTRATION)


def document(
    act: str,
    *,
    at: int,
    by: str,
    target: str = "",
    outcome: str = "ok",
    source: str | None = None,
    details: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """An act as it is written. Values are cut, and members that look like secrets left out."""
    line: dict[str, object] = {
        "at": rfc3339(at),
        "class": str(class_of(act, outcome)),
        "act": _plain(act),
        "by": _plain(by),
    }
    if target:
        line["target"] = _plain(target)
    line["outcome"] = _plain(outcome)
    if source is not None:
        line["source"] = _plain(source)
    if details:
        line["details"] = {
            _plain(key): _plain(value) for key, value in list(details.items())[:MAX_DETAILS] if not _is_secret(str(key))
        }
    return line


def text(act: Mapping[str, object]) -> str:
    """One line. ASCII only: JSON escapes control characters but would let U+2028 and bidirectional marks through."""
    return json.dumps(act, ensure_ascii=True, separators=(",", ":"))


def _plain(value: object) -> str:
    found = value if isinstance(value, str) else str(value)
    return found if len(found) <= MAX_VALUE_CHARS else found[: MAX_VALUE_CHARS - 1] + "…"


def _is_secret(key: str) -> bool:
    name = key.lower()
    return name not in _SECRET_EXCEPT and any(word in name for word in _SECRET_WORDS)
