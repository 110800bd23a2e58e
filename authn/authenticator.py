"""Turns credentials into principals: passwords, tokens, client certificates and the first claim.

One authenticator serves every binding, with one budget of tries. Verifying a token costs a dictionary look-up after the
first time; whatever changes an account, a login or a token empties that cache. What a principal may do is read from the
account, not from the token, so that a change of role needs no new token.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from anyio import to_thread

from authn.accounts import Account, AccountStore
from authn.administration import Administration
from authn.audit import Audit, Class, Verdict
from authn.challenges import Challenges
from authn.claim import Claim
from authn.client_certificates import ClientCertificates
from authn.credentials import Credential
from authn.lineage import password_login, standing
from authn.logins import ACCESS_S, REFRESH_S, Logins, OpenLogin, principal_of
from authn.migrations import CERTIFICATES, CREDENTIALS
from authn.passwords import Passwords, checked_password, looks_like_token
from authn.provisioning import Provisioning
from authn.publickeys import checked_public_key, is_signed
from authn.register import NOTED_EVERY_US, Register, Revocation
from authn.throttle import LoginBudgets, Throttle
from authn.tokens import Keyring, Tokens
from things.bounded import Bounded
from things.errors import Conflict, Forbidden, SkepError, TokenExpired, Unauthenticated
from things.identity import AccountType, Principal, Role, ShownCertificate

AUDIT_CHECKED_EVERY_S = 86_400.0
MAX_VERIFIED = 10_000

log = logging.getLogger(__name__)


class LocalAuthenticator:
    """The accounts of this installation. Opened from a home folder; everything async runs in one event loop."""

    def __init__(
        self,
        *,
        store: AccountStore,
        tokens: Tokens,
        audit: Audit,
        claim: Claim,
        clock: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
        budgets: LoginBudgets | None = None,
        access_s: float = ACCESS_S,
        refresh_s: float = REFRESH_S,
    ) -> None:
        if access_s > 3_600:
            raise ValueError("an access token lives at most an hour")
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._verified = Bounded[bytes, Principal](MAX_VERIFIED)
        self._verified_until = 0
        """When all are read anew, so that it is known what is used."""
        self._house_due = 0
        self.audit = audit
        self.claim_code = claim
        self.passwords = Passwords()
        self._challenges = Challenges(monotonic)
        self.throttle = Throttle(monotonic, budgets)
        self.register = Register(store, clock)
        self._logins = Logins(
            self.register,
            tokens,
            audit,
            clock,
            access_s=access_s,
            refresh_s=refresh_s,
            recorded_since=store.since(CREDENTIALS),
        )
        self.register.on_revoked(self._forget)
        self.administration = Administration(self.register, tokens, self.passwords, audit, clock, claim)
        self.certificates = ClientCertificates(self.register, audit, clock, since=store.since(CERTIFICATES))
        self.provisioning = Provisioning(self.register, self.administration, audit, clock, monotonic, self.throttle)
        if not self.register.has_admin():
            claim.open()
        else:
            claim.close()

    @classmethod
    def open(
        cls,
        home: Path,
        *,
        clock: Callable[[], int],
        database_url: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        budgets: LoginBudgets | None = None,
        access_s: float = ACCESS_S,
        refresh_s: float = REFRESH_S,
        audience: str = "skep",
        least_revision: int = 0,
    ) -> "LocalAuthenticator":
        """Open (or make) accounts, keys and audit log below `home`; blocks briefly. `least_revision`: as of
        AccountStore. Raises StorageDamaged, StorageFull, ConfigInvalid (a key that others may read)."""
        store = AccountStore(home, now=clock(), database_url=database_url, least_revision=least_revision)
        try:
            tokens = Tokens(Keyring(home / "keys"), audience)
            audit = Audit(home / "audit", clock, keys=home / "keys")
        except BaseException:
            store.close()
            raise
        return cls(
            store=store,
            tokens=tokens,
            audit=audit,
            claim=Claim(home / "claim", monotonic),
            clock=clock,
            monotonic=monotonic,
            budgets=budgets,
            access_s=access_s,
            refresh_s=refresh_s,
        )

    @property
    def revision(self) -> int:
        """How many changes the accounts database holds."""
        return self._store.revision

    @property
    def problem(self) -> str | None:
        """What somebody should look after."""
        text = "the accounts database cannot be written; what changed meanwhile is not stored"
        return text if self.register.is_behind else None

    def close(self) -> None:
        """Write out what is known, and let the database go."""
        self.audit.close()
        try:
            self.register.close()
        except SkepError as error:
            log.error("accounts were not stored as they are", extra={"code": error.code, "detail": error.detail})
        self._store.close()

    async def keep_house(self) -> None:
        """Store when credentials were used, and forget what ended long ago; at most once an hour, and as often as it
        is called while something could not be stored."""
        if self._clock() >= self._house_due or self.register.is_behind:
            self._house_due = self._clock() + NOTED_EVERY_US
            async with self.register.changing():
                await self.register.keep_uses()

    def on_revoked(self, callback: Callable[[Revocation], None]) -> None:
        """Call `callback`, in the event loop, when credentials end or change; sessions it covers are to end within a
        second."""
        self.register.on_revoked(callback)

    def type_of(self, account: str) -> AccountType | None:
        """What an account is; None if there is none."""
        return self.register.type_of(account)

    # ------------------------------------------------------------ the port

    def identity_of(self, account: str) -> str | None:
        """The id of the account that has a name now; None if nobody has it."""
        known = self.register.accounts.get(account)
        return None if known is None else known.account_id

    async def login(self, account: str, secret: str, *, source: str | None) -> Principal:
        """The principal of a connection by password, or by a token in its place; raises Unauthenticated, RateLimited.
        It ends when the account's password changes or the account is disabled."""
        if looks_like_token(secret):
            principal = self.verify(secret)
            if principal.account != account:
                self.audit.record(
                    "login", by=principal.account, target=account, outcome="token of another account", source=source
                )
                raise Unauthenticated
            return principal
        known, password = await self._by_password(account, secret, source)
        self.audit.record("login", by=account, source=source)
        return principal_of(known, login_id=password_login(password), credential=password.name)

    def verify(self, token: str) -> Principal:
        """The principal of an access or long-lived token; raises TokenInvalid, TokenExpired."""
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        now = self._clock()
        if now >= self._verified_until:
            self._verified.clear()
            self._verified_until = now + NOTED_EVERY_US
        principal = self._verified.get(digest)
        if principal is not None:
            if principal.expires is not None and principal.expires <= now:
                del self._verified[digest]
                raise TokenExpired
            return principal
        principal = self._logins.read(token, now)
        self._verified[digest] = principal
        return principal

    async def by_certificate(self, certificate: ShownCertificate) -> Principal:
        """The principal of a client certificate; the caller has checked that our CA signed it and it is in time. Raises
        Unauthenticated for one that was ended, or issued to another account of the name."""
        return await self.certificates.principal(certificate)

    def standing(self, principal: Principal, *, after_logout: bool = False) -> Principal | None:
        """Who came with this principal as its account and credential stand now; None if they stand no more."""
        return standing(self.register, principal, after_logout=after_logout)

    # ------------------------------------------------------------ logins that last

    async def open_login(self, account: str, password: str, *, source: str | None) -> OpenLogin:
        """Begin a login: a short access token and a refresh token that works once. Raises Unauthenticated,
        RateLimited."""
        known, proven = await self._by_password(account, password, source)
        opened = await self._logins.begin(lambda: self._proven(known.name, proven), source)
        self.audit.record("login", by=account, source=source, details={"login": opened.principal.login_id})
        return opened

    async def refresh(self, refresh_token: str, *, source: str | None, of: str | None = None) -> OpenLogin:
        """Continue a login with fresh tokens. A refresh token that was used before ends the login: one of the two who
        hold it is a thief. With `of`, only that account's token will do. Raises TokenInvalid, TokenExpired."""
        return await self._logins.refresh(refresh_token, source=source, of=of)

    async def logout(self, principal: Principal, *, everywhere: bool = False) -> None:
        """End the caller's login (with `everywhere` all logins of the account) and their sessions, not long-lived
        tokens."""
        await self._logins.logout(principal, everywhere=everywhere)

    async def claim(self, code: str, account: str, password: str, *, source: str | None) -> OpenLogin:
        """Become the first admin. Raises Forbidden (wrong, used or late code), Conflict (already claimed), Invalid."""
        self.throttle.charge("", source)
        if self.register.has_admin():
            self.claim_code.close()
            raise Conflict("this installation has an admin already")
        if not self.claim_code.matches(code):
            self.audit.record("claim", by="?", outcome="wrong code", source=source)
            raise Forbidden("this claim code is not valid here, or its time is over; restart skep for a fresh one")
        checked_password(password, account)
        known, _ = await self.administration.add(
            account,
            AccountType.CONSUMER,
            Role.ADMIN,
            password=password,
            with_token=False,
            by="claim",
            only_first_admin=True,
        )
        self.throttle.refund("", source)
        self.audit.record("claim", by=account, source=source)
        set_now = self.register.password(known)
        assert set_now is not None
        return await self._logins.begin(lambda: self._proven(known.name, set_now), source)

    async def change_password(self, principal: Principal, old: str, new: str) -> None:
        """Let somebody who knows their password change it; tries count like logins. The other logins of the account
        end. Raises Unauthenticated, RateLimited, Invalid."""
        await self._by_password(principal.account, old, None)
        await self.administration.set_password(
            principal.account, new, by=principal.account, keep_login=principal.login_id
        )

    async def set_public_key(
        self, principal: Principal, public_key: str, *, challenge: str | None, signature: str | None
    ) -> tuple[Account, str | None]:
        """Let somebody set the key of their own account, once they have shown that they hold it: without a signature
        the account as it is and a challenge, to be signed as `skep public-key {clientID} {challenge}`. An empty key
        takes the standing one away. Raises Invalid, Forbidden."""
        name = principal.account
        if public_key:
            key = checked_public_key(public_key)
            if signature is None:
                return self.register.account(name), self._challenges.make(name)
            text = f"skep public-key {name} {challenge}"
            if not self._challenges.is_met(name, challenge) or not is_signed(key, signature, text):
                raise Forbidden("the signature does not fit the challenge; ask for a fresh one")
        return await self.administration.update(name, public_key=public_key, by=name), None

    async def verified_audit(self) -> Verdict:
        """Whether the audit log is as it was written, with everything recorded so far in it."""
        await self.audit.flush()
        return await to_thread.run_sync(self.audit.verify)

    async def watch_audit(self) -> None:
        """Check the audit log at leisure, at once and then every day, until cancelled."""
        while True:
            await to_thread.run_sync(self.audit.check, abandon_on_cancel=True)
            await asyncio.sleep(AUDIT_CHECKED_EVERY_S)

    async def audited(
        self, *, after: int | None = None, limit: int = 100, class_: Class | None = None
    ) -> list[dict[str, object]]:
        """Acts of the audit log, with everything recorded so far: those after a `seq`, or else the latest; of one class
        or of all."""
        await self.audit.flush()
        return await to_thread.run_sync(lambda: self.audit.read(after=after, limit=limit, class_=class_))

    async def rotate_keys(self, *, by: str, long_lived: bool = False) -> None:
        """Sign with a fresh key. All logins end; long-lived tokens go on (each is known by its hash) unless
        `long_lived` says they must not."""
        async with self.register.changing():
            with self.audit.recording("keys-rotated", by=by, details={"long-lived": long_lived}):
                try:
                    self._tokens.keys.rotate()
                finally:
                    self._verified.clear()
                    await self.administration.end_signed(long_lived=long_lived)

    # ------------------------------------------------------------ private

    async def _by_password(self, name: str, secret: str, source: str | None) -> tuple[Account, Credential]:
        self.throttle.charge(name, source)
        account = self.register.accounts.get(name)
        kept = None if account is None or account.disabled else self.register.password(account)
        proof = None if kept is None else kept.proof
        if not await self.passwords.matches(proof, secret):
            self.audit.record("login", by=name, outcome="refused", source=source)
            raise Unauthenticated
        if kept is None or proof is None:
            raise Unauthenticated
        # Hashing takes a while; the account may have been disabled or its password changed meanwhile.
        known, password = self._proven(name, kept)
        self.throttle.refund(name, source)
        if self.passwords.is_outdated(proof):
            fresh = await self.passwords.hash(secret)
            async with self.register.changing():
                known, password = self._proven(name, kept)
                await self.register.save(replace(password, proof=fresh))
                password = self.register.credentials[kept.credential_id]
        self.register.note_use(password, self._clock())
        return known, password

    def _proven(self, name: str, password: Credential) -> tuple[Account, Credential]:
        """The account with its password, if both are as they were; raises Unauthenticated."""
        account = self.register.accounts.get(name)
        standing = self.register.standing(password.credential_id)
        is_it = account is not None and not account.disabled and account.account_id == password.account_id
        if account is None or standing is None or not is_it or standing.proof != password.proof:
            raise Unauthenticated
        return account, standing

    def _forget(self, _revocation: Revocation) -> None:
        self._verified.clear()
