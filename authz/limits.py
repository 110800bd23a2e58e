"""What no role, rule or policy can lift, and what no policy can take away.

The first keeps identities honest: nobody publishes for another's Things, consumers own none, and accounts, rights and
the runtime's own topics are the admins'. The second keeps the door open: an admin can always repair the rights.
"""

from authz.roles import LOOKING, PUBLISHING, REGISTERING, owner_of
from things.addresses import TWIN_PREFIX, Address
from things.identity import AccountType, Principal, Role
from things.messages import Operation
from things.service_ids import ACCOUNTS, RIGHTS, RUNTIME

_GUARDED = frozenset({ACCOUNTS, RIGHTS, RUNTIME})


def barrier(principal: Principal, operation: Operation, address: Address) -> str | None:
    """Why the operation is out of the question, or None."""
    thing_id = address.thing_id
    if operation in PUBLISHING or operation is Operation.REPORT_STATUS:
        if principal.type is AccountType.CONSUMER and (operation not in REGISTERING or owner_of(thing_id) is not None):
            return "limit: consumers publish nothing"
        owner = owner_of(thing_id)
        if owner is not None and owner != principal.account:
            return "limit: only its own agent publishes a Thing"
    if thing_id.startswith("$"):
        return None if principal.role == Role.ADMIN else "limit: the runtime's own topics are for admins"
    if is_guarded(thing_id) and operation not in LOOKING and principal.role != Role.ADMIN:
        return "limit: accounts and rights are for admins"
    if thing_id.startswith(TWIN_PREFIX) and not all(thing_id[len(TWIN_PREFIX) :].partition(":")):
        return "limit: not a twin id"
    return None


def is_guarded(thing_id: str) -> bool:
    """Whether a Thing rules over accounts, rights or the runtime itself."""
    return thing_id in _GUARDED


def is_repair(principal: Principal, operation: Operation, address: Address) -> bool:
    """Whether this is an admin setting rights right, which policies cannot stop."""
    return principal.role == Role.ADMIN and operation is Operation.MANAGE and address.thing_id == RIGHTS
