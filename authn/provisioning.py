"""How a device gets its account: it asks with its public key, an admin approves (or announced it before), and it gets
its token once it has shown that it holds the private key.

    device → clientID, publicKey                     ← pending, challenge
    admin    approves (compares the fingerprint), or announced clientID and key beforehand
    device → clientID, publicKey, signature          ← approved, token

The signature is over `skep provision {clientID} {challenge}`. A challenge is good once, for ten minutes. A device that
lost the answer asks again: it gets a fresh token and the earlier one ends.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from authn.accounts import DeviceRequest
from authn.administration import Administration, checked_display_name
from authn.audit import Audit
from authn.publickeys import checked_public_key, fingerprint, is_signed
from authn.register import Register
from authn.throttle import Throttle
from things.errors import BadAddress, Conflict, Forbidden, NotFound, QueueFull
from things.identity import RESERVED_ACCOUNTS, AccountType, Role, checked_account
from things.messages import JSONValue

MAX_WAITING = 200
"""Requests of devices nobody has decided on; more are refused."""
REQUEST_US = 7 * 86_400 * 1_000_000
"""After a week without a decision a request is forgotten."""
CHALLENGE_S = 600.0
MAX_CHALLENGES = 1_000
LABEL = "provisioned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a device is told; `token` is there once it is approved and has signed."""

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
        self._challenges: OrderedDict[tuple[str, str], float] = OrderedDict()

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
            return Answer(state=request.state, account=account, challenge=self._challenge(account))
        if not self._is_met(account, challenge) or not is_signed(key, signature, _signed_text(account, challenge)):
            self._audit.record("device-asked", by=account, outcome="wrong signature", source=source)
            raise Forbidden("the signature does not fit the challenge; ask for a fresh one")
        self._throttle.refund(f"device {account}"[:64], source)
        if request.state != "approved":
            return Answer(state=request.state, account=account, challenge=self._challenge(account))
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
            await self._register.drop_request(account)
        self._audit.record("device-forgotten", by=by, target=account)

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
            return request
        self._refuse_foreign(account, key)
        waiting = [one for one in self._register.requests.values() if one.state == "pending"]
        if len(waiting) >= MAX_WAITING:
            stale = min(waiting, key=lambda one: one.updated)
            if now - stale.updated <= REQUEST_US:
                raise QueueFull("provisioning", MAX_WAITING)
            await self._register.drop_request(stale.account)
        # An account that was made with this key is one that an admin has approved.
        state = "approved" if account in self._register.accounts else "pending"
        request = DeviceRequest(
            account=account,
            public_key=key,
            state=state,
            display_name=display_name,
            created=now,
            updated=now,
            source=None if source is None else source[:64],
        )
        await self._register.save(request)
        self._audit.record("device-asked", by=account, source=source, details={"key": fingerprint(key)})
        return request

    def _refuse_foreign(self, account: str, key: str) -> None:
        existing = self._register.accounts.get(account)
        if existing is not None and (existing.type is not AccountType.AGENT or existing.public_key != key):
            raise Conflict(f"there is already an account {account!r}")

    async def _token(self, request: DeviceRequest, source: str | None) -> str:
        name = request.account
        earlier = [token for token in self._register.tokens_of(name) if token.label == LABEL]
        if name not in self._register.accounts:
            await self._administration.add(
                name,
                AccountType.AGENT,
                Role.AGENT,
                public_key=request.public_key,
                display_name=request.display_name,
                with_token=False,
                by="provisioning",
            )
        _, text = await self._administration.issue_token(name, label=LABEL, by="provisioning")
        async with self._register.changing():
            await self._register.end_tokens(earlier, "replaced")
        self._audit.record("device-provisioned", by=name, source=source)
        return text

    def _challenge(self, account: str) -> str:
        while len(self._challenges) >= MAX_CHALLENGES:
            self._challenges.popitem(last=False)
        challenge = secrets.token_urlsafe(24)
        self._challenges[account, challenge] = self._monotonic()
        return challenge

    def _is_met(self, account: str, challenge: str | None) -> bool:
        made = self._challenges.pop((account, challenge or ""), None)
        return made is not None and self._monotonic() - made < CHALLENGE_S


def _signed_text(account: str, challenge: str | None) -> str:
    return f"skep provision {account} {challenge}"
