"""How a device gets its account: it asks with its public key, an admin approves (or announced it before), and it gets
its token once it has shown that it holds the private key.

    device → clientID, publicKey                     ← pending, challenge
    admin    approves (compares the fingerprint), or announced clientID and key beforehand
    device → clientID, publicKey, signature          ← approved, token

The signature is over `skep provision {clientID} {challenge}`. A challenge is good once, for ten minutes. A device that
lost the answer asks again: it gets a fresh token and the earlier one ends.

A key is good for an agent that has it: not for another account that took the name, and no more once it was replaced, or
once a token of the account was revoked, for a key fetches tokens.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from authn.accounts import Account, DeviceRequest
from authn.administration import PROVISIONING, Administration, checked_display_name
from authn.audit import Audit
from authn.challenges import Challenges
from authn.publickeys import checked_public_key, fingerprint, is_signed
from authn.register import Register
from authn.throttle import Throttle
from things.errors import BadAddress, Conflict, Forbidden, NotFound, QueueFull
from things.identity import RESERVED_ACCOUNTS, AccountType, Role
from things.messages import JSONValue
from things.names import checked_account

MAX_WAITING = 200
"""Requests of devices nobody has decided on; over it the address that asks for the most devices loses its oldest."""
REQUEST_US = 7 * 86_400 * 1_000_000
"""After a week without a decision a request is forgotten."""
LABEL = "provisioned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a device is answered; `token` is there once it is approved and has signed."""

    state: str
    account: str
    challenge: str | None = None
    token: str | None = None

    def document(self) -> dict[str, JSONValue]:
        members = {"state": self.state, "clientID": self.account, "challenge": self.challenge, "token": self.token}
        return {name: value for name, value in members.items() if value is not None}


