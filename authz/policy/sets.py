"""Policy sets as documents, and how their verdicts combine.

    set → policies → rules; each may have a target (a condition), a priority and obligations

`blockOverrides`: one block decides, else one allow. `allowOverrides`: the reverse. `firstApplicable`: the first that
says anything, by priority (higher first), then by place. What no rule speaks of is not applicable: rules and roles
decide. Between sets the higher priority decides; among equal ones a block does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from authz.documents import RULE_ID, Document
from authz.naming import Bound, Meant, means
from authz.policy.conditions import Condition, all_of, compiled
from authz.policy.facts import Facts, Moment
from things.decisions import CONFIRM, LOG, Context
from things.errors import Invalid, Problem
from things.messages import JSONValue
from things.parsing import parsed

OBLIGATIONS = frozenset({LOG, CONFIRM})
MAX_SETS = 100
MAX_RULES = 1_000
"""Of all active sets together, counted where they are used."""


class Combining(StrEnum):
    BLOCK_OVERRIDES = "blockOverrides"
    ALLOW_OVERRIDES = "allowOverrides"
    FIRST_APPLICABLE = "firstApplicable"


class Verdict(StrEnum):
    ALLOW = "allow"
    BLOCK = "block"


class NeedsContext(Exception):
    """A rule that counts cannot be judged before there is a message."""


class _RuleDocument(Document):
    id: Annotated[str, Field(pattern=RULE_ID)]
    effect: Verdict
    target: JSONValue = None
    condition: JSONValue = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    obligations: Annotated[tuple[str, ...], Field(max_length=10)] = ()
    description: Annotated[str, Field(max_length=1_000)] = ""


class _PolicyDocument(Document):
    id: Annotated[str, Field(pattern=RULE_ID)]
    combining: Combining = Combining.BLOCK_OVERRIDES
    target: JSONValue = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    obligations: Annotated[tuple[str, ...], Field(max_length=10)] = ()
    description: Annotated[str, Field(max_length=1_000)] = ""
    rules: Annotated[list[_RuleDocument], Field(min_length=1, max_length=MAX_RULES)]


class _Use(Document):
    use: Annotated[str, Field(pattern=RULE_ID)]


class SetDocument(Document):
    """`{"v":1,"id","version","enabled","combining","priority","target","obligations","policies":[policy or
    {"use": id of another set}]}`. A set with `enabled` false speaks only where another uses it."""

    v: Annotated[int, Field(ge=1, le=1)] = 1
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    version: Annotated[int, Field(ge=1)] = 1
    enabled: bool = True
    combining: Combining = Combining.BLOCK_OVERRIDES
    target: JSONValue = None
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000)] = 0
    obligations: Annotated[tuple[str, ...], Field(max_length=10)] = ()
    description: Annotated[str, Field(max_length=1_000)] = ""
    policies: Annotated[list[_PolicyDocument | _Use], Field(min_length=1, max_length=100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What policies say: a verdict, the path of the rule that gave it, and duties."""

    verdict: Verdict
    rule: str
    obligations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    rule: str
    priority: int
    applies: Condition
    verdict: Verdict
    obligations: tuple[str, ...]

    def outcome(self, facts: Facts, unknown: Verdict | None) -> Outcome | None:
        truth = self.applies(facts)
        if truth is None:
            if unknown is None:
                raise NeedsContext
            truth = self.verdict is unknown
        return Outcome(verdict=self.verdict, rule=self.rule, obligations=self.obligations) if truth else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    rule: str
    priority: int
    combining: Combining
    applies: Condition
    members: "tuple[_Leaf | _Group, ...]"
    obligations: tuple[str, ...]
    meant: Bound | None = None
    """Whom the names in it mean; None within a set, which says so for all of it."""

    def outcome(self, facts: Facts, unknown: Verdict | None) -> Outcome | None:
        if self.meant is not None and facts.is_namesake is means(self.meant, facts.principal):
            facts = replace(facts, is_namesake=not facts.is_namesake)
        truth = self.applies(facts)
        if truth is False:
            return None
        if truth is None and unknown is None:
            raise NeedsContext
        found = _combined(self.combining, self.members, facts, unknown)
        if found is None or (truth is None and found.verdict is not unknown):
            return None
        return Outcome(verdict=found.verdict, rule=found.rule, obligations=_merged(found.obligations, self.obligations))


