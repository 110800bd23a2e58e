"""Who somebody is: account ids, account types, built-in roles, and the principal made at authentication."""

import re
from dataclasses import dataclass
from enum import StrEnum

from things.errors import BadAddress

RESERVED_ACCOUNTS = frozenset({"authn", "authz", "directory", "values", "history", "skep"})
"""Accounts of the built-in services; nobody else may have these names."""

_ACCOUNT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class AccountType(StrEnum):
    """What an account is: an agent speaks for Things, a consumer uses them, a service does both."""

    AGENT = "agent"
    CONSUMER = "consumer"
    SERVICE = "service"


class Role(StrEnum):
    """The built-in roles; custom roles are plain strings beside these."""

    NONE = "none"
    VIEWER = "viewer"
    OPERATOR = "operator"
    MANAGER = "manager"
    ADMIN = "admin"
    AGENT = "agent"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """An authenticated account, made once by the authenticator and never changed.

    `role` is a `Role` value or the name of a custom role. `login_id` names the login or long-lived token it came from,
    so that ending a login ends its sessions; `expires` is when the credential ends (µs UTC), None if it does not.
    """

    account: str
    type: AccountType
    role: str
    token_id: str | None = None
    login_id: str | None = None
    expires: int | None = None


def checked_account(text: str) -> str:
    """`text` if it can name an account (`[a-z0-9][a-z0-9._-]{0,63}`); raises BadAddress."""
    if not _ACCOUNT.fullmatch(text):
        raise BadAddress(f"{text[:80]!r} cannot name an account: use a-z, 0-9, '.', '_', '-', at most 64")
    return text
