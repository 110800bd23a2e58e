"""Rules that allow or deny single callers, Things and names beside what their roles say.

A rule names Things by pattern, and may name an affordance, operations, and whom it is for (accounts, roles, types).
Among the rules that fit, the most specific decide: named affordance before kind before exact Thing, then named account
before role or type; where equally specific ones differ, deny wins. Agents and services set rules about their own
Things, admins about any; what others than admins set does not bind admins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from authz.naming import Bound, means
from authz.patterns import RulePattern
from things.addresses import Address, Kind
from things.identity import AccountType, Principal, Role
from things.messages import Operation

MAX_RULES = 5_000
MAX_RULES_OF_OWNER = 500


class Effect(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule; None or empty members do not narrow."""

    rule_id: str
    effect: Effect
    thing: RulePattern
    kind: Kind | None = None
    name: RulePattern | None = None
    operations: frozenset[Operation] = frozenset()
    accounts: frozenset[str] = frozenset()
    account_ids: Bound = field(default_factory=dict)
    """Whom the accounts' names mean."""
    roles: frozenset[str] = frozenset()
    types: frozenset[AccountType] = frozenset()
    set_by: str
    by_admin: bool
    created: int

    @property
    def rank(self) -> tuple[int, bool, bool, int]:
        """How specific the rule is; compared in order."""
        name = 0 if self.name is None else 1 + self.name.is_exact
        whom = 2 if self.accounts else 1 if self.roles or self.types else 0
        return name, self.kind is not None, self.thing.is_exact, whom

    def fits(self, principal: Principal, operation: Operation, address: Address) -> bool:
        """Whether the rule is about this."""
        if not self.concerns(principal, operation) or not self.thing.matches(address.thing_id):
            return False
        if self.kind is not None and address.kind is not self.kind:
            return False
        return self.name is None or (address.name is not None and self.name.matches(address.name))

    def concerns(self, principal: Principal, operation: Operation) -> bool:
        """Whether it is about this caller and operation, somewhere."""
        if not self.by_admin and principal.role == Role.ADMIN:
            return False
        if self.operations and operation not in self.operations:
            # A call is an invocation that is not queued, so what is said of invoking holds for it.
            called = operation is Operation.CALL_RPC and Operation.INVOKE_ACTION in self.operations
            if not called:
                return False
        return self._is_for(principal)

    def _is_for(self, principal: Principal) -> bool:
        if self.accounts or self.roles or self.types:
            is_named = principal.account in self.accounts and means(self.account_ids, principal)
            return is_named or principal.role in self.roles or principal.type in self.types
        # Everybody, but an account without a role gets nothing that does not name it.
        return self.effect is Effect.DENY or principal.role != Role.NONE


def deciding(rules: Iterable[Rule], principal: Principal, operation: Operation, address: Address) -> Rule | None:
    """The rule that decides, or None where no rule fits."""
    fitting = [rule for rule in rules if rule.fits(principal, operation, address)]
    return max(fitting, key=lambda rule: (rule.rank, rule.effect is Effect.DENY), default=None)