class PolicySets:
    """The active sets, compiled. Immutable: a change makes another one."""

    def __init__(self, documents: Mapping[str, SetDocument], meant: Mapping[str, Meant] | None = None) -> None:
        """`meant` says whom the names in each set mean; without it, whoever has them. Raises Invalid, naming set and
        place: unknown attributes, operators or obligations, unknown or circular use, too many."""
        if len(documents) > MAX_SETS:
            raise Invalid(f"at most {MAX_SETS} policy sets can be active")
        self.documents = dict(documents)
        self._meant = meant or {}
        self._rules = 0
        groups = [
            self._set(document.id, ()) for document in documents.values()
        ]  # disabled ones too: their mistakes are reported at once
        active = [group for group in groups if self.documents[group.rule].enabled]
        self._levels = [
            tuple(group for group in active if group.priority == priority)
            for priority in sorted({group.priority for group in active}, reverse=True)
        ]

    def outcome(self, facts: Facts, *, unknown: Verdict | None = None) -> Outcome | None:
        """What the sets say. Raises NeedsContext if that hangs on what `facts` do not tell, unless it is said which
        rules count where it is unknown whether they apply: those that block are the cautious answer."""
        for level in self._levels:
            found = _combined(Combining.BLOCK_OVERRIDES, level, facts, unknown)
            if found is not None:
                return found
        return None

    def _set(self, set_id: str, path: tuple[str, ...]) -> _Group:
        document = self.documents[set_id]
        members: list[_Group] = []
        for index, member in enumerate(document.policies):
            place = f"/{set_id}/policies/{index}"
            if isinstance(member, _Use):
                if member.use not in self.documents:
                    raise _wrong(f"{place}/use", f"there is no policy set {member.use!r}")
                if member.use in (*path, set_id):
                    circle = " → ".join((*path, set_id, member.use))
                    raise _wrong(f"{place}/use", f"policy sets use each other in a circle: {circle}")
                members.append(self._set(member.use, (*path, set_id)))
            else:
                members.append(self._policy(member, set_id, place))
        return _Group(
            rule=set_id,
            priority=document.priority,
            combining=document.combining,
            applies=_applies(document.target, None, f"/{set_id}"),
            members=_ordered(members),
            obligations=_obligations(document.obligations, f"/{set_id}"),
            meant=self._meant[set_id].accounts if set_id in self._meant else {},
        )

    def _policy(self, document: _PolicyDocument, set_id: str, place: str) -> _Group:
        self._rules += len(document.rules)
        if self._rules > MAX_RULES:
            raise _wrong(place, f"at most {MAX_RULES} rules can be active")
        leaves = [
            _Leaf(
                rule=f"policy {set_id}/{document.id}/{rule.id}",
                priority=rule.priority,
                applies=_applies(rule.target, rule.condition, f"{place}/rules/{index}"),
                verdict=rule.effect,
                obligations=_obligations(rule.obligations, f"{place}/rules/{index}"),
            )
            for index, rule in enumerate(document.rules)
        ]
        return _Group(
            rule=f"{set_id}/{document.id}",
            priority=document.priority,
            combining=document.combining,
            applies=_applies(document.target, None, place),
            members=_ordered(leaves),
            obligations=_obligations(document.obligations, place),
        )


def plain(document: SetDocument) -> dict[str, JSONValue]:
    """A set as it is written and listed."""
    return document.model_dump(mode="json", by_alias=True, exclude_defaults=False)


def set_document(document: object) -> SetDocument:
    """`document` as a policy set; its conditions are checked when sets are compiled. Raises Invalid."""
    return parsed(SetDocument, document)


def with_context(facts: Facts, context: Context | Moment) -> Facts:
    return replace(facts, context=context)


def _combined(
    combining: Combining, members: "Sequence[_Leaf | _Group]", facts: Facts, unknown: Verdict | None
) -> Outcome | None:
    if combining is Combining.FIRST_APPLICABLE:
        for member in members:
            found = member.outcome(facts, unknown)
            if found is not None:
                return found
        return None
    wins = Verdict.BLOCK if combining is Combining.BLOCK_OVERRIDES else Verdict.ALLOW
    outcomes = [found for member in members if (found := member.outcome(facts, unknown)) is not None]
    if not outcomes:
        return None
    deciding = [found for found in outcomes if found.verdict is wins] or outcomes
    duties = _merged(*(found.obligations for found in deciding))
    return Outcome(verdict=deciding[0].verdict, rule=deciding[0].rule, obligations=duties)


def _applies(target: JSONValue, condition: JSONValue, place: str) -> Condition:
    parts = []
    if target is not None:
        parts.append(compiled(target, f"{place}/target"))
    if condition is not None:
        parts.append(compiled(condition, f"{place}/condition"))
    return parts[0] if len(parts) == 1 else all_of(parts)


def _obligations(names: Sequence[str], place: str) -> tuple[str, ...]:
    for name in names:
        if name not in OBLIGATIONS:
            raise _wrong(f"{place}/obligations", f"there is no obligation {name[:64]!r}; known: confirm, log")
    return tuple(dict.fromkeys(names))


def _ordered(members: "Sequence[_Leaf] | Sequence[_Group]") -> "tuple[_Leaf | _Group, ...]":
    return tuple(sorted(members, key=lambda member: -member.priority))


def _merged(*obligations: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in obligations for name in names))


def _wrong(pointer: str, detail: str) -> Invalid:
    return Invalid(f"{pointer}: {detail}", [Problem(pointer=pointer, detail=detail)])
