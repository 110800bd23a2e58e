"""Budgets of messages and bytes per account, so that one sender cannot starve the others; and how busy Things are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runtime.config import Config
from things.errors import RateLimited
from things.identity import RESERVED_ACCOUNTS, Principal
from things.messages import Message

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
    max_accounts: int = 10_000
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _things: dict[str, _Busy] = field(default_factory=dict)

    def spend(self, message: Message) -> None:
        """Take a message from its sender's budget; raises RateLimited with the time until there is enough. The
        runtime's own services have none: what they say answers a message that was paid for."""
        principal = message.principal
        bucket = self._buckets.get(principal.account)
        if bucket is None:
            if principal.account in RESERVED_ACCOUNTS:
                return
            bucket = self._opened(principal)
        budget = self.by_role.get(principal.role, self.budget)
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
        if bucket.messages < 1:
            raise RateLimited((1 - bucket.messages) / budget.messages_per_second)
        if bucket.bytes < message.size:
            raise RateLimited((message.size - bucket.bytes) / budget.bytes_per_second)
        bucket.messages -= 1
        bucket.bytes -= message.size
        bucket.minute += 1

    def _opened(self, principal: Principal) -> _Bucket:
        budget = self.by_role.get(principal.role, self.budget)
        while len(self._buckets) >= self.max_accounts:
            del self._buckets[next(iter(self._buckets))]
        bucket = _Bucket(budget.message_burst, budget.byte_burst, self.clock())
        self._buckets[principal.account] = bucket
        return bucket

    def counters(self, principal: Principal, thing_id: str) -> Mapping[str, float]:
        """What conditional policies may look at."""
        bucket = self._buckets.get(principal.account)
        return {"account": bucket.minute if bucket else 0.0, "thing": self._faded(thing_id)}

    def passed(self, thing_id: str) -> None:
        """Count a message that was let through to a Thing; what was refused keeps nobody else out."""
        minute = self._faded(thing_id) + 1
        self._things.pop(thing_id, None)
        while len(self._things) >= MAX_THINGS:
            del self._things[next(iter(self._things))]
        self._things[thing_id] = _Busy(self.clock(), minute)

    def _faded(self, thing_id: str) -> float:
        busy = self._things.get(thing_id)
        return 0.0 if busy is None else busy.minute * max(0.0, 1.0 - max(self.clock() - busy.at, 0) / 60_000_000)


def rates_of(config: Config, clock: Callable[[], int]) -> Rates:
    """The budgets that the configuration gives."""
    limits = config.limits
    budget = Budget(
        messages_per_second=limits.messages_per_second,
        message_burst=limits.message_burst,
        bytes_per_second=limits.bytes_per_second,
        byte_burst=limits.byte_burst,
    )
    by_role = {
        role: budget.of_role(own.messages_per_second, own.bytes_per_second, least_bytes=config.http.max_batch_bytes)
        for role, own in limits.roles.items()
    }
    return Rates(clock=clock, budget=budget, by_role=by_role)
