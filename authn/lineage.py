"""Whether an account and a credential still stand: the one rule by which everything that was put off is judged.

A principal was made when somebody came; what it left behind (a will, a kept session, a queued request) takes effect
later, perhaps after a restart. By then the account may be gone, disabled or another one of the same name, and the
password, login, token or certificate may have ended.
"""

import secrets
from dataclasses import replace

from authn.accounts import Account
from authn.credentials import Credential, CredentialKind
from authn.register import Register
from things.identity import RESERVED_ACCOUNTS, Principal

BEFORE = "before:"
"""The login of somebody of whom an earlier version kept no more than the name and the time (µs UTC)."""
_PASSWORD = f"{CredentialKind.PASSWORD}:"
_CERTIFICATE = f"{CredentialKind.CERTIFICATE}:"


def password_login(password: Credential) -> str:
    """The id of one connection by password; it is stored nowhere, so it says which password it was."""
    return f"{password.name}:{secrets.token_urlsafe(12)}"


def credential_id(principal: Principal) -> str | None:
    """The id of the credential that a principal came with: its login, token, certificate or password."""
    login_id = principal.login_id
    if login_id is None or login_id.startswith(BEFORE):
        return None
    if login_id.startswith(_PASSWORD):
        return _password_id(login_id, principal.account_id)
    return login_id.removeprefix(_CERTIFICATE)


def standing(register: Register, principal: Principal, *, after_logout: bool = False) -> Principal | None:
    """`principal` with the type and role its account has now; None if its account or its login stands no more. A
    credential that merely expired was taken from nobody: it stands as long as it is in the register. With
    `after_logout` a login that was left counts as long as its password does: who leaves wants what they asked for."""
    if principal.account in RESERVED_ACCOUNTS:
        # The built-in services, and the owner at the control socket; nobody logs in as these.
        return principal
    account = register.accounts.get(principal.account)
    if account is None or account.disabled or principal.account_id not in (None, account.account_id):
        return None
    if not _is_login(register, account, principal) and not (
        after_logout and _is_password(register, account, principal)
    ):
        return None
    if (account.type, account.role) == (principal.type, principal.role):
        return principal
    return replace(principal, type=account.type, role=account.role)


def _is_login(register: Register, account: Account, principal: Principal) -> bool:
    login_id = principal.login_id or ""
    if login_id.startswith(BEFORE):
        return account.created <= int(login_id.removeprefix(BEFORE))
    access = register.credentials.get(principal.token_id or "")
    if access is not None and access.ended is not None:
        return False
    if login_id.startswith(_PASSWORD):
        login_id = _password_id(login_id, account.account_id)
    kept = register.standing(login_id.removeprefix(_CERTIFICATE))
    return kept is not None and kept.account_id == account.account_id


def _is_password(register: Register, account: Account, principal: Principal) -> bool:
    credential = principal.credential or ""
    if principal.account_id != account.account_id or not credential.startswith(_PASSWORD):
        return False
    login = register.credentials.get(principal.login_id or "")
    if login is not None and login.ended is not None and not login.is_left:
        return False
    return register.standing(_password_id(credential, account.account_id), CredentialKind.PASSWORD) is not None


def _password_id(name: str, account_id: str | None) -> str:
    """`password:{id}`, `password:{id}:{connection}` → id."""
    found = name.removeprefix(_PASSWORD).partition(":")[0]
    # Of an earlier version, which called the password of every account so.
    return f"first-{account_id}" if found == "first" else found
