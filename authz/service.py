"""Rights as Things: `dtw:authz:admin` for admins, `dtw:authz:user` for agents and services about their own Things."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from authz.authorizer import LocalAuthorizer
from authz.documents import RoleDocument, RuleDocument, role_document, rule_document
from authz.explain import Explanation, explain
from authz.policy.sets import plain, set_document
from things.addresses import Address, Kind
from things.decisions import Context
from things.errors import Invalid, NotFound, UnknownAccount
from things.identity import AccountType, Principal
from things.messages import JSONValue, Operation
from things.methods import Input, Method, MethodService, Nothing
from things.parsing import parsed
from things.service_ids import OWN_RIGHTS, RIGHTS
from things.times import parse_time, rfc3339
from things.vocabulary import ServiceType

MAX_TRIED = 1_000

Accounts = Callable[[str], tuple[AccountType, str] | None]
"""Type and role of an account; None if there is none."""

Record = Callable[[str, str, str], None]
"""Note an act for the audit log: act, by whom, on what."""

_Name = Annotated[str, Field(min_length=1, max_length=128)]

_SPOKEN = {
    "invoke": Operation.INVOKE_ACTION,
    "write": Operation.WRITE_PROPERTY,
    "call": Operation.CALL_RPC,
    "publish": Operation.PUBLISH_EVENT,
}
"""Short words for operations, beside their full names."""

_KINDS = {
    Operation.INVOKE_ACTION: Kind.ACTION,
    Operation.CALL_RPC: Kind.ACTION,
    Operation.WRITE_PROPERTY: Kind.PROPERTY,
    Operation.OBSERVE: Kind.PROPERTY,
    Operation.PUBLISH_PROPERTY: Kind.PROPERTY,
    Operation.SUBSCRIBE: Kind.EVENT,
    Operation.PUBLISH_EVENT: Kind.EVENT,
    Operation.PUBLISH_TD: Kind.TD,
    Operation.REMOVE_TD: Kind.TD,
}
"""What a name means where the question does not say."""


class Question(Input):
    """One thing somebody might do; `sender` is an account, or a role and type are given instead."""

    sender: _Name
    operation: _Name
    thing: Annotated[str, Field(max_length=256)] = ""
    name: _Name | None = None
    kind: Annotated[Kind, Field(strict=False)] | None = None
    role: _Name | None = None
    type: Annotated[AccountType, Field(strict=False)] | None = None
    at: _Name | None = None
    payload: JSONValue = None
    binding: Annotated[str, Field(max_length=64)] = ""
    source: Annotated[str, Field(max_length=64)] | None = None
    thing_types: Annotated[list[_Name], Field(default_factory=list, max_length=100)]
    rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    thing_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class _OneRole(Input):
    role: dict[str, JSONValue]


class _ByName(Input):
    name: _Name


class _OneRule(Input):
    rule: dict[str, JSONValue]


class _ByID(Input):
    id: _Name


class _OneSet(Input):
    policy_set: dict[str, JSONValue]


class _SetVersion(_ByID):
    version: Annotated[int, Field(ge=1)] | None = None


class _Try(Input):
    policy_sets: Annotated[list[dict[str, JSONValue]], Field(default_factory=list, max_length=100)]
    without: Annotated[list[_Name], Field(default_factory=list, max_length=100)]
    messages: Annotated[list[dict[str, JSONValue]], Field(min_length=1, max_length=MAX_TRIED)]


class AuthzAdmin(MethodService):
    """Roles, rules and policies: for admins."""

    def __init__(
        self,
        authorizer: LocalAuthorizer,
        *,
        accounts: Accounts,
        clock: Callable[[], int],
        record: Record = lambda _act, _by, _target: None,
    ) -> None:
        self._authorizer = authorizer
        self._accounts = accounts
        self._clock = clock
        self._record = record
        super().__init__(
            RIGHTS,
            Operation.MANAGE,
            [
                Method(name="listRoles", title="List roles", input=Nothing, run=self._list_roles, safe=True),
                Method(name="putRole", title="Create or replace a custom role", input=_OneRole, run=self._put_role),
                Method(
                    name="removeRole",
                    title="Remove a custom role",
                    input=_ByName,
                    run=self._remove_role,
                    output=False,
                ),
                Method(name="listRules", title="List rules", input=Nothing, run=self._list_rules, safe=True),
                Method(name="putRule", title="Create or replace a rule", input=_OneRule, run=self._put_rule),
                Method(name="removeRule", title="Remove a rule", input=_ByID, run=self._remove_rule, output=False),
                Method(name="listPolicySets", title="List policy sets", input=Nothing, run=self._list_sets, safe=True),
                Method(name="getPolicySet", title="Read a policy set", input=_SetVersion, run=self._get_set, safe=True),
                Method(name="putPolicySet", title="Activate a policy set", input=_OneSet, run=self._put_set),
                Method(
                    name="removePolicySet",
                    title="Deactivate a policy set",
                    input=_ByID,
                    run=self._remove_set,
                    output=False,
                ),
                Method(name="tryPolicies", title="Try policies on messages", input=_Try, run=self._try, safe=True),
                Method(name="reload", title="Read policy files again", input=Nothing, run=self._reload),
                Method(name="explain", title="Explain a decision", input=Question, run=self._explain, safe=True),
            ],
            type_=ServiceType.RIGHTS_ADMINISTRATION,
            title="Rights",
            description="Roles, rules and policies of this installation.",
        )

    async def _list_roles(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return {"items": [role_document(role) for role in self._authorizer.roles]}

    async def _put_role(self, given: _OneRole, principal: Principal) -> JSONValue:
        document = parsed(RoleDocument, given.role)
        await self._authorizer.put_role(document)
        self._record("role-defined", principal.account, document.name)
        return role_document(document.rights())

    async def _remove_role(self, given: _ByName, principal: Principal) -> JSONValue:
        await self._authorizer.remove_role(given.name)
        self._record("role-removed", principal.account, given.name)
        return None

    async def _list_rules(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return {"items": [rule_document(rule) for rule in self._authorizer.rules]}

    async def _put_rule(self, given: _OneRule, principal: Principal) -> JSONValue:
        return await _put_rule(self._authorizer, given.rule, principal, self._record)

    async def _remove_rule(self, given: _ByID, principal: Principal) -> JSONValue:
        await self._authorizer.remove_rule(given.id, principal)
        self._record("rule-removed", principal.account, given.id)
        return None

    async def _list_sets(self, _given: Nothing, _principal: Principal) -> JSONValue:
        documents = self._authorizer.policy_sets.documents
        return {
            "problem": self._authorizer.problem,
            "items": [
                {
                    "id": document.id,
                    "version": document.version,
                    "enabled": document.enabled,
                    "priority": document.priority,
                    "description": document.description,
                    "earlier": list(self._authorizer.folder.versions(document.id)),
                }
                for document in documents.values()
            ],
        }

    async def _get_set(self, given: _SetVersion, _principal: Principal) -> JSONValue:
        document = self._authorizer.policy_sets.documents.get(given.id)
        if given.version is not None and (document is None or document.version != given.version):
            document = self._authorizer.folder.earlier(set_id_of(given.id), given.version)
        if document is None:
            raise NotFound(f"no policy set {given.id[:64]!r}")
        return plain(document)

    async def _put_set(self, given: _OneSet, principal: Principal) -> JSONValue:
        document = await self._authorizer.put_policy_set(set_document(given.policy_set))
        self._record("policy-activated", principal.account, f"{document.id} {document.version}")
        return {"id": document.id, "version": document.version}

    async def _remove_set(self, given: _ByID, principal: Principal) -> JSONValue:
        await self._authorizer.remove_policy_set(set_id_of(given.id))
        self._record("policy-removed", principal.account, given.id)
        return None

    async def _try(self, given: _Try, _principal: Principal) -> JSONValue:
        """What would be decided if these sets took the place of the active ones of the same ids, and what is now."""
        documents = {
            name: document
            for name, document in self._authorizer.policy_sets.documents.items()
            if name not in given.without
        }
        documents |= {(document := set_document(raw)).id: document for raw in given.policy_sets}
        trial = self._authorizer.tried(documents)
        items: list[JSONValue] = []
        for message in given.messages:
            question = parsed(Question, message)
            then, now = self._answered(trial, question), self._answered(self._authorizer, question)
            items.append(
                {
                    "allowed": then.decision.allowed,
                    "rule": then.decision.rule,
                    "obligations": list(then.decision.obligations),
                    "changed": then.decision.allowed is not now.decision.allowed,
                }
            )
        return {"items": items}

    async def _reload(self, _given: Nothing, principal: Principal) -> JSONValue:
        await self._authorizer.reload()
        self._record("policies-reloaded", principal.account, self._authorizer.problem or "")
        return {"problem": self._authorizer.problem}

    async def _explain(self, given: Question, _principal: Principal) -> JSONValue:
        return self._answered(self._authorizer, given).document()

    def _answered(self, authorizer: LocalAuthorizer, question: Question) -> Explanation:
        known = self._accounts(question.sender)
        if known is None and (question.role is None or question.type is None):
            raise UnknownAccount(question.sender[:64])
        type_, role = known or (AccountType.CONSUMER, "none")
        principal = Principal(
            account=question.sender,
            type=question.type or type_,
            role=question.role or role,
            account_id=self._authorizer.identity_of(question.sender),
        )
        return answered(authorizer, principal, question, self._clock())


class AuthzUser(MethodService):
    """Rules of agents and services about their own Things, and everybody's own rights explained."""

    def __init__(
        self,
        authorizer: LocalAuthorizer,
        *,
        clock: Callable[[], int],
        record: Record = lambda _act, _by, _target: None,
    ) -> None:
        self._authorizer = authorizer
        self._clock = clock
        self._record = record
        super().__init__(
            OWN_RIGHTS,
            Operation.READ,
            [
                Method(name="listRules", title="List one's rules", input=Nothing, run=self._list_rules, safe=True),
                Method(name="putRule", title="Set a rule about one's own Things", input=_OneRule, run=self._put_rule),
                Method(name="removeRule", title="Remove one's rule", input=_ByID, run=self._remove_rule, output=False),
                Method(name="explain", title="Explain what one may do", input=Question, run=self._explain, safe=True),
            ],
            type_=ServiceType.OWN_RIGHTS,
            title="My rights",
            description="What the caller may do, and rules about the caller's own Things.",
        )

    async def _list_rules(self, _given: Nothing, principal: Principal) -> JSONValue:
        own = [rule for rule in self._authorizer.rules if rule.set_by == principal.account]
        return {"items": [rule_document(rule) for rule in own]}

    async def _put_rule(self, given: _OneRule, principal: Principal) -> JSONValue:
        return await _put_rule(self._authorizer, given.rule, principal, self._record)

    async def _remove_rule(self, given: _ByID, principal: Principal) -> JSONValue:
        await self._authorizer.remove_rule(given.id, principal)
        self._record("rule-removed", principal.account, given.id)
        return None

    async def _explain(self, given: Question, principal: Principal) -> JSONValue:
        return answered(self._authorizer, principal, given, self._clock()).document()