class Provisioning:
    """Device requests and what becomes of them."""

    def __init__(
        self,
        register: Register,
        administration: Administration,
        audit: Audit,
        clock: Callable[[], int],
        monotonic: Callable[[], float],
        throttle: Throttle,
    ) -> None:
        self._register = register
        self._administration = administration
        self._audit = audit
        self._clock = clock
        self._monotonic = monotonic
        self._throttle = throttle
        self._challenges = Challenges(monotonic)

    async def ask(
        self,
        account: str,
        public_key: str,
        *,
        signature: str | None = None,
        challenge: str | None = None,
        display_name: str = "",
        source: str | None,
    ) -> Answer:
        """A device's request, first or repeated. Raises Forbidden (rejected, wrong key or signature), Conflict (the
        account is somebody else's), RateLimited, Invalid."""
        checked_account(account)
        if account in RESERVED_ACCOUNTS:
            raise BadAddress(f"{account!r} is the account of a built-in service")
        self._throttle.charge(f"device {account}"[:64], source)
        key = checked_public_key(public_key)
        shown = checked_display_name(display_name)
        async with self._register.changing():
            request = await self._standing(account, key, shown, source)
        if request.state == "rejected":
            raise Forbidden("this device was rejected")
        if signature is None:
            return Answer(state=request.state, account=account, challenge=self._challenges.make(account))
        if not self._challenges.is_met(account, challenge) or not is_signed(
            key, signature, _signed_text(account, challenge)
        ):
            self._audit.record("device-asked", by=account, outcome="wrong signature", source=source)
            raise Forbidden("the signature does not fit the challenge; ask for a fresh one")
        self._throttle.refund(f"device {account}"[:64], source)
        if request.state != "approved":
            return Answer(state=request.state, account=account, challenge=self._challenges.make(account))
        return Answer(state="approved", account=account, token=await self._token(request, source))

    async def announce(self, account: str, public_key: str, *, display_name: str = "", by: str) -> DeviceRequest:
        """Approve a device before it asks."""
        checked_account(account)
        if account in RESERVED_ACCOUNTS:
            raise BadAddress(f"{account!r} is the account of a built-in service")
        now = self._clock()
        request = DeviceRequest(
            account=account,
            public_key=checked_public_key(public_key),
            state="approved",
            display_name=checked_display_name(display_name),
            created=now,
            updated=now,
        )
        async with self._register.changing():
            self._refuse_foreign(account, request.public_key)
            await self._register.save(request)
        self._audit.record("device-announced", by=by, target=account, details={"key": fingerprint(request.public_key)})
        return request

    async def decide(self, account: str, *, approve: bool, by: str) -> DeviceRequest:
        """Approve or reject a request that stands. Raises NotFound."""
        async with self._register.changing():
            request = self._register.requests.get(account)
            if request is None:
                raise NotFound(f"no device {account[:64]!r} asks to be let in")
            if approve and not self._is_for(request):
                raise Conflict(f"the name {account!r} was taken since this device asked")
            decided = replace(request, state="approved" if approve else "rejected", updated=self._clock())
            await self._register.save(decided)
        act = "device-approved" if approve else "device-rejected"
        self._audit.record(act, by=by, target=account, details={"key": fingerprint(request.public_key)})
        return decided

    async def forget(self, account: str, *, by: str) -> None:
        """Drop a request, decided or not; the device may ask anew."""
        async with self._register.changing():
            if account not in self._register.requests:
                raise NotFound(f"no device {account[:64]!r} asks to be let in")
            with self._audit.recording("device-forgotten", by=by, target=account):
                await self._register.drop_request(account)

    def requests(self) -> list[DeviceRequest]:
        """All of them, oldest first."""
        return sorted(self._register.requests.values(), key=lambda request: request.created)

    async def _standing(self, account: str, key: str, display_name: str, source: str | None) -> DeviceRequest:
        """The request this device made before, or a new one."""
        now = self._clock()
        request = self._register.requests.get(account)
        if request is not None and request.state != "approved" and now - request.updated > REQUEST_US:
            await self._register.drop_request(account)
            request = None
        if request is not None:
            if request.public_key != key:
                self._audit.record("device-asked", by=account, outcome="another key", source=source)
                raise Forbidden("this name was asked for with another key")
            if request.state != "rejected" and not self._is_for(request):
                self._audit.record("device-asked", by=account, outcome="name or key taken", source=source)
                raise Conflict(f"there is already an account {account!r}")
            return request
        existing = self._refuse_foreign(account, key)
        source = None if source is None else source[:64]
        await self._make_room(source, now)
        # An account that was made with this key is one that an admin has approved.
        state = "pending" if existing is None else "approved"
        request = DeviceRequest(
            account=account,
            public_key=key,
            state=state,
            display_name=display_name,
            created=now,
            updated=now,
            source=source,
        )
        await self._register.save(request)
        self._audit.record("device-asked", by=account, source=source, details={"key": fingerprint(key)})
        return request

    async def _make_room(self, source: str | None, now: int) -> None:
        """Let a request from `source` find a place. Raises QueueFull if that address itself has taken the most."""
        waiting = [one for one in self._register.requests.values() if one.state == "pending"]
        if len(waiting) < MAX_WAITING:
            return
        by_source = Counter(one.source for one in waiting)
        # What is stale goes first; then the oldest request of whoever made the most.
        dropped = max(waiting, key=lambda one: (now - one.updated > REQUEST_US, by_source[one.source], -one.updated))
        if now - dropped.updated <= REQUEST_US and by_source[dropped.source] <= by_source[source] + 1:
            raise QueueFull("provisioning", MAX_WAITING)
        await self._register.drop_request(dropped.account)
        self._audit.record("device-forgotten", by=PROVISIONING, target=dropped.account, source=dropped.source)

    def _refuse_foreign(self, account: str, key: str) -> Account | None:
        """The account of the name, if it is an agent with this key; raises Conflict for any other."""
        existing = self._register.accounts.get(account)
        if existing is not None and not self._has(existing, key):
            raise Conflict(f"there is already an account {account!r}")
        return existing

    async def _token(self, request: DeviceRequest, source: str | None) -> str:
        name = request.account
        earlier = [token for token in self._register.tokens_of(name) if token.label == LABEL]
        if name not in self._register.accounts:
            # Raises Conflict if the name was taken, or the request withdrawn, meanwhile.
            await self._administration.add(
                name,
                AccountType.AGENT,
                Role.AGENT,
                public_key=request.public_key,
                display_name=request.display_name,
                with_token=False,
                by=PROVISIONING,
                only_if=lambda: self._register.requests.get(name) == request,
            )
        _, text = await self._administration.issue_token(
            name,
            label=LABEL,
            by=PROVISIONING,
            only_for=lambda account: self._has(account, request.public_key),
            parent=self._register.key,
        )
        async with self._register.changing():
            account = self._register.accounts.get(name)
            if account is not None:
                await self._register.end(
                    account, [one for one in earlier if self._register.standing(one.credential_id)], "replaced"
                )
            if account is not None and (key := self._register.key(account)) is not None:
                self._register.note_use(key, self._clock())
        self._audit.record("device-provisioned", by=name, source=source)
        return text

    def _is_for(self, request: DeviceRequest) -> bool:
        """Whether a request is that of the account which has the name now, if anybody has it."""
        account = self._register.accounts.get(request.account)
        return account is None or self._has(account, request.public_key)

    def _has(self, account: Account, key: str) -> bool:
        """Whether it is an agent with this key."""
        known = self._register.key(account)
        return account.type is AccountType.AGENT and known is not None and known.proof == key


def _signed_text(account: str, challenge: str | None) -> str:
    return f"skep provision {account} {challenge}"
