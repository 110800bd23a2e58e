"""Logins that last and the tokens of accounts: given, read, continued and ended.

A login begins with a password. It has short access tokens and one refresh token, which works once; who uses it again
ends the login. What a principal may do is read from the account, not from the token, so that a change of role needs no
new token.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from authn.accounts import Account
from authn.audit import Audit
from authn.credentials import Credential, CredentialKind
from authn.register import Register, Revocation
from authn.tokens import Claims, TokenKind, Tokens, token_hash
from things.errors import TokenInvalid
from things.identity import Principal
from things.messages import JSONValue

ACCESS_S = 900.0
REFRESH_S = 30 * 86_400.0
MAX_LOGINS = 50
"""Of one account; the oldest ends when another begins."""
MAX_ACCESS = 10
"""Access tokens of one login that are good at a time; the oldest ends when another is given."""

_ACCESS = frozenset({TokenKind.ACCESS, TokenKind.LONG})
_REFRESH = frozenset({TokenKind.REFRESH})
_SECOND_US = 1_000_000
"""Tokens say when they were issued in whole seconds."""


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


class Logins:
    """The logins and tokens of all accounts. `recorded_since` is when access tokens began to be recorded."""

    def __init__(
        self,
        register: Register,
        tokens: Tokens,
        audit: Audit,
        clock: Callable[[], int],
        *,
        access_s: float,
        refresh_s: float,
        recorded_since: int,
    ) -> None:
        self._register = register
        self._tokens = tokens
        self._audit = audit
        self._clock = clock
        self._access_s = access_s
        self._refresh_s = refresh_s
        self._recorded_since = recorded_since

    async def begin(self, proven: Callable[[], tuple[Account, Credential]], source: str | None) -> OpenLogin:
        """A login by a password; `proven` says for whom, once nobody else changes anything."""
        now = self._clock()
        async with self._register.changing():
            current, password = proven()
            kept = self._register.logins_of(current.name)
            over = [login for login in kept if (login.expires or 0) <= now]
            over += [login for login in kept if login not in over][: max(0, len(kept) - len(over) - MAX_LOGINS + 1)]
            if over:
                await self._register.end(current, over, "expired")
            login = Credential(
                credential_id=secrets.token_urlsafe(16),
                kind=CredentialKind.LOGIN,
                account_id=current.account_id,
                account=current.name,
                parent=password.credential_id,
                made_by=current.name,
                created=now,
                source=None if source is None else source[:64],
            )
            return await self._renew(current, login, now)

    def read(self, token: str, now: int) -> Principal:
        """The principal of an access or long-lived token; raises TokenInvalid, TokenExpired."""
        claims = self._tokens.read(token, _ACCESS, now=now)
        account = self._register.accounts.get(claims.account)
        if account is None or account.disabled:
            raise TokenInvalid
        login = self._lives(claims, token)
        if login is None or login.account_id != account.account_id:
            raise TokenInvalid
        self._register.note_use(login, now)
        return principal_of(
            account,
            login_id=claims.login_id,
            credential=self._origin(login),
            token_id=claims.token_id,
            expires=claims.expires,
        )

    async def refresh(self, refresh_token: str, *, source: str | None, of: str | None = None) -> OpenLogin:
        """Continue a login with fresh tokens. A refresh token that was used before ends the login: one of the two who
        hold it is a thief. With `of`, only that account's token will do. Raises TokenInvalid, TokenExpired."""
        now = self._clock()
        claims = self._tokens.read(refresh_token, _REFRESH, now=now)
        if of is not None and claims.account != of:
            raise TokenInvalid
        async with self._register.changing():
            login = self._register.standing(claims.login_id, CredentialKind.LOGIN)
            account = self._register.accounts.get(claims.account)
            if login is None or account is None or account.disabled or login.account_id != account.account_id:
                raise TokenInvalid
            if token_hash(refresh_token) != login.proof:
                details: dict[str, JSONValue] = {"login": login.credential_id}
                self._audit.record("refresh", by=claims.account, outcome="reused", source=source, details=details)
                await self._register.end(account, [login], "refresh token reused")
                raise TokenInvalid
            return await self._renew(account, login, now)

    async def logout(self, principal: Principal, *, everywhere: bool = False) -> None:
        """End the caller's login (with `everywhere` all logins of the account) and their sessions, not long-lived
        tokens."""
        async with self._register.changing():
            account = self._register.account(principal.account)
            login = self._register.standing(principal.login_id or "", CredentialKind.LOGIN)
            with self._audit.recording("logout", by=account.name, details={"everywhere": everywhere}):
                if everywhere:
                    spared = frozenset(token.name for token in self._register.tokens_of(account.name))
                    told = Revocation(account=account.name, reason="logout", spared=spared)
                    await self._register.end(account, self._register.logins_of(account.name), "logout", tells=told)
                elif login is not None:
                    await self._register.end(account, [login], "logout")
                elif principal.login_id is not None and self._register.standing(principal.login_id) is None:
                    ids = frozenset({principal.login_id})
                    self._register.tell(Revocation(account=account.name, reason="logout", ended=ids))

    async def _renew(self, account: Account, login: Credential, now: int) -> OpenLogin:
        issue, login_id = self._tokens.issue, login.credential_id
        text, claims = issue(TokenKind.ACCESS, account.name, now=now, validity_s=self._access_s, login_id=login_id)
        refresh, lasting = issue(
            TokenKind.REFRESH, account.name, now=now, validity_s=self._refresh_s, login_id=login_id
        )
        access = Credential(
            credential_id=claims.token_id,
            kind=CredentialKind.ACCESS,
            account_id=account.account_id,
            account=account.name,
            parent=login_id,
            made_by=account.name,
            created=now,
            expires=claims.expires,
        )
        given = [one for one in self._register.of(account, CredentialKind.ACCESS) if one.parent == login_id]
        good = [one for one in given if (one.expires or 0) > now][1 - MAX_ACCESS :]
        dropped = [one.credential_id for one in given if one not in good]
        renewed = replace(login, proof=token_hash(refresh), used=now, expires=lasting.expires or now)
        await self._register.keep(renewed, access, without=dropped)
        principal = principal_of(
            account,
            login_id=login_id,
            credential=self._origin(login),
            token_id=claims.token_id,
            expires=claims.expires,
        )
        return OpenLogin(
            principal=principal, access_token=text, refresh_token=refresh, expires_in_s=int(self._access_s)
        )

    def _lives(self, claims: Claims, token: str) -> Credential | None:
        """The long-lived token, or the login that an access token is of, if that was not ended either."""
        if claims.kind is TokenKind.LONG:
            kept = self._register.standing(claims.token_id, CredentialKind.TOKEN)
            return kept if kept is not None and kept.proof == token_hash(token) else None
        # Access tokens of earlier versions are not in the register; these lived for an hour at most.
        is_earlier = claims.issued + _SECOND_US <= self._recorded_since
        is_earlier = is_earlier and claims.token_id not in self._register.credentials
        if not is_earlier and self._register.standing(claims.token_id, CredentialKind.ACCESS) is None:
            return None
        return self._register.standing(claims.login_id, CredentialKind.LOGIN)

    def _origin(self, login: Credential) -> str:
        """How a principal names what it all began with: the password of a login, a long-lived token itself."""
        password = self._register.credentials.get(login.parent or "") if login.kind is CredentialKind.LOGIN else None
        return login.name if password is None else password.name


def principal_of(
    account: Account, *, login_id: str, credential: str, token_id: str | None = None, expires: int | None = None
) -> Principal:
    """Who an account is that came by one of its credentials."""
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
