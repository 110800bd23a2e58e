"""What each stage but the policies says of one question: limits, the most specific rule, and the role."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from authz.limits import barrier, is_repair
from authz.policy.facts import Facts
from authz.rights import Rights
from authz.roles import RoleRights, Scope, grant_for
from authz.rules import Effect, deciding
from things.decisions import Decision
from things.identity import AccountType
from things.messages import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """`limit` and `rule` are None where they say nothing; a role always speaks. Policies have no say in a repair."""

    limit: Decision | None
    is_repair: bool
    rule: Decision | None
    role: Decision


def stages_of(
    facts: Facts,
    *,
    rights: Rights,
    role: RoleRights,
    problem: str | None,
    account_type: Callable[[str], AccountType | None],
) -> Stages:
    """The stages of one question; with a `problem`, limits deny everything but the repair."""
    principal, operation, address = facts.principal, facts.operation, facts.address
    wall = barrier(principal, operation, address)
    repair = is_repair(principal, operation, address)
    if wall is None and problem is not None and not repair:
        wall = f"closed: {problem}"
    rule = deciding(rights.rules.values(), principal, operation, address)
    grant = grant_for(role, principal, operation, address, account_type)
    return Stages(
        limit=None if wall is None else Decision(allowed=False, rule=wall),
        is_repair=repair,
        rule=None if rule is None else Decision(allowed=rule.effect is Effect.ALLOW, rule=f"rule {rule.rule_id}"),
        role=_by_role(principal.role, operation, grant.scope if grant else None),
    )


@lru_cache(maxsize=1_024)
def _by_role(role: str, operation: Operation, scope: Scope | None) -> Decision:
    """What a role says; one object for the many decisions that are remembered."""
    says = f"does not allow {operation}" if scope is None else f"allows {operation} on {scope}"
    return Decision(allowed=scope is not None, rule=f"role {role} {says}")
