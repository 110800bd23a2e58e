"""Who made the entries of the registry: an entry lives by the credential that its maker came with.

When that was ended, or the account is gone, disabled or another one of the name, the entry is not there any more.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from things.holdings import Holding
from things.identity import AccountType, Principal, Role

Entry = dict[str, Any]
"""A registration: the members the client gave, and `status`, `startingTime`, `lastModified`, `expires`."""
Standing = Callable[[Principal], Principal | None]
"""Who came with a principal as its account and credential stand now; None if they stand no more."""

OWNER, PRINCIPAL = "_owner", "_principal"
"""Members of an entry: the account that made it, and as whom it came."""


def signed(principal: Principal) -> Entry:
    """The members that say who made an entry."""
    return {OWNER: principal.account, PRINCIPAL: asdict(principal)}


class Registrants:
    """Who made which entry."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._by_url: dict[str, Principal] = {}

    def put(self, entry: Entry) -> None:
        self._by_url[entry["url"]] = _principal(entry)

    def drop(self, url: str) -> None:
        self._by_url.pop(url, None)

    def of(self, url: str) -> Principal:
        return self._by_url[url]

    def stands(self, url: str) -> bool:
        """Whether the credential by which an entry was made is good; a guest has none, and nothing to lose."""
        principal = self._by_url[url]
        return principal.is_guest or self._standing(principal) is not None

    def holding(self, entry: Mapping[str, Any]) -> Holding:
        """An entry as what lives by a credential."""
        return Holding(
            holding_id=entry["url"],
            kind="registration",
            principal=self._by_url[entry["url"]],
            label=str(entry.get("name", ""))[:128],
            created=_us(entry["startingTime"]),
            expires=entry["_until"],
        )


def _principal(entry: Mapping[str, Any]) -> Principal:
    document = entry.get(PRINCIPAL)
    if document is not None:
        return Principal(**{**document, "type": AccountType(document["type"])})
    # Of an earlier version, which kept the name: the account of that name, if it was there by then.
    login_id = f"before:{_us(entry['lastModified'])}"
    return Principal(account=entry[OWNER], type=AccountType.CONSUMER, role=Role.NONE, login_id=login_id)


def _us(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1_000_000)
