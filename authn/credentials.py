"""What proves an account, and what came of what: one value for passwords, keys, logins, tokens and certificates.

A credential says whose it is by the account's id, which is never used again, and which other one it was made from: an
access token from a login, a login from a password, a device's token from its key. One that was ended is kept for a
while, so that it can be seen what an account ever had.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

MAX_LEFT = 200
"""Of one account, those that were left or replaced: logins that were logged out of, above all. The first go first."""
LEFT_KEPT_US = 90 * 86_400 * 1_000_000
MAX_REVOKED = 1_000
"""Of one account, those that were taken from it."""
REVOKED_KEPT_US = 400 * 86_400 * 1_000_000
"""Longer than a request may wait that was asked with it. Certificates are kept as long as they would be valid, too: one
of which nothing is known may be one of an earlier version."""
LEFT = frozenset({"logout", "expired", "replaced"})
"""Why one ended that nobody took away."""


class CredentialKind(StrEnum):
    """What somebody has; `proof` is what is kept of it."""

    PASSWORD = "password"
    """Its hash."""
    KEY = "key"
    """For provisioning: the public half, as PEM."""
    LOGIN = "login"
    """A login by password and all that is refreshed from it: the hash of the one refresh token that is good."""
    ACCESS = "access-token"
    """Of a login; nothing is kept but that it was given."""
    TOKEN = "token"
    """A long-lived token: its hash."""
    CERTIFICATE = "certificate"
    """A client certificate, by its serial; nothing else is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """One credential; times are µs UTC. `used` is known by the hour. `ended` is when it was revoked or replaced."""

    credential_id: str
    kind: CredentialKind
    account_id: str
    account: str
    parent: str | None = None
    made_by: str = ""
    label: str = ""
    proof: str | None = None
    source: str | None = None
    created: int
    used: int | None = None
    expires: int | None = None
    ended: int | None = None
    because: str | None = None
    """Why it ended."""

    @property
    def is_left(self) -> bool:
        """Whether it ended without being taken away."""
        return self.because in LEFT

    @property
    def name(self) -> str:
        """How a principal names it, as its `login_id`, `token_id` or `credential`."""
        if self.kind in (CredentialKind.PASSWORD, CredentialKind.CERTIFICATE):
            return f"{self.kind}:{self.credential_id}"
        return self.credential_id


def lineage(first: Credential, among: Iterable[Credential]) -> list[Credential]:
    """A credential and everything that was made from it, directly or not."""
    below: dict[str, list[Credential]] = {}
    for one in among:
        if one.parent is not None:
            below.setdefault(one.parent, []).append(one)
    found = [first]
    for one in found:  # grows as it is read
        found += below.pop(one.credential_id, ())
    return found


def forgotten(credentials: Mapping[str, Credential], now: int) -> Iterator[Credential]:
    """Those of one account that need not be kept any longer."""
    ended = sorted((one for one in credentials.values() if one.ended is not None), key=lambda one: -(one.ended or 0))
    left = revoked = 0
    for one in ended:
        age = now - (one.ended or 0)
        if one.kind is CredentialKind.CERTIFICATE:
            is_kept = (one.expires or 0) > now or age < REVOKED_KEPT_US
        elif one.is_left:
            left += 1
            is_kept = left <= MAX_LEFT and age < LEFT_KEPT_US
        else:
            revoked += 1
            is_kept = revoked <= MAX_REVOKED and age < REVOKED_KEPT_US
        if not is_kept:
            yield one
    for one in credentials.values():
        if one.ended is None and one.kind is CredentialKind.ACCESS and (one.expires or 0) <= now:
            yield one


def names(credentials: Collection[Credential]) -> frozenset[str]:
    return frozenset(one.name for one in credentials)
