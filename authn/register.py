"""Everything known about accounts, in memory for reading, written through to the accounts database.

Changes happen one at a time: first on disk, then here in one synchronous step, then those who asked are told whose
credentials ended. Reading never waits. Ending somebody's credentials takes effect here even if the disk fails, and the
failure is raised.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from anyio import CancelScope, CapacityLimiter, Lock, to_thread

from authn.accounts import Account, AccountStore, Certificate, DeviceRequest, Kept, Login, LongToken
from things.errors import StorageFull, UnknownAccount
from things.identity import RESERVED_ACCOUNTS, AccountType, Principal, Role

log = logging.getLogger(__name__)

CERTIFICATE = "certificate:"
"""How a principal names the certificate it showed; its serial follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Whose credentials ended, or changed so that open sessions must be looked at again.

    `login_ids` None means every login of the account but those `spared`. With `reason` "role" the credentials are
    still good: a session may go on with a fresh principal.
    """

    account: str
    reason: str
    login_ids: frozenset[str] | None = None
    spared: frozenset[str] = field(default_factory=frozenset)

    def covers(self, principal: Principal) -> bool:
        """Whether a session that was opened as `principal` is meant."""
        if principal.account != self.account or principal.login_id in self.spared:
            return False
        return self.login_ids is None or principal.login_id in self.login_ids


class Register:
    """Accounts, logins, long-lived tokens, client certificates and device requests."""

    def __init__(self, store: AccountStore) -> None:
        self._store = store
        self._lock = Lock()
        self._limiter = CapacityLimiter(1)
        self._listeners: list[Callable[[Revocation], None]] = []
        self.accounts = {account.name: account for account in store.accounts()}
        self.logins = {login.login_id: login for login in store.logins()}
        self.tokens = {token.token_id: token for token in store.long_tokens()}
        self.certificates = {certificate.serial: certificate for certificate in store.certificates()}
        self.requests = {request.account: request for request in store.device_requests()}

    def on_revoked(self, callback: Callable[[Revocation], None]) -> None:
        """Call `callback`, in the event loop, whenever credentials end or change."""
        self._listeners.append(callback)

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

    def logins_of(self, name: str) -> list[Login]:
        """Oldest first."""
        return sorted((login for login in self.logins.values() if login.account == name), key=lambda one: one.created)

    def tokens_of(self, name: str) -> list[LongToken]:
        """Oldest first."""
        return sorted((token for token in self.tokens.values() if token.account == name), key=lambda one: one.created)

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Be the only one to change anything; what was begun is finished even if the caller is cancelled."""
        async with self._lock:
            with CancelScope(shield=True):
                yield

    # Each of the following is called within `changing()`.

    async def add(self, account: Account, token: LongToken | None = None) -> None:
        await self._write(lambda: self._store.add(account, token))
        self.accounts[account.name] = account
        if token is not None:
            self.tokens[token.token_id] = token

    async def save(self, *values: Kept) -> None:
        await self._write(lambda: self._store.save(*values))
        for value in values:
            self._take(value)

    async def keep_login(self, login: Login) -> None:
        """Store a login, or keep it in memory alone while the disk is full: people must get in to clear it. Such a
        login, or such a refresh of one, ends with the process."""
        try:
            await self._write(lambda: self._store.save(login))
        except StorageFull:
            log.warning(
                "no space left to store a login; it lives until the next start", extra={"account": login.account}
            )
        self._take(login)

    async def change(self, account: Account, reason: str, *, spared: frozenset[str] = frozenset()) -> None:
        """Store an account whose open sessions must be looked at again."""
        try:
            await self._write(lambda: self._store.save(account))
        finally:
            self.accounts[account.name] = account
            self._tell(Revocation(account=account.name, reason=reason, spared=spared))

    async def remove(self, name: str) -> None:
        try:
            await self._write(lambda: self._store.remove_account(name))
        finally:
            self.accounts.pop(name, None)
            self.requests.pop(name, None)
            self.logins = {key: login for key, login in self.logins.items() if login.account != name}
            self.tokens = {key: token for key, token in self.tokens.items() if token.account != name}
            self.certificates = {key: one for key, one in self.certificates.items() if one.account != name}
            self._tell(Revocation(account=name, reason="removed"))

    async def end_logins(self, logins: Iterable[Login], reason: str) -> None:
        ended = list(logins)
        try:
            if ended:
                await self._write(lambda: self._store.remove_logins([login.login_id for login in ended]))
        finally:
            for login in ended:
                self.logins.pop(login.login_id, None)
            self._tell_each({(login.account, login.login_id) for login in ended}, reason)

    async def end_tokens(self, tokens: Iterable[LongToken], reason: str) -> None:
        ended = list(tokens)
        try:
            if ended:
                await self._write(lambda: self._store.remove_long_tokens([token.token_id for token in ended]))
        finally:
            for token in ended:
                self.tokens.pop(token.token_id, None)
            self._tell_each({(token.account, token.token_id) for token in ended}, reason)

    async def end_certificate(self, certificate: Certificate) -> None:
        """Store an ended certificate, and tell so."""
        try:
            await self._write(lambda: self._store.save(certificate))
        finally:
            self.certificates[certificate.serial] = certificate
            self._tell_each({(certificate.account, f"{CERTIFICATE}{certificate.serial}")}, "certificate revoked")

    async def drop_request(self, account: str) -> None:
        await self._write(lambda: self._store.remove_device_request(account))
        self.requests.pop(account, None)

    def tell(self, revocation: Revocation) -> None:
        """Pass on the end of credentials that are stored nowhere (a login by password on a connection)."""
        self._tell(revocation)

    async def touch(self, account: Account, **changes: str | None) -> None:
        """Store changes that end no session."""
        await self.save(replace(account, **changes))  # type: ignore[arg-type]

    def _take(self, value: Kept) -> None:
        match value:
            case Account():
                self.accounts[value.name] = value
            case Login():
                self.logins[value.login_id] = value
            case LongToken():
                self.tokens[value.token_id] = value
            case Certificate():
                self.certificates[value.serial] = value
            case DeviceRequest():
                self.requests[value.account] = value

    def _tell_each(self, ended: set[tuple[str, str]], reason: str) -> None:
        for account in {account for account, _ in ended}:
            ids = frozenset(login_id for owner, login_id in ended if owner == account)
            self._tell(Revocation(account=account, reason=reason, login_ids=ids))

    def _tell(self, revocation: Revocation) -> None:
        for listener in self._listeners:
            try:
                listener(revocation)
            except Exception:  # one session's trouble must not keep another one open
                log.exception("a listener failed on a revocation", extra={"account": revocation.account})

    async def _write(self, work: Callable[[], None]) -> None:
        await to_thread.run_sync(work, limiter=self._limiter)