def answered(authorizer: LocalAuthorizer, principal: Principal, question: Question, now: int) -> Explanation:
    """The decision a question asks for, explained; the sender it names is not looked at."""
    word = question.operation.lower()
    try:
        operation = _SPOKEN.get(word) or Operation(word)
    except ValueError as error:
        known = ", ".join(sorted({*_SPOKEN, *Operation}))
        raise Invalid(f"there is no operation {question.operation[:64]!r}; known: {known}") from error
    kind = question.kind or (None if question.name is None else _KINDS.get(operation))
    context = Context(
        now=now if question.at is None else parse_time(question.at),
        payload=question.payload,
        binding=question.binding,
        source=question.source,
        thing_types=tuple(question.thing_types) or authorizer.types_of(question.thing),
        counters={"account": question.rate, "thing": question.thing_rate},
    )
    return explain(authorizer, principal, operation, Address(question.thing, kind, question.name), context)


def set_id_of(text: str) -> str:
    """`text` if it can name a policy set, and so a file; raises NotFound."""
    if not text or not all(character.isascii() and (character.isalnum() or character == "-") for character in text):
        raise NotFound(f"no policy set {text[:64]!r}")
    return text


async def _put_rule(
    authorizer: LocalAuthorizer, document: dict[str, JSONValue], principal: Principal, record: Record
) -> JSONValue:
    rule = await authorizer.put_rule(parsed(RuleDocument, document), principal)
    record("rule-set", principal.account, rule.rule_id)
    return {**rule_document(rule), "created": rfc3339(rule.created)}
