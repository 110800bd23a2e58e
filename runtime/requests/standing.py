"""Whether a request that waited may still be handed over: its caller and their rights, as they are by then.

Between its acceptance and its delivery lie moments or a year. The account may be gone, disabled or another one of the
name, what it asked with may have been revoked, its role, a rule or a policy may have changed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from runtime.admission.rate import Rates
from runtime.ports import Authenticator, Authorizer, Directory, LedgerRow
from things.addresses import Address, Kind
from things.decisions import Context
from things.identity import AccountType, Authority, Principal, Role
from things.messages import Operation


@dataclass(slots=True)
class Standing:
    """Judges requests that waited."""

    authenticator: Authenticator
    authorizer: Authorizer
    directory: Directory
    rates: Rates
    clock: Callable[[], int]

    def permits(self, row: LedgerRow) -> bool:
        """Whether its caller might ask for it now. What had to be confirmed was confirmed when it was accepted."""
        authority = row.authority or _of_earlier_version(row)
        principal = self.authenticator.standing(authority.principal, after_logout=True)
        if principal is None:
            return False
        kind = Kind.ACTION if row.operation is Operation.INVOKE_ACTION else Kind.PROPERTY
        address = Address(row.thing_id, kind, row.name)
        context = (
            self._context(row, replace(authority, principal=principal)) if self.authorizer.is_conditional else None
        )
        return self.authorizer.decide(principal, row.operation, address, context).allowed

    def _context(self, row: LedgerRow, authority: Authority) -> Context:
        entry = self.directory.get(row.thing_id)
        return Context(
            now=self.clock(),
            payload=row.input,
            binding=authority.binding,
            source=authority.source,
            thing_types=entry.td.types if entry else (),
            counters=self.rates.counters(authority.principal, row.thing_id),
        )


def _of_earlier_version(row: LedgerRow) -> Authority:
    """Who asked is known by name only; the account of that name stands if it was there already."""
    principal = Principal(
        account=row.caller, type=AccountType.CONSUMER, role=Role.NONE, login_id=f"before:{row.created}"
    )
    return Authority(principal=principal)
