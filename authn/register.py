"""Everything known about accounts and their credentials, in memory for reading, written through to the database.

Changes happen one at a time: first on disk, then here in one synchronous step, then those who asked are notified whose
credentials ended. Reading never waits. What takes a right away takes effect here even if the disk fails: the failure is
raised, and what could not be stored is stored before the next change, by housekeeping, or at the end.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio.lowlevel
from anyio import CancelScope, Lock

from authn.accounts import Account, AccountStore, DeviceRequest, Kept, KnownAs
from authn.credentials import Credential, CredentialKind, forgotten, lineage, names
from authn.memory import Memory
from things.errors import NotFound, SkepError, StorageFull, UnknownAccount
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
        self._clock = clock
        self._lock = Lock()
        self._listeners: list[Callable[[Revocation], None]] = []
        self._memory = Memory(store)
        self.accounts: Mapping[str, Account] = self._memory.accounts
        self.credentials: Mapping[str, Credential] = self._memory.credentials
        """Standing and ended, by id."""
        self.requests: Mapping[str, DeviceRequest] = self._memory.requests
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
        return self._memory.of(account_id)

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
            self._memory.take([replace(credential, used=now)])
            self._used.add(credential.credential_id)

    # ------------------------------------------------------------ changing

    @property
    def is_behind(self) -> bool:
        """Whether something took effect that is not stored."""
        return self._memory.is_ahead

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Be the only one to change anything; what was begun is finished even if the caller is cancelled."""
        async with self._lock:
            with CancelScope(shield=True):
                try:
                    yield
                except NotFound:
                    # Who ends again what could not be stored as ended hears of that, not that there is no such thing.
                    await self._memory.settle()
                    raise

    # Each of the following is called within `changing()`.

    async def add(self, account: Account, *credentials: Credential) -> None:
        await self._memory.write(lambda store: store.add(account, *credentials))
        self._memory.take((account, *credentials))

    async def save(self, *values: Kept) -> None:
        await self._memory.write(lambda store: store.save(*values))
        self._memory.take(values)

    async def keep(self, *credentials: Credential, without: Iterable[str] = ()) -> None:
        """Store credentials that were shown or given just now; while the disk is full these are good unstored: people
        must get in to clear it. `without` are ids of some to forget."""
        gone = [(Credential, one) for one in without]
        try:
            await self._memory.write(lambda store: store.save(*credentials, without=gone))
        except StorageFull:
            self._memory.put(credentials, gone)
            log.warning(
                "no space left to store a credential; it is stored when there is",
                extra={"account": credentials[0].account},
            )
        else:
            self._memory.take(credentials)
            self._memory.forget(gone)

    async def change(self, account: Account, reason: str) -> None:
        """Store an account whose open sessions must be looked at again."""
        try:
            await self._memory.apply((account,))
        finally:
            self.tell(Revocation(account=account.name, reason=reason))

    async def remove(self, name: str) -> None:
        """Remove an account; its credentials end, and are known for a while."""
        account = self.accounts[name]
        ended, gone = self._ending(account, self.of(account), "removed")
        try:
            await self._memory.apply(ended, [*gone, (Account, name), (DeviceRequest, name)])
        finally:
            self.tell(Revocation(account=name, reason="removed"))

    async def end(
        self,
        account: Account,
        credentials: Iterable[Credential],
        reason: str,
        *,
        also: Collection[Kept] = (),
        tells: Revocation | None = None,
        forget_device: bool = False,
    ) -> None:
        """End credentials of one account and store what takes their place, all or none; then tell of these, or what
        `tells` says. With a login its access tokens are forgotten; `forget_device` drops what a device of that name
        asked."""
        ended, gone = self._ending(account, credentials, reason, forget_device=forget_device)
        try:
            if ended or also or gone:
                await self._memory.apply([*ended, *also], gone)
        finally:
            if tells is not None or ended:
                self.tell(tells or Revocation(account=account.name, reason=reason, ended=names(ended)))

    async def end_of_all(
        self, credentials_of: Callable[[Account], Iterable[Credential]], reason: str, *, forget_devices: bool
    ) -> None:
        """End credentials of every account, some accounts at a time. All of them end; a failure is raised after."""
        accounts, failure = list(self.accounts.values()), None
        for start in range(0, len(accounts), _AT_ONCE):
            some: list[tuple[Account, list[Credential]]] = []
            gone: list[KnownAs] = []
            for account in accounts[start : start + _AT_ONCE]:
                ended, dropped = self._ending(account, credentials_of(account), reason, forget_device=forget_devices)
                some.append((account, ended))
                gone += dropped
            values = [one for _, ended in some for one in ended]
            try:
                if failure is None:
                    await self._memory.apply(values, gone)
                else:  # the disk may take long to fail again
                    self._memory.put(values, gone)
                    await anyio.lowlevel.checkpoint()
            except SkepError as error:
                failure = error
            for account, ended in some:
                if ended:
                    self.tell(Revocation(account=account.name, reason=reason, ended=names(ended)))
        if failure is not None:
            raise failure

    async def drop_request(self, account: str) -> None:
        """Forget what a device of this name asked, if it did."""
        if account in self.requests:
            await self._memory.apply((), [(DeviceRequest, account)])

    async def keep_uses(self) -> None:
        """Store when credentials were used, and forget what was kept long enough."""
        for number, account_id in enumerate(self._memory.account_ids):
            self._memory.put((), self._dropped(account_id, ()))
            if number % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        self._put_uses()
        await self._memory.settle()

    def tell(self, revocation: Revocation) -> None:
        """Pass on what ended."""
        for listener in self._listeners:
            try:
                listener(revocation)
            except Exception:  # one session's trouble must not keep another one open
                log.exception("a listener failed on a revocation", extra={"account": revocation.account})

    def close(self) -> None:
        """Store what is not stored yet; nobody changes anything any more. Raises what the store raises."""
        self._put_uses()
        self._memory.close()

    # ------------------------------------------------------------ private

    def _ending(
        self, account: Account, credentials: Iterable[Credential], reason: str, *, forget_device: bool = False
    ) -> tuple[list[Credential], list[KnownAs]]:
        """Credentials of an account as ended, and what goes with them."""
        now = self._clock()
        ended = [replace(one, ended=now, because=reason) for one in credentials]
        ids = {one.credential_id for one in ended}
        own = self.ever(account.account_id).values()
        access = (one for one in own if one.kind is CredentialKind.ACCESS and one.parent in ids)
        gone = self._dropped(account.account_id, ended)
        gone += [(Credential, one.credential_id) for one in access]
        gone = [one for one in gone if one[1] not in ids]
        if forget_device and account.name in self.requests:
            gone.append((DeviceRequest, account.name))
        return ended, gone

    def _dropped(self, account_id: str, ended: Iterable[Credential]) -> list[KnownAs]:
        own = {**self.ever(account_id), **{one.credential_id: one for one in ended}}
        return [(Credential, one.credential_id) for one in forgotten(own, self._clock())]

    def _put_uses(self) -> None:
        self._memory.put([self.credentials[one] for one in self._used if one in self.credentials])
        self._used.clear()
