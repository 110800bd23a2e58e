"""Budgets of messages and bytes per account, so that one sender cannot starve the others; and how busy Things are.

Whoever can be made to wait is not refused: a paced message is taken although the budget is used up, and its binding
reads no more of that account until the debt is paid (`owed_s`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from things.bounded import Recent
from things.errors import RateLimited
from things.identity import RESERVED_ACCOUNTS, Principal
from things.messages import Message

MAX_ACCOUNTS = 10_000
MAX_THINGS = 10_000
"""Things whose rate is known; the one that was busy the longest ago is forgotten first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an account may send in a second, and how much of it at once after a silence."""

    messages_per_second: float = 5_000.0
    message_burst: float = 10_000.0
    bytes_per_second: float = 33_554_432.0
    byte_burst: float = 67_108_864.0

    def of_role(
        self, messages_per_second: float | None, bytes_per_second: float | None, *, least_bytes: int
    ) -> "Budget":
        """Another budget by the second, with bursts as many seconds long; at least one message of `least_bytes`."""
        messages = messages_per_second or self.messages_per_second
        bytes_ = bytes_per_second or self.bytes_per_second
        return Budget(
            messages_per_second=messages,
            message_burst=max(1.0, self.message_burst * messages / self.messages_per_second),
            bytes_per_second=bytes_,
            byte_burst=max(float(least_bytes), self.byte_burst * bytes_ / self.bytes_per_second),
        )


@dataclass(slots=True)
class _Bucket:
    messages: float
    bytes: float
    at: int
    minute: float = 0.0
    """Messages of the running minute, fading: what policies call the rate of an account."""


@dataclass(slots=True)
class _Busy:
    at: int
    minute: float = 0.0


@dataclass(slots=True)
class Rates:
    """Token buckets by account; roles named in `by_role` have another budget."""

    clock: Callable[[], int]
    budget: Budget = field(default_factory=Budget)
    by_role: Mapping[str, Budget] = field(default_factory=dict)
    _buckets: Recent[str, _Bucket] = field(default_factory=lambda: Recent(MAX_ACCOUNTS))
    _things: Recent[str, _Busy] = field(default_factory=lambda: Recent(MAX_THINGS))

    def spend(self, message: Message) -> None:
        """Take a message from its sender's budget; raises RateLimited with the time until there is enough, unless the
        message is paced. The runtime's own services have no budget: what they say answers what was paid for."""
        principal = message.principal
        bucket = self._buckets.get(principal.account)
        if bucket is None:
            if principal.account in RESERVED_ACCOUNTS:
                return
            bucket = self._opened(principal)
        budget = self.by_role.get(principal.role, self.budget)
        self._refill(bucket, budget)
        if not message.paced:
            if bucket.messages < 1:
                raise RateLimited((1 - bucket.messages) / budget.messages_per_second)
            if bucket.bytes < message.size:
                raise RateLimited((message.size - bucket.bytes) / budget.bytes_per_second)
        bucket.messages -= 1
        bucket.bytes -= message.size
        bucket.minute += 1

    def charge(self, principal: Principal, messages: float) -> None:
        """Take what is no message, such as a refused one or a list of values, from an account's budget."""
        if principal.account not in RESERVED_ACCOUNTS:
            bucket = self._buckets.get(principal.account) or self._opened(principal)
            bucket.messages -= messages

    def owed_s(self, principal: Principal) -> float:
        """Seconds until an account has paid what it took beyond its budget; 0 if it owes nothing."""
        bucket = self._buckets.get(principal.account)
        if bucket is None or (bucket.messages >= 0 and bucket.bytes >= 0):
            return 0.0
        budget = self.by_role.get(principal.role, self.budget)
        self._refill(bucket, budget)
        return max(-bucket.messages / budget.messages_per_second, -bucket.bytes / budget.bytes_per_second, 0.0)

    def _refill(self, bucket: _Bucket, budget: Budget) -> None:
        now = self.clock()
        if now > bucket.at:
            elapsed_s = (now - bucket.at) / 1_000_000
            bucket.at = now
            # Comparisons, since `min` and `max` would be the greater part of this.
            messages = bucket.messages + elapsed_s * budget.messages_per_second
            bucket.messages = messages if messages < budget.message_burst else budget.message_burst
            bytes_ = bucket.bytes + elapsed_s * budget.bytes_per_second
            bucket.bytes = bytes_ if bytes_ < budget.byte_burst else budget.byte_burst
            bucket.minute = bucket.minute * (1.0 - elapsed_s / 60.0) if elapsed_s < 60.0 else 0.0

    def _opened(self, principal: Principal) -> _Bucket:
        budget = self.by_role.get(principal.role, self.budget)
        bucket = _Bucket(budget.message_burst, budget.byte_burst, self.clock())
        self._buckets[principal.account] = bucket
        return bucket

    def counters(self, principal: Principal, thing_id: str) -> Mapping[str, float]:
        """What conditional policies may look at."""
        bucket = self._buckets.get(principal.account)
        return {"account": bucket.minute if bucket else 0.0, "thing": self._faded(thing_id)}

    def passed(self, thing_id: str) -> None:
        """Count a message that was let through to a Thing; what was refused keeps no one else out."""
        minute = self._faded(thing_id) + 1
        self._things[thing_id] = _Busy(self.clock(), minute)

    def _faded(self, thing_id: str) -> float:
        busy = self._things.get(thing_id)
        return 0.0 if busy is None else busy.minute * max(0.0, 1.0 - max(self.clock() - busy.at, 0) / 60_000_000)
