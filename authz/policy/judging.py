"""From what policies say to a decision: with a context, or open until there is one."""

from authz.policy.facts import Facts, Moment
from authz.policy.sets import NeedsContext, Outcome, PolicySets, Verdict, with_context
from authz.roles import LOOKING, SENDING
from things.decisions import CONFIRM, Context, Decision
from things.messages import Operation

UNASKED = LOOKING | SENDING
"""What is also decided where nobody can be asked for a confirmation, as at each delivery."""


class Open:
    """A decision that hangs on the context: the policies that apply, and what holds where they say nothing."""

    __slots__ = ("_facts", "_sets", "_without")

    def __init__(self, sets: PolicySets, facts: Facts, without: Decision) -> None:
        self._sets = sets
        self._facts = facts
        self._without = without

    def decide(self, context: Context | Moment) -> Decision:
        return judged(self._sets, self._facts, context) or self._without


def judged(sets: PolicySets, facts: Facts, context: Context | Moment) -> Decision | None:
    """What policies decide with this context, cautiously where it does not tell enough; None where they say nothing."""
    facts = with_context(facts, context)
    try:
        outcome = sets.outcome(facts)
    except NeedsContext:
        outcome = sets.outcome(facts, unknown=Verdict.BLOCK)
    return None if outcome is None else decision_of(outcome, facts.operation)


def decision_of(outcome: Outcome, operation: Operation) -> Decision:
    """A verdict of policies as a decision."""
    allowed = outcome.verdict is Verdict.ALLOW
    if allowed and CONFIRM in outcome.obligations and operation in UNASKED:
        return Decision(allowed=False, rule=f"{outcome.rule}, and {operation} cannot be confirmed")
    return Decision(allowed=allowed, rule=outcome.rule, obligations=outcome.obligations)
