"""Registration information of directory entries: what a client may say, what is kept, what a reader gets.

A time to live is kept with the TD and counted from each write; it wins over a given end. Times of creation and change
are the directory's own, whatever a client says.
"""

from collections.abc import Mapping
from typing import Any

from things.errors import Invalid
from things.jsontext import encode
from things.times import parse_time, rfc3339
from things.twin_td import DISCOVERY

MAX_TTL_S = 10 * 366 * 86_400


def expiry(td: Mapping[str, Any], now: int) -> int | None:
    """When the registration ends (µs), None if never. Raises Invalid."""
    registration = td.get("registration")
    if registration is None:
        return None
    if not isinstance(registration, dict):
        raise Invalid("registration is an object")
    ttl, expires = registration.get("ttl"), registration.get("expires")
    if ttl is not None:
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl <= MAX_TTL_S:
            raise Invalid("registration/ttl is a number of seconds, more than 0")
        return now + round(ttl * 1_000_000)
    if expires is None:
        return None
    if not isinstance(expires, str):
        raise Invalid("registration/expires is a time as text")
    end = parse_time(expires)
    if end <= now:
        raise Invalid("registration/expires is in the past: nobody could read the entry")
    return end


def stored(td: Mapping[str, Any]) -> dict[str, Any]:
    """The TD as it is kept: of its registration only the time to live, which later writes count from."""
    kept = {name: value for name, value in td.items() if name != "registration"}
    ttl = (td.get("registration") or {}).get("ttl")
    if ttl is not None:
        kept["registration"] = {"ttl": ttl}
    return kept


def standing(td: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """The TD as it would have to be written again to change nothing: with the end of its registration."""
    registration = td.get("registration") or {}
    if "ttl" in registration or entry.get("expires") is None:
        return dict(td)
    return {**td, "registration": {**registration, "expires": entry["expires"]}}


def spelled(entry: Mapping[str, Any], *, retrieved: int) -> bytes:
    """An entry's TD as JSON with its registration information: `text` as it came from the directory, or `td`."""
    text: str | None = entry.get("text")
    if text is None:
        return encode(enriched(entry["td"], entry, retrieved=retrieved))
    return b'%s,"registration":%s}' % (text[:-1].encode(), encode(_registration(entry, retrieved)))


def enriched(td: Mapping[str, Any], entry: Mapping[str, Any], *, retrieved: int) -> dict[str, Any]:
    """The TD with its registration information, whose context it then names."""
    registration = dict(td.get("registration") or {}) | _registration(entry, retrieved)
    context = td.get("@context")
    contexts = context if isinstance(context, list) else [context]
    if DISCOVERY not in contexts:
        # Prefix maps come last, after every context they may refine.
        at = next((index for index, one in enumerate(contexts) if isinstance(one, dict)), len(contexts))
        contexts = [*contexts[:at], DISCOVERY, *contexts[at:]]
    return {**td, "@context": contexts, "registration": registration}


def _registration(entry: Mapping[str, Any], retrieved: int) -> dict[str, Any]:
    registration = {"created": entry["created"], "modified": entry["modified"], "retrieved": rfc3339(retrieved)}
    return registration if entry.get("expires") is None else registration | {"expires": entry["expires"]}
