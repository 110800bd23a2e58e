"""Custom roles and rules as documents: checked where they enter, printed as they were meant."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from authz.naming import Bound
from authz.patterns import RulePattern
from authz.roles import BUILT_IN, LOOKING, OPERATING, Grant, RoleRights, Scope
from authz.rules import Effect, Rule
from things.addresses import Kind
from things.errors import Invalid
from things.identity import AccountType, Principal, Role
from things.messages import JSONValue, Operation
from things.names import checked_account

ROLE_NAME = r"^[a-z][a-z0-9-]{0,31}$"
RULE_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_GRANTABLE = LOOKING | OPERATING | {Operation.WRITE_PROPERTY, Operation.PUBLISH_TD, Operation.REMOVE_TD}
"""What a custom role may add by itself. Managing and publishing come with a built-in base."""

_BASES = frozenset({Role.NONE, Role.VIEWER, Role.OPERATOR, Role.MANAGER, Role.AGENT, Role.SERVICE})


class Document(BaseModel):
    """Members in camelCase; unknown ones are refused, since a misspelt restriction would open something."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)


class GrantDocument(Document):
    operations: Annotated[list[Operation], Field(min_length=1, max_length=20)]
    scope: Scope = Scope.ANY
    things: Annotated[list[str], Field(max_length=100)] = []
    names: Annotated[list[str], Field(max_length=100)] = []

    @field_validator("operations")
    @classmethod
    def _can_be_granted(cls, operations: list[Operation]) -> list[Operation]:
        for operation in operations:
            if operation not in _GRANTABLE:
                raise ValueError(f"{operation} cannot be granted singly; take it from a base role")
        return operations

    @field_validator("things", "names")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        return [_pattern(text) for text in patterns]


class RoleDocument(Document):
    """`{"name","base","grants":[{"operations","scope","things","names"}],"description"}`."""

    name: Annotated[str, Field(pattern=ROLE_NAME)]
    base: Role = Role.NONE
    grants: Annotated[list[GrantDocument], Field(max_length=50)] = []
    description: Annotated[str, Field(max_length=256)] = ""

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in BUILT_IN:
            raise ValueError(f"{name} is a built-in role")
        return name

    @field_validator("base")
    @classmethod
    def _can_be_built_on(cls, base: Role) -> Role:
        if base not in _BASES:
            raise ValueError("a role that rules over accounts is the admin role itself")
        return base

    def rights(self) -> RoleRights:
        own = (
            Grant(
                operations=frozenset(grant.operations),
                # A directory entry is registered; a twin is published by its agent alone.
                scope=grant.scope,
                things=tuple(RulePattern.parse(text) for text in grant.things),
                names=tuple(RulePattern.parse(text) for text in grant.names),
            )
            for grant in self.grants
        )
        return RoleRights(
            name=self.name,
            grants=(*BUILT_IN[self.base].grants, *own),
            base=self.base,
            description=self.description,
        )


class RuleDocument(Document):
    """`{"id","effect","thing","kind","name","operations","accounts","roles","types"}`; only id, effect and thing are
    needed."""

    id: Annotated[str, Field(pattern=RULE_ID)]
    effect: Effect
    thing: str
    kind: Kind | None = None
    name: str | None = None
    operations: Annotated[list[Operation], Field(max_length=20)] = []
    accounts: Annotated[list[str], Field(max_length=200)] = []
    roles: Annotated[list[str], Field(max_length=50)] = []
    types: Annotated[list[AccountType], Field(max_length=3)] = []

    @field_validator("thing", "name")
    @classmethod
    def _is_pattern(cls, text: str | None) -> str | None:
        return None if text is None else _pattern(text)

    @field_validator("accounts")
    @classmethod
    def _are_accounts(cls, names: list[str]) -> list[str]:
        try:
            return [checked_account(name) for name in names]
        except Invalid as error:
            raise ValueError(error.detail) from error

    def rule(self, principal: Principal, now: int, account_ids: Bound) -> Rule:
        return Rule(
            rule_id=self.id,
            effect=self.effect,
            thing=RulePattern.parse(self.thing),
            kind=self.kind,
            name=None if self.name is None else RulePattern.parse(self.name),
            operations=frozenset(self.operations),
            accounts=frozenset(self.accounts),
            account_ids=account_ids,
            roles=frozenset(self.roles),
            types=frozenset(self.types),
            set_by=principal.account,
            by_admin=principal.role == Role.ADMIN,
            created=now,
        )


class StoredRule(RuleDocument):
    """A rule as it is kept."""

    set_by: str
    by_admin: bool
    created: int
    account_ids: Annotated[dict[str, str], Field(alias="accountIDs")] = {}
    """Of an earlier version if they are missing: the accounts that have the names."""

    def kept(self) -> Rule:
        principal = Principal(
            account=self.set_by, type=AccountType.CONSUMER, role=Role.ADMIN if self.by_admin else Role.NONE
        )
        return self.rule(principal, self.created, self.account_ids)


def role_document(rights: RoleRights) -> dict[str, JSONValue]:
    """A custom role as its document, a built-in one in the same form."""
    inherited = len(BUILT_IN[rights.base].grants) if rights.base else 0
    return {
        "name": rights.name,
        "base": rights.base,
        "description": rights.description,
        "grants": [
            {
                "operations": [str(operation) for operation in sorted(grant.operations)],
                "scope": str(grant.scope),
                "things": [str(pattern) for pattern in grant.things],
                "names": [str(pattern) for pattern in grant.names],
            }
            for grant in rights.grants[inherited:]
        ],
    }


def rule_document(rule: Rule) -> dict[str, JSONValue]:
    """A rule as it is listed and kept."""
    return {
        "id": rule.rule_id,
        "effect": str(rule.effect),
        "thing": str(rule.thing),
        "kind": None if rule.kind is None else str(rule.kind),
        "name": None if rule.name is None else str(rule.name),
        "operations": _sorted(rule.operations),
        "accounts": _sorted(rule.accounts),
        "accountIDs": dict(sorted(rule.account_ids.items())),
        "roles": _sorted(rule.roles),
        "types": _sorted(rule.types),
        "setBy": rule.set_by,
        "byAdmin": rule.by_admin,
        "created": rule.created,
    }


def _pattern(text: Any) -> str:
    try:
        return str(RulePattern.parse(text))
    except Invalid as error:
        raise ValueError(error.detail) from error


def _sorted(members: Sequence[str] | frozenset[Any]) -> list[JSONValue]:
    return [str(member) for member in sorted(members)]
