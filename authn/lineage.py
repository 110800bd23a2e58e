"""Whether an account and a credential still stand: the one rule by which everything that was put off is judged.

A principal was made when somebody came; what it left behind (a will, a kept session, a queued request) takes effect
later, perhaps after a restart. By then the account may be gone, disabled or another one of the same name, and the
password, login, token or certificate may have ended.
"""

import secrets
from dataclasses import replace

from authn.accounts import Account
from authn.register import CERTIFICATE, Register
from things.identity import RESERVED_ACCOUNTS, Principal

PASSWORD = "password:"
BEFORE = "before:"
"""The login of somebody of whom an earlier version kept no more than the name and the time (µs UTC)."""


def password_credential(password_id: str | None) -> str:
    """How a principal names the password it began with."""
    return f"{PASSWORD}{password_id}"


def password_login(password_id: str | None) -> str:
    """The id of one connection by password; it is stored nowhere, so it says which password it was."""
    return f"{password_credential(password_id)}:{secrets.token_urlsafe(12)}"


def standing(register: Register, principal: Principal, *, after_logout: bool = False) -> Principal | None:
    """`principal` with the type and role its account has now; None if its account or its login stands no more. A
    credential that merely expired was taken from nobody: it stands as long as it is in the register. With
    `after_logout` a login that has ended counts as long as its password does: who leaves wants what they asked for."""
    if principal.account in RESERVED_ACCOUNTS:
        # The built-in services, and the owner at the control socket; nobody logs in as these.
        return principal
    account = register.accounts.get(principal.account)
    if account is None or account.disabled:
        return None
    if not _is_login(register, account, principal) and not (after_logout and _is_password(account, principal)):
        return None
    if (account.type, account.role) == (principal.type, principal.role):
        return principal
    return replace(principal, type=account.type, role=account.role)


def _is_login(register: Register, account: Account, principal: Principal) -> bool:
    login_id = principal.login_id or ""
    kept = register.logins.get(login_id) or register.tokens.get(login_id)
    if kept is not None:
        # These end with their account, so none can be that of an earlier one.
        return kept.account == account.name
    if login_id.startswith(CERTIFICATE):
        shown = register.certificates.get(login_id.removeprefix(CERTIFICATE))
        return shown is not None and shown.ended is None and shown.account == account.name
    if login_id.startswith(BEFORE):
        return account.created <= int(login_id.removeprefix(BEFORE))
    if principal.account_id != account.account_id:
        return False
    return login_id.startswith(f"{password_credential(account.password_id)}:")


def _is_password(account: Account, principal: Principal) -> bool:
    return (
        principal.account_id == account.account_id
        and account.password_id is not None
        and principal.credential == password_credential(account.password_id)
    )
