"""Whom the names in rules and policies mean: the account that had the name when they were set, or the first that gets
it after that, and none that comes by the name later."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from things.identity import Principal
from things.jsontext import encode
from things.messages import JSONValue

Identify = Callable[[str], str | None]
"""The id of the account that has a name now; None if nobody has it."""

Bound = Mapping[str, str]
"""Ids of accounts by name; a name that nobody had yet is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """Whom the names in one policy set mean. `digest` is that of the set: another text was written by somebody who
    meant those that have the names by then."""

    digest: str
    accounts: Bound


def means(bound: Bound, principal: Principal) -> bool:
    """Whether the name of `principal`, where it stands, is meant for it."""
    known = bound.get(principal.account)
    return known is None or principal.account_id in (None, known)


def bound_to(names: Iterable[str], identify: Identify, standing: Bound | None = None) -> dict[str, str]:
    """`standing`, and who has those of `names` now that are not in it."""
    found = dict(standing or {})
    for name in names:
        if name not in found and (account_id := identify(name)) is not None:
            found[name] = account_id
    return found


def digest(document: JSONValue) -> str:
    return hashlib.sha256(encode(document)).hexdigest()


def senders(document: JSONValue) -> Iterator[str]:
    """The accounts that conditions anywhere in a policy set name; patterns name none."""
    if isinstance(document, list):
        for member in document:
            yield from senders(member)
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from _texts(value) if key == "sender" else senders(value)


def _texts(value: JSONValue) -> Iterator[str]:
    if isinstance(value, str):
        if "*" not in value:
            yield value
    elif isinstance(value, list | dict):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _texts(member)
