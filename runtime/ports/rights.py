"""Who somebody is, and what they may do."""

from typing import Protocol

from things.addresses import Address, Kind
from things.decisions import Context, Decision
from things.identity import Principal, ShownCertificate
from things.messages import Message, Operation
from things.records import LedgerRow


class Authenticator(Protocol):
    """Turns credentials into principals. Raises Unauthenticated (never telling which half was wrong), RateLimited."""

    async def login(self, account: str, secret: str, *, source: str | None) -> Principal:
        """By password, or by a token given in its place (it must be this account's)."""
        ...

    def verify(self, token: str) -> Principal:
        """By access or long-lived token; cached. Raises TokenInvalid, TokenExpired."""
        ...

    async def by_certificate(self, certificate: ShownCertificate) -> Principal:
        """By a TLS client certificate that the local CA signed and that is in time."""
        ...

    def identity_of(self, account: str) -> str | None:
        """The id of the account that has a name now; None if it is free."""
        ...

    def standing(self, principal: Principal, *, after_logout: bool = False) -> Principal | None:
        """Who came with this principal as its account stands now, however long ago that was; None if its account,
        login or token is gone. For what outlives a connection, a restart included. With `after_logout` the login may
        have ended, if the password it began with is still good."""
        ...


class Authorizer(Protocol):
    """The one decision function. Synchronous, default deny; static rules are cached."""

    version: int
    """Rises with every change of roles, rules and policies, so that others may cache decisions by it."""

    @property
    def is_conditional(self) -> bool:
        """Whether any decision may hang on a context; where none does, none needs to be made."""
        ...

    def is_uniform(self, principal: Principal, thing_id: str) -> bool:
        """Whether a principal's rights are the same for all affordances of a Thing, and then those to the Thing as a
        whole. False may also mean that it is not known."""
        ...

    def decide(
        self, principal: Principal, operation: Operation, address: Address, context: Context | None = None
    ) -> Decision: ...

    def could_allow(
        self,
        principal: Principal,
        operation: Operation,
        *,
        agent: str | None,
        thing: str | None,
        kind: Kind,
        name: str | None,
    ) -> bool:
        """Whether any decision could allow it on a twin; None stands for any agent, Thing or name."""
        ...


class Audit(Protocol):
    """What is kept of who did what, for administrators; recording never fails its caller."""

    def requested(self, row: LedgerRow, message: Message) -> None:
        """An action or a property write was accepted."""
        ...

    def called(self, message: Message) -> None:
        """An agent has taken a call."""
        ...

    def confirmed(self, message: Message, rule: str) -> None:
        """A message passed because its sender confirmed what `rule` asked."""
        ...
