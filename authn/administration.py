"""What admins do to accounts: add, change, disable, remove, give and take tokens; each act is audited.

One enabled admin always remains. A new account is complete when it exists: its first token is stored with it.
"""

import secrets
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from authn.accounts import Account
from authn.audit import Audit
from authn.claim import Claim
from authn.credentials import Credential, CredentialKind, names
from authn.passwords import Passwords, checked_password
from authn.publickeys import checked_public_key
from authn.register import Register, Revocation
from authn.tokens import TokenKind, Tokens, token_hash
from things.errors import BadAddress, Conflict, Forbidden, Invalid, NotFound, QueueFull
from things.identity import RESERVED_ACCOUNTS, AccountType, Role
from things.names import checked_account

PROVISIONING = "provisioning"
"""Who makes accounts for devices that were let in."""
MAX_ACCOUNTS = 10_000
MAX_TOKENS = 100
"""Of one account."""
MAX_DISPLAY_CHARS = 128
MAX_TOKEN_S = 10 * 365 * 86_400.0

_DEFAULT_ROLES = {
    AccountType.AGENT: Role.AGENT,
    AccountType.SERVICE: Role.SERVICE,
    AccountType.CONSUMER: Role.NONE,
}
_US = 1_000_000


class Administration:
    """Acts on accounts. `by` names who does it; whether they may is decided before."""

    def __init__(
        self,
        register: Register,
        tokens: Tokens,
        passwords: Passwords,
        audit: Audit,
        clock: Callable[[], int],
        claim: Claim,
    ) -> None:
        self._register = register
        self._tokens = tokens
        self._passwords = passwords
        self._audit = audit
        self._clock = clock
        self._claim = claim
        self.is_role: Callable[[str], bool] = lambda name: name in set(Role)
        """Whether a role exists; replaced by whoever knows the custom ones."""
        self.added: Callable[[str], Awaitable[None]] = _nobody
        """Told of each account that was made, before anybody can come as it."""

    async def add(
        self,
        name: str,
        type_: AccountType,
        role: str | None = None,
        *,
        password: str | None = None,
        public_key: str | None = None,
        display_name: str = "",
        with_token: bool = True,
        token_validity_s: float | None = None,
        by: str,
        only_first_admin: bool = False,
        only_if: Callable[[], bool] = lambda: True,
    ) -> tuple[Account, str | None]:
        """Create an account; with its first long-lived token unless `with_token` is False. Raises Conflict, Invalid."""
        checked_account(name)
        if name in RESERVED_ACCOUNTS:
            raise BadAddress(f"{name!r} is the account of a built-in service")
        chosen = _DEFAULT_ROLES[type_] if role is None else self._checked_role(type_, role)
        hashed = None if password is None else await self._passwords.hash(checked_password(password, name))
        now = self._clock()
        account = Account(
            account_id=f"{now}-{secrets.token_urlsafe(12)}",
            name=name,
            type=type_,
            role=str(chosen),
            display_name=checked_display_name(display_name),
            created=now,
            updated=now,
        )
        proofs = [] if hashed is None else [_credential(account, CredentialKind.PASSWORD, hashed, now, by)]
        if public_key is not None:
            proofs.append(_credential(account, CredentialKind.KEY, checked_public_key(public_key), now, by))
        async with self._register.changing():
            if name in self._register.accounts:
                raise Conflict(f"there is already an account {name!r}")
            if len(self._register.accounts) >= MAX_ACCOUNTS:
                raise QueueFull("this installation", MAX_ACCOUNTS, "accounts")
            if not only_if():
                raise Conflict(f"{name!r} is not asked for any more")
            if only_first_admin and self._register.has_admin():
                raise Conflict("this installation has an admin already")
            if by != PROVISIONING:
                # Who asked for the name before is not who has it now.
                await self._register.drop_request(name)
            text = None
            if with_token:
                text, token = self._made(account, "first", token_validity_s, now, by)
                proofs.append(token)
            await self._register.add(account, *proofs)
            await self.added(name)
            if self._register.has_admin():
                self._claim.close()
        self._audit.record("account-added", by=by, target=name, details={"type": account.type, "role": account.role})
        return account, text

    async def update(
        self, name: str, *, display_name: str | None = None, public_key: str | None = None, by: str
    ) -> Account:
        """Change what describes an account; an empty public key removes it."""
        async with self._register.changing():
            account, now = self._register.account(name), self._clock()
            fresh = replace(account, updated=now)
            if display_name is not None:
                fresh = replace(fresh, display_name=checked_display_name(display_name))
            values: list[Account | Credential] = [fresh]
            former = self._register.key(account)
            key = checked_public_key(public_key) if public_key else None
            changed = {"display-name": display_name is not None, "public-key": public_key is not None}
            if public_key is not None and key != (former.proof if former else None):
                if key is not None:
                    values.append(_credential(account, CredentialKind.KEY, key, now, by))
                # A token that the former key fetched goes on: the device has changed its key, not lost it.
                ended = [former] if former else []
                with self._audit.recording("account-updated", by=by, target=name, details=changed):
                    await self._register.end(account, ended, "key replaced", also=values, forget_device=True)
            else:
                await self._register.save(*values)
                self._audit.record("account-updated", by=by, target=name, details=changed)
        return fresh

    async def set_role(self, name: str, role: str, *, by: str) -> Account:
        """Give another role; open sessions go on with it, or end, within a second."""
        async with self._register.changing():
            account = self._register.account(name)
            self._checked_role(account.type, role)
            if role != Role.ADMIN:
                self._keep_an_admin(account)
            fresh = replace(account, role=role, updated=self._clock())
            with self._audit.recording("role-set", by=by, target=name, details={"role": role, "before": account.role}):
                await self._register.change(fresh, "role")
            if self._register.has_admin():
                self._claim.close()
        return fresh

    async def set_password(self, name: str, password: str, *, by: str, keep_login: str | None = None) -> None:
        """Set a password. Logins by the old one end, except the one that is changing it; long-lived tokens stay."""
        self._register.account(name)
        hashed = await self._passwords.hash(checked_password(password, name))
        async with self._register.changing():
            account, now = self._register.account(name), self._clock()
            fresh = _credential(account, CredentialKind.PASSWORD, hashed, now, by)
            kept = [one for one in self._register.logins_of(name) if one.credential_id == keep_login]
            ended = self._register.of(account, CredentialKind.PASSWORD, CredentialKind.LOGIN)
            ended = [one for one in ended if one not in kept]
            # Whoever had the old password may have set the key.
            ended += self._key(account)
            spared = self._register.of(account, CredentialKind.TOKEN, CredentialKind.CERTIFICATE)
            moved = [replace(one, parent=fresh.credential_id) for one in kept]
            also: list[Account | Credential] = [fresh, replace(account, updated=now), *moved]
            told = Revocation(account=name, reason="password", spared=names([*spared, *kept]))
            with self._audit.recording("password-set", by=by, target=name):
                await self._register.end(account, ended, "password", also=also, tells=told, forget_device=True)

    async def disable(self, name: str, *, by: str) -> None:
        """Refuse every credential of an account and end its sessions, until it is enabled again."""
        async with self._register.changing():
            account = self._register.account(name)
            self._keep_an_admin(account)
            disabled = replace(account, disabled=True, updated=self._clock())
            told = Revocation(account=name, reason="disabled")
            logins = self._register.logins_of(name)
            with self._audit.recording("account-disabled", by=by, target=name):
                await self._register.end(account, logins, "disabled", also=[disabled], tells=told)

    async def enable(self, name: str, *, by: str) -> None:
        async with self._register.changing():
            account = self._register.account(name)
            await self._register.save(replace(account, disabled=False, updated=self._clock()))
        self._audit.record("account-enabled", by=by, target=name)

    async def remove(self, name: str, *, by: str) -> None:
        """Remove an account with all its credentials; its Things and history stay."""
        async with self._register.changing():
            self._keep_an_admin(self._register.account(name))
            with self._audit.recording("account-removed", by=by, target=name):
                await self._register.remove(name)

    async def issue_token(
        self,
        name: str,
        *,
        label: str = "",
        validity_s: float | None = None,
        by: str,
        only_for: Callable[[Account], bool] = lambda account: True,
        parent: Callable[[Account], Credential | None] = lambda account: None,
    ) -> tuple[Credential, str]:
        """Give a long-lived token; its text is known now and never again. `parent` says what it was fetched with.
        Raises Conflict if the account that has the name by now is not the one it is for."""
        now = self._clock()
        async with self._register.changing():
            account = self._register.account(name)
            if account.disabled:
                raise Forbidden(f"account {name!r} is disabled")
            if not only_for(account):
                raise Conflict(f"{name!r} is another account by now, or has another key")
            if len(self._register.tokens_of(name)) >= MAX_TOKENS:
                raise QueueFull(f"account {name!r}", MAX_TOKENS, "tokens")
            text, kept = self._made(account, label, validity_s, now, by, parent(account))
            await self._register.save(kept)
        self._audit.record("token-issued", by=by, target=name, details={"tokenID": kept.credential_id, "label": label})
        return kept, text

    async def revoke_token(self, token_id: str, *, by: str, of: str | None = None) -> None:
        """End a long-lived token and its sessions; with `of`, only if it is that account's. An agent's key, which
        could fetch another, ends with it."""
        async with self._register.changing():
            token = self._register.standing(token_id, CredentialKind.TOKEN)
            if token is None or of not in (None, token.account):
                raise NotFound(f"no token {token_id[:64]!r}")
            with self._audit.recording("token-revoked", by=by, target=token.account, details={"tokenID": token_id}):
                await self._end_with_key([token], "token revoked")

    async def end_login(self, login_id: str, *, by: str, of: str | None = None) -> None:
        """End one login with its tokens and sessions."""
        async with self._register.changing():
            login = self._register.standing(login_id, CredentialKind.LOGIN)
            if login is None or of not in (None, login.account):
                raise NotFound(f"no login {login_id[:64]!r}")
            with self._audit.recording("login-ended", by=by, target=login.account, details={"login": login_id}):
                await self._register.end(self._register.account(login.account), [login], "ended")

    async def end_sessions(self, name: str, *, by: str) -> None:
        """End all logins and open sessions of an account; its long-lived tokens may come back."""
        async with self._register.changing():
            account, told = self._register.account(name), Revocation(account=name, reason="ended")
            with self._audit.recording("sessions-ended", by=by, target=name):
                await self._register.end(account, self._register.logins_of(name), "ended", tells=told)

    async def revoke(self, credential_id: str, *, by: str, of: str | None = None) -> Credential:
        """End one credential of any kind, everything that was made from it, and their sessions; with `of`, only if it
        is that account's. Raises NotFound."""
        async with self._register.changing():
            found = self._register.standing(credential_id)
            if found is None or of not in (None, found.account):
                raise NotFound(f"no credential {credential_id[:64]!r}")
            details = {"credential": found.credential_id, "kind": str(found.kind)}
            with self._audit.recording("credential-revoked", by=by, target=found.account, details=details):
                await self._end_with_key(self._register.lineage(found), "revoked")
        return found

    async def revoke_all(self, name: str, *, by: str) -> int:
        """End every credential of an account, its password too, and its sessions; how many these were. Whoever is to
        come back needs a new one."""
        async with self._register.changing():
            account = self._register.account(name)
            found = self._register.of(account)
            told = Revocation(account=name, reason="revoked")
            with self._audit.recording("credentials-revoked", by=by, target=name, details={"count": len(found)}):
                await self._register.end(account, found, "revoked", tells=told, forget_device=True)
        return len(found)

    async def end_signed(self, *, long_lived: bool) -> None:
        """End the logins of all accounts; with `long_lived` their tokens too, and the keys of agents. Called while
        nobody else changes anything."""
        kinds = (CredentialKind.LOGIN, CredentialKind.TOKEN) if long_lived else (CredentialKind.LOGIN,)

        def signed(account: Account) -> list[Credential]:
            return self._register.of(account, *kinds) + (self._key(account) if long_lived else [])

        await self._register.end_of_all(signed, "key rotated", forget_devices=long_lived)

    async def _end_with_key(self, ended: Sequence[Credential], reason: str) -> None:
        """End credentials of one account. With a token or key goes what could fetch another."""
        account = self._register.account(ended[0].account)
        fetches = any(one.kind in (CredentialKind.TOKEN, CredentialKind.KEY) for one in ended)
        if fetches:
            ended = [*ended, *(one for one in self._key(account) if one not in ended)]
        await self._register.end(account, ended, reason, forget_device=fetches)

    def _key(self, account: Account) -> list[Credential]:
        """The key that ends with the tokens of an account, of which it could fetch more."""
        found = self._register.of(account, CredentialKind.KEY) if account.type is AccountType.AGENT else []
        if found:
            self._audit.record("key-ended", by="authn", target=account.name)
        return found

    def _made(
        self,
        account: Account,
        label: str,
        validity_s: float | None,
        now: int,
        by: str,
        parent: Credential | None = None,
    ) -> tuple[str, Credential]:
        if validity_s is not None and not 1 <= validity_s <= MAX_TOKEN_S:
            raise Invalid(f"a token may be valid from 1 second to {MAX_TOKEN_S:.0f}")
        text, claims = self._tokens.issue(TokenKind.LONG, account.name, now=now, validity_s=validity_s)
        kept = _credential(account, CredentialKind.TOKEN, token_hash(text), now, by)
        return text, replace(
            kept,
            credential_id=claims.token_id,
            label=checked_display_name(label),
            parent=None if parent is None else parent.credential_id,
            expires=claims.expires,
        )

    def _checked_role(self, type_: AccountType, role: str) -> str:
        if not self.is_role(role):
            raise Invalid(f"there is no role {role[:64]!r}")
        if role == Role.AGENT and type_ is not AccountType.AGENT:
            raise Invalid("the role agent is for accounts of type agent")
        if role == Role.SERVICE and type_ is not AccountType.SERVICE:
            raise Invalid("the role service is for accounts of type service")
        if type_ is AccountType.AGENT and role in {Role.OPERATOR, Role.MANAGER, Role.ADMIN}:
            raise Invalid(f"an agent cannot be {role}; use a consumer or service account")
        return role

    def _keep_an_admin(self, account: Account) -> None:
        if account.role == Role.ADMIN and not account.disabled and not self._register.has_admin(without=account.name):
            raise Conflict(f"{account.name!r} is the last admin; make another one first")


async def _nobody(_name: str) -> None:
    """Nobody wants to know."""


def _credential(account: Account, kind: CredentialKind, proof: str, now: int, by: str) -> Credential:
    return Credential(
        credential_id=secrets.token_urlsafe(16),
        kind=kind,
        account_id=account.account_id,
        account=account.name,
        made_by=by,
        proof=proof,
        created=now,
    )


def checked_display_name(text: str) -> str:
    """`text` if it can be shown anywhere: short, without control characters or marks that turn the direction."""
    if len(text) > MAX_DISPLAY_CHARS:
        raise Invalid(f"a display name has at most {MAX_DISPLAY_CHARS} characters")
    if any(unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for character in text):
        raise Invalid("a display name holds no control or invisible characters")
    return text
