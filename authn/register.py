"""Everything known about accounts and their credentials, in memory for reading, written through to the database.

Changes happen one at a time: first on disk, then here in one synchronous step, then those who asked are notified whose
credentials ended. Reading never waits. Ending somebody's credentials takes effect here even if the disk fails, and the
failure is raised.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio.lowlevel
from anyio import CancelScope, CapacityLimiter, Lock, to_thread

from authn.accounts import Account, AccountStore, DeviceRequest, Kept
from authn.credentials import Credential, CredentialKind, forgotten, lineage, names
from things.errors import StorageFull, UnknownAccount
from things.identity import RESERVED_ACCOUNTS, AccountType, Principal, Role

log = logging.getLogger(__name__)

NOTED_EVERY_US = 3_600_000_000
"""How exactly it is known when a credential was last used: by the hour, since it is shown with every connection."""
_AT_ONCE = 200
"""Accounts that are gone through before others have a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Whose credentials ended, or changed so that open sessions must be looked at again.

    `ended` names them as principals do; None means everything of the account but the logins and tokens `spared`. With
    `reason` "role" the credentials are still good: a session may go on with a fresh principal.
    """

    account: str
    reason: str
    ended: frozenset[str] | None = None
    spared: frozenset[str] = field(default_factory=frozenset)

    def covers(self, principal: Principal) -> bool:
        """Whether a session that was opened as `principal` is meant."""
        if principal.account != self.account or principal.login_id in self.spared:
            return False
        if self.ended is None:
            return True
        return not self.ended.isdisjoint((principal.login_id, principal.token_id, principal.credential))


class Register:
    """Accounts, their credentials, and device requests."""

    def __init__(self, store: AccountStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock
        self._lock = Lock()
        self._limiter = CapacityLimiter(1)
        self._listeners: list[Callable[[Revocation], None]] = []
        self.accounts = {account.name: account for account in store.accounts()}
        self.credentials: dict[str, Credential] = {}
        """Standing and ended, by id."""
        self._of: dict[str, dict[str, Credential]] = {}
        for credential in store.credentials():
            self._take(credential)
        self.requests = {request.account: request for request in store.device_requests()}
        self._used: set[str] = set()
        """Credentials of which a use is known that is not stored yet."""

    def on_revoked(self, callback: Callable[[Revocation], None]) -> None:
        """Call `callback`, in the event loop, whenever credentials end or change."""
        self._listeners.append(callback)

    # ------------------------------------------------------------ accounts

    def account(self, name: str) -> Account:
        """The account, or UnknownAccount."""
        account = self.accounts.get(name)
        if account is None:
            raise UnknownAccount(name[:64])
        return account

    def type_of(self, name: str) -> AccountType | None:
        """What an account is; the built-in ones are services."""
        if name in RESERVED_ACCOUNTS:
            return AccountType.SERVICE
        account = self.accounts.get(name)
        return None if account is None else account.type

    def has_admin(self, *, without: str | None = None) -> bool:
        """Whether an enabled admin exists, `without` not counted."""
        return any(a.role == Role.ADMIN and not a.disabled and a.name != without for a in self.accounts.values())

    # ------------------------------------------------------------ credentials

    def standing(self, credential_id: str, kind: CredentialKind | None = None) -> Credential | None:
        """The credential, unless it was ended; one that merely expired stands."""
        found = self.credentials.get(credential_id)
        return None if found is None or found.ended is not None or kind not in (None, found.kind) else found

    def ever(self, account_id: str) -> Mapping[str, Credential]:
        """Everything an account has or had, also one that was removed."""
        return self._of.get(account_id, {})

    def of(self, account: Account, *kinds: CredentialKind) -> list[Credential]:
        """What an account has, oldest first; of every kind if none is named."""
        found = [one for one in self.ever(account.account_id).values() if one.ended is None]
        return sorted((one for one in found if not kinds or one.kind in kinds), key=lambda one: one.created)

    def password(self, account: Account) -> Credential | None:
        return next(iter(self.of(account, CredentialKind.PASSWORD)), None)

    def key(self, account: Account) -> Credential | None:
        return next(iter(self.of(account, CredentialKind.KEY)), None)

    def logins_of(self, name: str) -> list[Credential]:
        """Oldest first; none if there is no such account."""
        account = self.accounts.get(name)
        return [] if account is None else self.of(account, CredentialKind.LOGIN)

    def tokens_of(self, name: str) -> list[Credential]:
        """The long-lived ones, oldest first; none if there is no such account."""
        account = self.accounts.get(name)
        return [] if account is None else self.of(account, CredentialKind.TOKEN)

    def of_all(self, name: str | None, kind: CredentialKind) -> list[Credential]:
        """What an account, or everybody, has of a kind, by account, oldest first. Raises UnknownAccount."""
        accounts = sorted(self.accounts) if name is None else [self.account(name).name]
        return [one for account in accounts for one in self.of(self.accounts[account], kind)]

    def lineage(self, credential: Credential) -> list[Credential]:
        """It and what was made from it, as far as that stands."""
        own = (one for one in self.ever(credential.account_id).values() if one.ended is None)
        return lineage(credential, own)

    def note_use(self, credential: Credential, now: int) -> None:
        """Know that it was used; `keep_uses` stores it."""
        if credential.used is None or now - credential.used >= NOTED_EVERY_US:
            self._take(replace(credential, used=now))
            self._used.add(credential.credential_id)

    # ------------------------------------------------------------ changing

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Be the only one to change anything; what was begun is finished even if the caller is cancelled."""
        async with self._lock:
            with CancelScope(shield=True):
                yield

    # Each of the following is called within `changing()`.

    async def add(self, account: Account, *credentials: Credential) -> None:
        await self._write(lambda: self._store.add(account, *credentials))
        self._take_all((account, *credentials))

    async def save(self, *values: Kept) -> None:
        await self._write(lambda: self._store.save(*values))
        self._take_all(values)

    async def keep(self, *credentials: Credential, without: Collection[str] = ()) -> None:
        """Store credentials that were shown or given just now, or keep them in memory alone while the disk is full:
        people must get in to clear it. Those then end with the process. `without` are ids of some to forget."""
        try:
            await self._write(lambda: self._store.save(*credentials, without=tuple(without)))
        except StorageFull:
            log.warning(
                "no space left to store a credential; it lives until the next start",
                extra={"account": credentials[0].account},
            )
        self._forget(without)
        self._take_all(credentials)

    async def change(self, account: Account, reason: str) -> None:
        """Store an account whose open sessions must be looked at again."""
        try:
            await self._write(lambda: self._store.save(account))
        finally:
            self.accounts[account.name] = account
            self.tell(Revocation(account=account.name, reason=reason))

    async def remove(self, name: str) -> None:
        """Remove an account; its credentials end, and are known for a while."""
        account = self.accounts[name]
        ended = self._ended(self.of(account), "removed")
        dropped = self._dropped(account.account_id, ended)
        try:
            await self._write(lambda: self._store.remove_account(name, *ended, without=dropped))
        finally:
            self.accounts.pop(name, None)
            self.requests.pop(name, None)
            self._take_all(ended)
            self._forget(dropped)
            self.tell(Revocation(account=name, reason="removed"))

    async def end(
        self,
        account: Account,
        credentials: Iterable[Credential],
        reason: str,
        *,
        also: Iterable[Kept] = (),
        tells: Revocation | None = None,
    ) -> None:
        """End credentials of one account and store what takes their place, all or none; then tell of these, or what
        `tells` says. With a login its access tokens are forgotten."""
        ended, fresh = self._ended(credentials, reason), tuple(also)
        gone = {one.credential_id for one in ended}
        own = self.ever(account.account_id)
        access = [one for one in own.values() if one.kind is CredentialKind.ACCESS and one.parent in gone]
        dropped = (*self._dropped(account.account_id, ended), *(one.credential_id for one in access))
        dropped = tuple(one for one in dropped if one not in gone)
        try:
            if ended or fresh or dropped:
                await self._write(lambda: self._store.save(*ended, *fresh, without=dropped))
        finally:
            self._take_all((*ended, *fresh))
            self._forget(dropped)
            if tells is not None or ended:
                self.tell(tells or Revocation(account=account.name, reason=reason, ended=names(ended)))

    async def drop_request(self, account: str) -> None:
        await self._write(lambda: self._store.remove_device_request(account))
        self.requests.pop(account, None)

    async def keep_uses(self) -> None:
        """Store when credentials were used, and forget what was kept long enough."""
        dropped: list[str] = []
        for number, account_id in enumerate(tuple(self._of)):
            dropped += self._dropped(account_id, ())
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        used = self._uses()
        if dropped or used:
            await self._write(lambda: self._store.save(*used, without=dropped))
            self._forget(dropped)

    def tell(self, revocation: Revocation) -> None:
        """Pass on what ended."""
        for listener in self._listeners:
            try:
                listener(revocation)
            except Exception:  # one session's trouble must not keep another one open
                log.exception("a listener failed on a revocation", extra={"account": revocation.account})

    def close(self) -> None:
        """Store what is known of uses; nobody changes anything any more."""
        used = self._uses()
        if used:
            self._store.save(*used)

    # ------------------------------------------------------------ private

    def _ended(self, credentials: Iterable[Credential], reason: str) -> list[Credential]:
        now = self._clock()
        return [replace(one, ended=now, because=reason) for one in credentials]

    def _dropped(self, account_id: str, ended: Iterable[Credential]) -> tuple[str, ...]:
        own = {**self.ever(account_id), **{one.credential_id: one for one in ended}}
        return tuple(one.credential_id for one in forgotten(own, self._clock()))

    def _uses(self) -> list[Credential]:
        used, self._used = self._used, set()
        return [one for one in map(self.credentials.get, used) if one is not None]

    def _take_all(self, values: Iterable[Kept]) -> None:
        for value in values:
            self._take(value)

    def _take(self, value: Kept) -> None:
        match value:
            case Account():
                self.accounts[value.name] = value
            case Credential():
                self.credentials[value.credential_id] = value
                self._of.setdefault(value.account_id, {})[value.credential_id] = value
            case DeviceRequest():
                self.requests[value.account] = value

    def _forget(self, credential_ids: Iterable[str]) -> None:
        for credential_id in credential_ids:
            known = self.credentials.pop(credential_id, None)
            if known is not None:
                own = self._of[known.account_id]
                own.pop(credential_id, None)
                if not own:
                    del self._of[known.account_id]

    async def _write(self, work: Callable[[], None]) -> None:
        await to_thread.run_sync(work, limiter=self._limiter)
