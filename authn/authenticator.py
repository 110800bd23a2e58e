"""Turns credentials into principals: passwords, tokens, client certificates and the first claim.

One authenticator serves every binding, with one budget of tries. Verifying a token costs a dictionary look-up after the
first time; whatever changes an account, a login or a token empties that cache. What a principal may do is read from the
account, not from the token, so that a change of role needs no new token.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from anyio import to_thread

from authn.accounts import Account, AccountStore, Login
from authn.administration import Administration
from authn.audit import Audit, Class, Verdict
from authn.challenges import Challenges
from authn.claim import Claim
from authn.client_certificates import ClientCertificates
from authn.lineage import password_credential, password_login, standing
from authn.passwords import Passwords, checked_password, looks_like_token
from authn.provisioning import Provisioning
from authn.publickeys import checked_public_key, is_signed
from authn.register import Register, Revocation
from authn.throttle import LoginBudgets, Throttle
from authn.tokens import Claims, Keyring, TokenKind, Tokens, token_hash
from things.bounded import Bounded
from things.errors import Conflict, Forbidden, TokenExpired, TokenInvalid, Unauthenticated
from things.identity import AccountType, Principal, Role, ShownCertificate
from things.messages import JSONValue

ACCESS_S = 900.0
REFRESH_S = 30 * 86_400.0
AUDIT_CHECKED_EVERY_S = 86_400.0
MAX_LOGINS = 50
"""Of one account; the oldest ends when another begins."""
MAX_VERIFIED = 10_000

_ACCESS = frozenset({TokenKind.ACCESS, TokenKind.LONG})
_REFRESH = frozenset({TokenKind.REFRESH})
_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLogin:
    """What a login answers; `document` is its form on the wire."""

    principal: Principal
    access_token: str
    refresh_token: str
    expires_in_s: int

    def document(self) -> dict[str, JSONValue]:
        return {
            "accessToken": self.access_token,
            "refreshToken": self.refresh_token,
            "expiresIn": self.expires_in_s,
            "clientID": self.principal.account,
            "role": self.principal.role,
        }


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
        self._access_s = access_s
        self._refresh_s = refresh_s
        self._verified = Bounded[bytes, Principal](MAX_VERIFIED)
        self.audit = audit
        self.claim_code = claim
        self.passwords = Passwords()
        self._challenges = Challenges(monotonic)
        self.throttle = Throttle(monotonic, budgets)
        self.register = Register(store)
        self.register.on_revoked(self._forget)
        self.administration = Administration(self.register, tokens, self.passwords, audit, clock, claim)
        self.certificates = ClientCertificates(self.register, audit, clock, since=store.certificates_since())
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

    def close(self) -> None:
        """Write the audit log out and let the database go."""
        self.audit.close()
        self._store.close()

    def on_revoked(self, callback: Callable[[Revocation], None]) -> None:
        """Call `callback`, in the event loop, when credentials end or change; sessions it covers are to end within a
        second."""
        self.register.on_revoked(callback)

    def type_of(self, account: str) -> AccountType | None:
        """What an account is; None if there is none."""
        return self.register.type_of(account)

    # ------------------------------------------------------------ the port

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
        known = await self._by_password(account, secret, source)
        self.audit.record("login", by=account, source=source)
        return _principal(
            known, login_id=password_login(known.password_id), credential=password_credential(known.password_id)
        )

    def verify(self, token: str) -> Principal:
        """The principal of an access or long-lived token; raises TokenInvalid, TokenExpired."""
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        principal = self._verified.get(digest)
        if principal is not None:
            if principal.expires is not None and principal.expires <= self._clock():
                del self._verified[digest]
                raise TokenExpired
            return principal
        principal = self._read(token)
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
        known = await self._by_password(account, password, source)
        opened = await self._begin(known, source)
        self.audit.record("login", by=account, source=source, details={"login": opened.principal.login_id})
        return opened

    async def refresh(self, refresh_token: str, *, source: str | None, of: str | None = None) -> OpenLogin:
        """Continue a login with fresh tokens. A refresh token that was used before ends the login: one of the two who
        hold it is a thief. With `of`, only that account's token will do. Raises TokenInvalid, TokenExpired."""
        now = self._clock()
        claims = self._tokens.read(refresh_token, _REFRESH, now=now)
        if of is not None and claims.account != of:
            raise TokenInvalid
        async with self.register.changing():
            login = self.register.logins.get(claims.login_id)
            account = self.register.accounts.get(claims.account)
            if login is None or account is None or account.disabled or login.account != claims.account:
                raise TokenInvalid
            if token_hash(refresh_token) != login.refresh_hash:
                self.audit.record(
                    "refresh", by=claims.account, outcome="reused", source=source, details={"login": login.login_id}
                )
                await self.register.end_logins([login], "refresh token reused")
                raise TokenInvalid
            return await self._renew(account, login, now)

    async def logout(self, principal: Principal, *, everywhere: bool = False) -> None:
        """End the caller's login (with `everywhere` all logins of the account) and their sessions, not long-lived
        tokens."""
        async with self.register.changing():
            if everywhere:
                await self.register.end_logins(self.register.logins_of(principal.account), "logout")
                spared = frozenset(token.token_id for token in self.register.tokens_of(principal.account))
                self.register.tell(Revocation(account=principal.account, reason="logout", spared=spared))
            elif principal.login_id in self.register.logins:
                await self.register.end_logins([self.register.logins[principal.login_id]], "logout")
            elif principal.login_id is not None and principal.login_id not in self.register.tokens:
                ids = frozenset({principal.login_id})
                self.register.tell(Revocation(account=principal.account, reason="logout", login_ids=ids))
        self.audit.record("logout", by=principal.account, details={"everywhere": everywhere})

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
        return await self._begin(known, source)

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
            self._tokens.keys.rotate()
            self._verified.clear()
            await self.register.end_logins(list(self.register.logins.values()), "key rotated")
            if long_lived:
                await self.register.end_tokens(list(self.register.tokens.values()), "key rotated")
                await self.administration.end_keys()
        self.audit.record("keys-rotated", by=by, details={"long-lived": long_lived})

    # ------------------------------------------------------------ private

    async def _by_password(self, name: str, password: str, source: str | None) -> Account:
        self.throttle.charge(name, source)
        account = self.register.accounts.get(name)
        kept = None if account is None or account.disabled else account.password_hash
        if not await self.passwords.matches(kept, password):
            self.audit.record("login", by=name, outcome="refused", source=source)
            raise Unauthenticated
        current = self.register.accounts.get(name)
        # Hashing takes a while; the account may have been disabled or its password changed meanwhile.
        if kept is None or current is None or current.disabled or current.password_hash != kept:
            raise Unauthenticated
        self.throttle.refund(name, source)
        if self.passwords.is_outdated(kept):
            fresh = await self.passwords.hash(password)
            async with self.register.changing():
                current = self.register.accounts.get(name)
                if current is None or current.disabled or current.password_hash != kept:
                    raise Unauthenticated
                await self.register.touch(current, password_hash=fresh)
                current = self.register.accounts[name]
        return current

    async def _begin(self, account: Account, source: str | None) -> OpenLogin:
        now = self._clock()
        async with self.register.changing():
            current = self.register.accounts.get(account.name)
            if current is None or current.disabled or current.password_hash != account.password_hash:
                raise Unauthenticated
            kept = self.register.logins_of(account.name)
            over = [login for login in kept if login.expires <= now]
            over += [login for login in kept if login not in over][: max(0, len(kept) - len(over) - MAX_LOGINS + 1)]
            if over:
                await self.register.end_logins(over, "expired")
            login = Login(
                login_id=secrets.token_urlsafe(16),
                account=account.name,
                refresh_hash="",
                created=now,
                refreshed=now,
                expires=now,
                source=None if source is None else source[:64],
                password_id=current.password_id,
            )
            return await self._renew(current, login, now)

    async def _renew(self, account: Account, login: Login, now: int) -> OpenLogin:
        issue = self._tokens.issue
        access, claims = issue(
            TokenKind.ACCESS, account.name, now=now, validity_s=self._access_s, login_id=login.login_id
        )
        refresh, lasting = issue(
            TokenKind.REFRESH, account.name, now=now, validity_s=self._refresh_s, login_id=login.login_id
        )
        await self.register.keep_login(
            replace(login, refresh_hash=token_hash(refresh), refreshed=now, expires=lasting.expires or now)
        )
        principal = _principal(
            account,
            login_id=login.login_id,
            credential=password_credential(login.password_id),
            token_id=claims.token_id,
            expires=claims.expires,
        )
        return OpenLogin(
            principal=principal, access_token=access, refresh_token=refresh, expires_in_s=int(self._access_s)
        )

    def _read(self, token: str) -> Principal:
        claims = self._tokens.read(token, _ACCESS, now=self._clock())
        account = self.register.accounts.get(claims.account)
        if account is None or account.disabled or not self._lives(claims, token):
            raise TokenInvalid
        login = None if claims.kind is TokenKind.LONG else self.register.logins.get(claims.login_id)
        return _principal(
            account,
            login_id=claims.login_id,
            credential=claims.token_id if login is None else password_credential(login.password_id),
            token_id=claims.token_id,
            expires=claims.expires,
        )

    def _lives(self, claims: Claims, token: str) -> bool:
        if claims.kind is TokenKind.LONG:
            kept = self.register.tokens.get(claims.token_id)
            return kept is not None and kept.account == claims.account and kept.token_hash == token_hash(token)
        login = self.register.logins.get(claims.login_id)
        return login is not None and login.account == claims.account

    def _forget(self, _revocation: Revocation) -> None:
        self._verified.clear()


def _principal(
    account: Account, *, login_id: str, credential: str, token_id: str | None = None, expires: int | None = None
) -> Principal:
    return Principal(
        account=account.name,
        type=account.type,
        role=account.role,
        token_id=token_id,
        login_id=login_id,
        expires=expires,
        account_id=account.account_id,
        credential=credential,
    )
