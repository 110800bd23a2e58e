"""Why a decision is what it is, in words: every stage, and the rule that decides."""

from dataclasses import dataclass

from authz.authorizer import LocalAuthorizer
from things.addresses import Address
from things.decisions import Context, Decision
from things.identity import Principal
from things.messages import JSONValue, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The decision and what each stage had to say, in the order in which they are asked."""

    decision: Decision
    stages: tuple[tuple[str, str], ...]

    def document(self) -> dict[str, JSONValue]:
        return {
            "allowed": self.decision.allowed,
            "rule": self.decision.rule,
            "obligations": list(self.decision.obligations),
            "stages": [{"stage": stage, "says": says} for stage, says in self.stages],
        }

    def __str__(self) -> str:
        decision = self.decision
        verdict = "denied" if not decision.allowed else "allowed" if decision.is_free else "allowed once confirmed"
        lines = [f"{verdict}: {self.decision.rule}"]
        if self.decision.obligations:
            lines.append(f"  obliges to: {', '.join(self.decision.obligations)}")
        lines += [f"  {stage}: {says}" for stage, says in self.stages]
        return "\n".join(lines)


def explain(
    authorizer: LocalAuthorizer,
    principal: Principal,
    operation: Operation,
    address: Address,
    context: Context | None = None,
) -> Explanation:
    """The decision that `authorizer` makes, explained; remembers nothing."""
    steps = authorizer.steps(principal, operation, address, context)
    decision = next(said for _, said in steps if said is not None)
    stages = tuple(
        (stage, "nothing" if said is None else f"{'allow' if said.allowed else 'deny'} ({said.rule})")
        for stage, said in steps
    )
    return Explanation(decision=decision, stages=stages)
