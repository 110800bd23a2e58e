"""Who somebody is: account types, built-in roles, and the principal made at authentication."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from things.names import GUEST_PREFIX, checked_account

RESERVED_ACCOUNTS = frozenset({"authn", "authz", "directory", "values", "history", "skep"})
"""Accounts of the built-in services; no other account may have these names."""


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
    """An authenticated account, made once by the authenticator and never changed. Raises BadAddress for what cannot
    name one; a guest of the messaging node has no account, and a name that none can have.

    `role` is a `Role` value or the name of a custom role. `login_id` names the login or long-lived token it came from,
    so that ending a login ends its sessions; `expires` is when the credential ends (µs UTC), None if it does not.
    `account_id` tells the account from others that had or will have its name. `credential` names the password, token or
    certificate everything began with. Both are None where an earlier version stored the principal.
    """

    account: str
    type: AccountType
    role: str
    token_id: str | None = None
    login_id: str | None = None
    expires: int | None = None
    account_id: str | None = None
    credential: str | None = None

    def __post_init__(self) -> None:
        checked_account(self.account.removeprefix(GUEST_PREFIX))

    @property
    def is_guest(self) -> bool:
        """Whether it is a runtime that an open messaging node admitted without an account."""
        return self.account.startswith(GUEST_PREFIX)

    def is_same(self, other: "Principal") -> bool:
        """Whether both are the same account, and not one an earlier one of the other's name."""
        ids = (self.account_id, other.account_id)
        return self.account == other.account and (None in ids or ids[0] == ids[1])

    @property
    def since(self) -> int:
        """When the account was made (µs UTC): what has its name from earlier belongs to another. 0 if not known."""
        made = (self.account_id or "").partition("-")[0]
        return int(made) if made.isdecimal() else 0


LOCAL_ADMIN = Principal(account="skep", type=AccountType.SERVICE, role=Role.ADMIN, login_id="local")
"""Who speaks through the control socket: the operating system has checked that it is the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """By whom something was asked that is carried out later, and over which protocol and from where."""

    principal: Principal
    binding: str = ""
    source: str | None = None

    def is_of(self, principal: Principal) -> bool:
        """Whether it is the same account's, and not that of an earlier one of the name."""
        return self.principal.is_same(principal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownCertificate:
    """What a client's TLS certificate says, once the TLS layer has verified it; times are µs UTC."""

    name: str
    serial: str
    not_before: int
    not_after: int


def shown_certificate(peer: Mapping[str, Any] | None) -> ShownCertificate | None:
    """What `ssl` reports of a verified client certificate; None without one, or without one common name."""
    found = peer or {}
    names = [str(value) for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    if len(names) != 1 or "serialNumber" not in found:
        return None
    return ShownCertificate(
        name=names[0],
        serial=f"{int(found['serialNumber'], 16):x}",
        not_before=ssl.cert_time_to_seconds(found["notBefore"]) * 1_000_000,
        not_after=ssl.cert_time_to_seconds(found["notAfter"]) * 1_000_000,
    )
