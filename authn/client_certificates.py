"""The client certificates that were issued: each is listed, checked whenever it is shown, and can be ended by itself.

The TLS layer has checked that our authority signed a certificate and that it is in time; the name in it is no more
than a claim. What counts is that its serial stands here, for the account that has the name now. Ended ones are kept, so
that they are not taken for those of an earlier version, which kept no list: such a one is recorded when it is first
shown, if it was issued before the list began and while this account existed.
"""

from collections.abc import Callable
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from authn.accounts import Account
from authn.audit import Audit
from authn.credentials import Credential, CredentialKind
from authn.logins import principal_of
from authn.register import Register
from things.errors import ConfigInvalid, Forbidden, Invalid, NotFound, QueueFull, Unauthenticated
from things.identity import Principal, ShownCertificate

MAX_CERTIFICATES = 100
"""Of one account, ended and expired ones not counted."""
BACKDATED_US = 86_400_000_000
"""Certificates are valid from a day before they were made, for clients whose clock is slow."""
_LEEWAY_US = 1_000_000
"""Times in certificates are whole seconds."""


class Authority(Protocol):
    """Who signs them."""

    def issue_client(self, account: str, public_key_pem: str | None = None) -> tuple[str, str | None]: ...


class ClientCertificates:
    """Issued certificates of all accounts. `since` is when the list began."""

    def __init__(self, register: Register, audit: Audit, clock: Callable[[], int], *, since: int) -> None:
        self._register = register
        self._audit = audit
        self._clock = clock
        self._since = since

    async def issue(
        self, authority: Authority, name: str, public_key: str | None, *, by: str
    ) -> tuple[str, str | None, Credential]:
        """A certificate and its key (None if the client's public key was given) as PEM, and what is kept of it. Raises
        UnknownAccount, Forbidden for a disabled account, Invalid for a key that is none, QueueFull."""
        async with self._register.changing():
            account = self._register.account(name)
            if account.disabled:
                raise Forbidden(f"account {name!r} is disabled")
            now = self._clock()
            standing = [one for one in self.of(name) if (one.expires or 0) > now]
            if len(standing) >= MAX_CERTIFICATES:
                raise QueueFull(f"account {name!r}", MAX_CERTIFICATES, "certificates")
            try:
                pem, key = authority.issue_client(name, public_key)
            except (ValueError, UnsupportedAlgorithm, ConfigInvalid) as error:
                raise Invalid("`publicKey` is an ECDSA P-256 key as PEM") from error
            made = x509.load_pem_x509_certificate(pem.encode())
            kept = _recorded(
                account,
                f"{made.serial_number:x}",
                by=by,
                created=now,
                expires=int(made.not_valid_after_utc.timestamp() * 1_000_000),
            )
            await self._register.save(kept)
        self._audit.record("certificate-issued", by=by, target=name, details={"serial": kept.credential_id})
        return pem, key, kept

    def of(self, name: str | None) -> list[Credential]:
        """Those that were not ended, of one account or of all, oldest first. Raises UnknownAccount."""
        return self._register.of_all(name, CredentialKind.CERTIFICATE)

    async def revoke(self, serial: str, *, by: str, of: str | None = None) -> None:
        """End a certificate and the sessions it opened; with `of`, only if it is that account's. Raises NotFound."""
        async with self._register.changing():
            kept = self._register.standing(serial, CredentialKind.CERTIFICATE)
            if kept is None or of not in (None, kept.account):
                raise NotFound(f"no certificate {serial[:64]!r}")
            with self._audit.recording("certificate-revoked", by=by, target=kept.account, details={"serial": serial}):
                await self._register.end(self._register.account(kept.account), [kept], "certificate revoked")

    async def principal(self, shown: ShownCertificate) -> Principal:
        """Who shows a certificate. Raises Unauthenticated."""
        now, account = self._clock(), self._register.accounts.get(shown.name)
        if account is not None and not account.disabled:
            await self._record_earlier(shown, account)
            kept = self._register.standing(shown.serial, CredentialKind.CERTIFICATE)
            is_good = kept is not None and kept.account_id == account.account_id and (kept.expires or 0) > now
            if kept is not None and is_good:
                self._register.note_use(kept, now)
                return principal_of(account, login_id=kept.name, credential=kept.name, expires=kept.expires)
        self._audit.record("login", by=shown.name, outcome="certificate refused", details={"serial": shown.serial[:64]})
        raise Unauthenticated

    async def _record_earlier(self, shown: ShownCertificate, account: Account) -> None:
        """Record a certificate of an earlier version, when it is first shown."""
        if shown.serial in self._register.credentials or not self._is_earlier(shown, account):
            return
        made = shown.not_before + BACKDATED_US
        async with self._register.changing():
            if shown.serial not in self._register.credentials:
                await self._register.keep(_recorded(account, shown.serial, created=made, expires=shown.not_after))

    def _is_earlier(self, shown: ShownCertificate, account: Account) -> bool:
        made = shown.not_before + BACKDATED_US
        return made < self._since and account.created <= made + _LEEWAY_US and shown.not_after > self._clock()


def _recorded(account: Account, serial: str, *, by: str = "", created: int, expires: int) -> Credential:
    return Credential(
        credential_id=serial,
        kind=CredentialKind.CERTIFICATE,
        account_id=account.account_id,
        account=account.name,
        made_by=by,
        created=created,
        expires=expires,
    )
