"""Budgets of messages per account: a token bucket each, so that one sender cannot starve the others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from things.errors import RateLimited
from things.identity import RESERVED_ACCOUNTS, Principal


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: int
    minute: float = 0.0
    """Messages of the running minute, fading: what policies call the rate of an account."""


@dataclass(slots=True)
class Rates:
    """`per_second` may be exceeded for a moment by `burst`; roles named in `by_role` have another rate."""

    clock: Callable[[], int]
    per_second: float = 5_000.0
    burst: float = 10_000.0
    by_role: Mapping[str, float] = field(default_factory=dict)
    max_accounts: int = 10_000
    _buckets: dict[str, _Bucket] = field(default_factory=dict)

    def spend(self, principal: Principal, messages: int = 1) -> None:
        """Take from the account's budget; raises RateLimited with the time until there is enough. The runtime's own
        services have none: what they say answers a message that was paid for."""
        if principal.account in RESERVED_ACCOUNTS:
            return
        now = self.clock()
        bucket = self._buckets.get(principal.account)
        if bucket is None:
            while len(self._buckets) >= self.max_accounts:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[principal.account] = _Bucket(self.burst, now)
        rate = self.by_role.get(principal.role, self.per_second)
        elapsed_s = max(now - bucket.at, 0) / 1_000_000
        bucket.at = now
        bucket.tokens = min(self.burst, bucket.tokens + elapsed_s * rate)
        bucket.minute *= max(0.0, 1.0 - elapsed_s / 60.0)
        if bucket.tokens < messages:
            raise RateLimited((messages - bucket.tokens) / rate)
        bucket.tokens -= messages
        bucket.minute += messages

    def counters(self, principal: Principal, thing_id: str) -> Mapping[str, float]:
        """What conditional policies may look at."""
        del thing_id
        bucket = self._buckets.get(principal.account)
        return {"account": bucket.minute if bucket else 0.0}
