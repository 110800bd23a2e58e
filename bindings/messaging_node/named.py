"""Addresses that accounts asked for by name; these outlive sessions and restarts, and end with their account."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from things.errors import QueueFull
from things.identity import Principal

Identify = Callable[[str], str | None]
"""The id of the account that has a name now; None if nobody has it."""


class Owner(NamedTuple):
    """The account that named an address; its id tells it from others of the name."""

    account: str
    account_id: str | None

    def is_of(self, principal: Principal) -> bool:
        return self.account == principal.account and principal.account_id in (None, self.account_id)


class Names:
    """Named addresses by owner. What an account named that is gone is nobody's."""

    def __init__(self) -> None:
        self._owners: dict[str, Owner] = {}
        self._count: Counter[Owner] = Counter()
        self._identify: Identify = lambda account: None

    def restore(self, owners: Mapping[str, Owner], identify: Identify) -> None:
        """Take up what was kept. An owner without an id is of an earlier version, and the account of the name."""
        self._identify = identify
        for address, owner in owners.items():
            known = owner if owner.account_id is not None else Owner(owner.account, identify(owner.account))
            self._owners[address] = known
            self._count[known] += 1

    def owner(self, address: str) -> Owner | None:
        found = self._owners.get(address)
        if found is not None and self._identify(found.account) != found.account_id:
            self.give_back((address,))
            return None
        return found

    def take(self, addresses: Sequence[str], owner: Owner, *, limit: int) -> list[str]:
        """Give an account those it has not yet; which they are. Raises QueueFull over its bound."""
        fresh = [address for address in dict.fromkeys(addresses) if self.owner(address) is None]
        if self._count[owner] + len(fresh) > limit:
            raise QueueFull(f"account {owner.account!r}", limit, "named addresses")
        self._owners.update(dict.fromkeys(fresh, owner))
        self._count[owner] += len(fresh)
        return fresh

    def give_back(self, addresses: Iterable[str]) -> None:
        for address in addresses:
            owner = self._owners.pop(address, None)
            if owner is not None:
                self._count[owner] -= 1
                if not self._count[owner]:
                    del self._count[owner]
