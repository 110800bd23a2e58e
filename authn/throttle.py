"""How often credentials may be tried: budgets per account and per source, over all bindings together.

Every try is charged before it is checked, so that parallel tries cannot pass together, and refunded when it succeeds.
Three budgets hold: of one account from one source (small), of an account from anywhere and of a source (both larger,
so that a guesser at one address does not lock the owner out at another). All refill with time; nothing is banned.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from things.bounded import Recent
from things.errors import RateLimited

MAX_TRACKED = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginBudget:
    """`burst` tries at once, one more every `refill_s` seconds."""

    burst: int
    refill_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginBudgets:
    """What may be tried; an empty pair budget is full again after five minutes."""

    pair: LoginBudget = LoginBudget(burst=10, refill_s=30)
    account: LoginBudget = LoginBudget(burst=100, refill_s=6)
    source: LoginBudget = LoginBudget(burst=100, refill_s=3)

    @staticmethod
    def per_minute(tries: int) -> "LoginBudgets":
        """`tries` a minute for an account from one source, ten times that for the account and for the source."""
        return LoginBudgets(
            pair=LoginBudget(burst=tries, refill_s=60 / tries),
            account=LoginBudget(burst=10 * tries, refill_s=6 / tries),
            source=LoginBudget(burst=10 * tries, refill_s=6 / tries),
        )


class Throttle:
    """Token buckets of login tries; `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float], budgets: LoginBudgets | None = None) -> None:
        self._monotonic = monotonic
        self._budgets = budgets or LoginBudgets()
        self._spent = Recent[tuple[str, str], tuple[float, float]](MAX_TRACKED)

    def charge(self, account: str, source: str | None) -> None:
        """Pay for one try; raises RateLimited, and charges nothing, when a budget is used up."""
        keys = self._keys(account, source)
        now = self._monotonic()
        levels = [(key, budget, self._level(key, budget, now)) for key, budget in keys]
        wait = max(((level + 1 - budget.burst) * budget.refill_s for _, budget, level in levels), default=0.0)
        if wait > 0:
            raise RateLimited(wait)
        for key, _, level in levels:
            self._put(key, level + 1, now)

    def refund(self, account: str, source: str | None) -> None:
        """Give one try back: it succeeded."""
        now = self._monotonic()
        for key, budget in self._keys(account, source):
            self._put(key, max(0.0, self._level(key, budget, now) - 1), now)

    def _keys(self, account: str, source: str | None) -> list[tuple[tuple[str, str], LoginBudget]]:
        place = network_of(source)
        # Ids longer than an account's can only be wrong; they share one budget instead of each taking memory.
        name = account if len(account) <= 64 else "?"
        keys = [((f"a:{name}", place), self._budgets.pair), ((f"a:{name}", "*"), self._budgets.account)]
        if source is not None:
            keys.append((("*", place), self._budgets.source))
        return keys

    def _level(self, key: tuple[str, str], budget: LoginBudget, now: float) -> float:
        level, at = self._spent.get(key, (0.0, now))
        return max(0.0, level - (now - at) / budget.refill_s)

    def _put(self, key: tuple[str, str], level: float, now: float) -> None:
        if level <= 0:
            self._spent.pop(key, None)
            return
        self._spent[key] = (level, now)


def network_of(source: str | None) -> str:
    """What counts as one source: an IPv4 address, or the /64 that one IPv6 host can pick addresses from."""
    if source is None:
        return "local"
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return source[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
