"""What each role may do: the built-in roles as one table, and custom roles built on them.

A role is a list of grants; what no grant allows is denied. A grant is a set of operations on a scope of Things, which
may be narrowed to Things and names by pattern. Limits that no role, rule or policy can lift stand apart in `limits`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from authz.patterns import RulePattern
from things.addresses import TWIN_PREFIX, Address
from things.identity import AccountType, Principal, Role
from things.messages import Operation

LOOKING = frozenset({Operation.READ, Operation.OBSERVE, Operation.SUBSCRIBE, Operation.HISTORY})
PUBLISHING = frozenset({Operation.PUBLISH_EVENT, Operation.PUBLISH_PROPERTY, Operation.PUBLISH_TD, Operation.REMOVE_TD})
OPERATING = frozenset({Operation.INVOKE_ACTION, Operation.CALL_RPC, Operation.CANCEL})
REGISTERING = frozenset({Operation.PUBLISH_TD, Operation.REMOVE_TD})
SENDING = frozenset({Operation.SEND})
GUEST = "guest"
"""The role of runtimes that an open messaging node admits without an account."""


class Scope(StrEnum):
    """Which Things a grant is about."""

    ANY = "any"
    OWN = "own"
    """Twins of the caller's own account."""
    SERVICES = "services"
    """Twins of service accounts, the built-in ones among them."""
    ENTRIES = "entries"
    """Directory entries that are not twins."""
    ANSWERS = "answers"
    """No Thing in particular: statuses of requests the caller was asked to carry out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Some operations on some Things; empty `things` and `names` do not narrow."""

    operations: frozenset[Operation]
    scope: Scope = Scope.ANY
    things: tuple[RulePattern, ...] = ()
    names: tuple[RulePattern, ...] = ()

    def covers(
        self,
        principal: Principal,
        operation: Operation,
        address: Address,
        account_type: Callable[[str], AccountType | None],
    ) -> bool:
        if operation not in self.operations or not is_in_scope(self.scope, principal, address.thing_id, account_type):
            return False
        if self.things and not any(pattern.matches(address.thing_id) for pattern in self.things):
            return False
        if self.names:
            return address.name is not None and any(pattern.matches(address.name) for pattern in self.names)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRights:
    """One role: its own grants after those of the role it builds on."""

    name: str
    grants: tuple[Grant, ...]
    base: str | None = None
    description: str = ""


_VIEWER = (Grant(operations=LOOKING), Grant(operations=SENDING))
_OPERATOR = (*_VIEWER, Grant(operations=OPERATING))
_MANAGER = (
    *_OPERATOR,
    Grant(operations=frozenset({Operation.WRITE_PROPERTY, Operation.MANAGE})),
    Grant(operations=REGISTERING, scope=Scope.ENTRIES),
)
_PUBLISHER = (
    Grant(operations=PUBLISHING, scope=Scope.OWN),
    Grant(operations=frozenset({Operation.REPORT_STATUS}), scope=Scope.OWN),
    Grant(operations=frozenset({Operation.REPORT_STATUS}), scope=Scope.ANSWERS),
)

BUILT_IN: dict[str, RoleRights] = {
    str(rights.name): rights
    for rights in (
        RoleRights(name=Role.NONE, grants=(), description="may log in and connect"),
        RoleRights(name=GUEST, grants=(Grant(operations=SENDING),), description="exchanges messages on the node only"),
        RoleRights(name=Role.VIEWER, grants=_VIEWER, description="reads, observes, subscribes"),
        RoleRights(name=Role.OPERATOR, grants=_OPERATOR, description="viewer, and invokes actions"),
        RoleRights(name=Role.MANAGER, grants=_MANAGER, description="operator, and writes properties and entries"),
        # What sets an admin apart is in `limits`: accounts, roles, policies and `$SYS` are closed to all others.
        RoleRights(name=Role.ADMIN, grants=_MANAGER, description="manager, and rules over accounts and rights"),
        RoleRights(
            name=Role.AGENT,
            grants=(
                *_PUBLISHER,
                Grant(operations=SENDING),
                Grant(operations=LOOKING, scope=Scope.OWN),
                Grant(operations=LOOKING, scope=Scope.SERVICES),
                Grant(operations=frozenset({Operation.CALL_RPC}), scope=Scope.SERVICES),
            ),
            description="publishes its own Things and calls services",
        ),
        RoleRights(
            name=Role.SERVICE, grants=(*_MANAGER, *_PUBLISHER), description="manager, and publishes its own Things"
        ),
    )
}


def grant_for(
    rights: RoleRights,
    principal: Principal,
    operation: Operation,
    address: Address,
    account_type: Callable[[str], AccountType | None],
) -> Grant | None:
    """The first grant that allows the operation, or None."""
    found = _first(rights.grants, principal, operation, address, account_type)
    if (
        found is not None
        and operation is Operation.CALL_RPC
        and rights.name != Role.AGENT
        and _first(rights.grants, principal, Operation.INVOKE_ACTION, address, account_type) is None
    ):
        # A call is an invocation that is not queued. Agents are the exception: they may call services, not invoke.
        return None
    return found


def owner_of(thing_id: str) -> str | None:
    """The account whose twin `thing_id` is; None if it is not a twin."""
    if not thing_id.startswith(TWIN_PREFIX):
        return None
    return thing_id[len(TWIN_PREFIX) :].partition(":")[0]


def _first(
    grants: Sequence[Grant],
    principal: Principal,
    operation: Operation,
    address: Address,
    account_type: Callable[[str], AccountType | None],
) -> Grant | None:
    for grant in grants:
        if grant.covers(principal, operation, address, account_type):
            return grant
    return None


def is_in_scope(
    scope: Scope, principal: Principal, thing_id: str, account_type: Callable[[str], AccountType | None]
) -> bool:
    """Whether a Thing is one of those that a scope is about."""
    match scope:
        case Scope.ANY:
            return True
        case Scope.OWN:
            return owner_of(thing_id) == principal.account
        case Scope.ENTRIES:
            return thing_id != "" and owner_of(thing_id) is None
        case Scope.ANSWERS:
            return thing_id == ""
        case Scope.SERVICES:
            owner = owner_of(thing_id)
            return owner is not None and account_type(owner) is AccountType.SERVICE
