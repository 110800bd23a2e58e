"""Whether anything could be allowed where agent, Thing or name are open: by this, wildcard subscriptions are admitted.

The stages of a decision, each asked for the best that may come: what is open may turn out to fit an allow, and not to
fit a deny. What a subscriber sees is decided for each message; this spares only those who could never see anything.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from authz.patterns import RulePattern
from authz.policy.conditions import Truth
from authz.policy.facts import UNKNOWN, Facts, Missing
from authz.policy.judging import decision_of
from authz.policy.sets import NeedsContext, PolicySets, Verdict
from authz.roles import Grant, RoleRights, is_in_scope
from authz.rules import Effect, Rule
from things.addresses import TWIN_PREFIX
from things.identity import AccountType
from things.messages import JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect(Facts):
    """Decisions of which some levels are open: `agent` or `thing` are None, or the address has no name."""

    agent: str | None
    thing: str | None

    @property
    def has_thing(self) -> bool:
        return self.agent is not None and self.thing is not None

    def value(self, attribute: str) -> JSONValue | Missing:
        is_open = {"agent": self.agent is None, "thing": not self.has_thing, "name": self.address.name is None}
        return UNKNOWN if is_open.get(attribute) else Facts.value(self, attribute)


def could_allow(
    prospect: Prospect,
    *,
    sets: PolicySets,
    rules: Iterable[Rule],
    role: RoleRights,
    account_type: Callable[[str], AccountType | None],
) -> bool:
    """Whether any of the decisions could be an allow; too often yes where levels hang together, never no in error."""
    by_policies = _policies_could(prospect, sets)
    if by_policies is not None:
        return by_policies
    rule = _best(rules, prospect)
    if rule is not None:
        return rule.effect is Effect.ALLOW
    return any(_covers(grant, prospect, account_type) for grant in role.grants)


def _policies_could(prospect: Prospect, sets: PolicySets) -> Truth:
    """None where policies may say nothing."""
    try:
        outcome, is_certain = sets.outcome(prospect), True
    except NeedsContext:
        outcome, is_certain = sets.outcome(prospect, unknown=Verdict.ALLOW), False
    if outcome is None:
        return None
    if outcome.verdict is Verdict.BLOCK or decision_of(outcome, prospect.operation).allowed:
        return outcome.verdict is Verdict.ALLOW
    return False if is_certain else None


def _best(rules: Iterable[Rule], prospect: Prospect) -> Rule | None:
    fitting = [
        rule
        for rule in rules
        if (fits := _fits(rule, prospect)) is True or (fits is None and rule.effect is Effect.ALLOW)
    ]
    return max(fitting, key=lambda rule: (rule.rank, rule.effect is Effect.DENY), default=None)


def _fits(rule: Rule, prospect: Prospect) -> Truth:
    if not rule.concerns(prospect.principal, prospect.operation):
        return False
    if rule.kind is not None and rule.kind is not prospect.address.kind:
        return False
    thing = _matches(rule.thing, prospect.address.thing_id if prospect.has_thing else None)
    if thing is None and prospect.agent is not None and not rule.thing.could_begin(_twins_of(prospect.agent)):
        thing = False
    name = True if rule.name is None else _matches(rule.name, prospect.address.name)
    return False if thing is False or name is False else None if thing is None or name is None else True


def _matches(pattern: RulePattern, text: str | None) -> Truth:
    if text is None:
        return True if pattern.text == "*" else None
    return pattern.matches(text)


def _covers(grant: Grant, prospect: Prospect, account_type: Callable[[str], AccountType | None]) -> bool:
    if prospect.operation not in grant.operations:
        return False
    # A scope looks at the agent alone.
    agent = prospect.agent
    if agent is not None and not is_in_scope(grant.scope, prospect.principal, _twins_of(agent), account_type):
        return False
    address = prospect.address
    return _any_matches(grant.things, address.thing_id if prospect.has_thing else None) and _any_matches(
        grant.names, address.name
    )


def _any_matches(patterns: Iterable[RulePattern], text: str | None) -> bool:
    patterns = tuple(patterns)
    return not patterns or any(_matches(pattern, text) is not False for pattern in patterns)


def _twins_of(agent: str) -> str:
    return f"{TWIN_PREFIX}{agent}:"
