"""The client certificates that were issued: each is listed, checked whenever it is shown, and can be ended by itself.

The TLS layer has checked that our authority signed a certificate and that it is in time; the name in it is no more
than a claim. What counts is that its serial stands here, for the account that has the name now. Ended ones are kept, so
that they are not taken for those of an earlier version, which kept no list: such a one is recorded when it is first
shown, if it was issued before the list began and while this account existed.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from authn.accounts import Account, Certificate
from authn.audit import Audit
from authn.register import CERTIFICATE, Register
from things.errors import ConfigInvalid, Forbidden, Invalid, NotFound, QueueFull, SkepError, Unauthenticated
from things.identity import Principal, ShownCertificate

MAX_CERTIFICATES = 100
"""Of one account, ended and expired ones not counted."""
NOTED_EVERY_US = 3_600_000_000
"""How exactly it is known when a certificate was last used: by the hour, since it is shown with every connection."""
BACKDATED_US = 86_400_000_000
"""Certificates are valid from a day before they were made, for clients whose clock is slow."""
_LEEWAY_US = 1_000_000
"""Times in certificates are whole seconds."""

log = logging.getLogger(__name__)


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
    ) -> tuple[str, str | None, Certificate]:
        """A certificate and its key (None if the client's public key was given) as PEM, and what is kept of it. Raises
        UnknownAccount, Forbidden for a disabled account, Invalid for a key that is none, QueueFull."""
        async with self._register.changing():
            account = self._register.account(name)
            if account.disabled:
                raise Forbidden(f"account {name!r} is disabled")
            now = self._clock()
            standing = [one for one in self.of(name) if one.expires > now]
            if len(standing) >= MAX_CERTIFICATES:
                raise QueueFull(f"account {name!r}", MAX_CERTIFICATES, "certificates")
            try:
                pem, key = authority.issue_client(name, public_key)
            except (ValueError, UnsupportedAlgorithm, ConfigInvalid) as error:
                raise Invalid("`publicKey` is an ECDSA P-256 key as PEM") from error
            made = x509.load_pem_x509_certificate(pem.encode())
            kept = Certificate(
                serial=f"{made.serial_number:x}",
                account=name,
                created=now,
                expires=int(made.not_valid_after_utc.timestamp() * 1_000_000),
            )
            await self._register.save(kept)
        self._audit.record("certificate-issued", by=by, target=name, details={"serial": kept.serial})
        return pem, key, kept

    def of(self, name: str | None) -> list[Certificate]:
        """Those that were not ended, of one account or of all, oldest first."""
        found = [one for one in self._register.certificates.values() if one.ended is None]
        return sorted((one for one in found if name in (None, one.account)), key=lambda one: (one.account, one.created))

    async def revoke(self, serial: str, *, by: str, of: str | None = None) -> None:
        """End a certificate and the sessions it opened; with `of`, only if it is that account's. Raises NotFound."""
        async with self._register.changing():
            kept = self._register.certificates.get(serial)
            if kept is None or kept.ended is not None or (of is not None and kept.account != of):
                raise NotFound(f"no certificate {serial[:64]!r}")
            await self._register.end_certificate(replace(kept, ended=self._clock()))
        self._audit.record("certificate-revoked", by=by, target=kept.account, details={"serial": serial})

    async def principal(self, shown: ShownCertificate) -> Principal:
        """Who shows a certificate. Raises Unauthenticated."""
        now = self._clock()
        kept = self._standing(shown, now)
        if kept is None or kept.last_used is None or now - kept.last_used >= NOTED_EVERY_US:
            kept = await self._noted(shown, now)
        account = self._register.accounts.get(shown.name)
        if kept is None or account is None or account.disabled:
            self._audit.record(
                "login", by=shown.name, outcome="certificate refused", details={"serial": shown.serial[:64]}
            )
            raise Unauthenticated
        return Principal(
            account=account.name,
            type=account.type,
            role=account.role,
            login_id=f"{CERTIFICATE}{kept.serial}",
            expires=kept.expires,
            account_id=account.account_id,
            credential=f"{CERTIFICATE}{kept.serial}",
        )

    def _standing(self, shown: ShownCertificate, now: int) -> Certificate | None:
        kept = self._register.certificates.get(shown.serial)
        if kept is None or kept.ended is not None or kept.account != shown.name or kept.expires <= now:
            return None
        return kept

    async def _noted(self, shown: ShownCertificate, now: int) -> Certificate | None:
        """The certificate with the time of this use; recorded now, if it is one of an earlier version."""
        async with self._register.changing():
            kept, account = self._standing(shown, now), self._register.accounts.get(shown.name)
            if account is None or account.disabled:
                return None
            if kept is None and shown.serial not in self._register.certificates and self._is_earlier(shown, account):
                made = shown.not_before + BACKDATED_US
                kept = Certificate(serial=shown.serial, account=account.name, created=made, expires=shown.not_after)
            if kept is None:
                return None
            noted = replace(kept, last_used=now)
            try:
                await self._register.save(noted)
            except SkepError as error:
                # Whoever has a good certificate gets in, also to clear a full disk.
                log.warning("the use of a certificate was not stored", extra={"code": error.code})
            return noted

    def _is_earlier(self, shown: ShownCertificate, account: Account) -> bool:
        made = shown.not_before + BACKDATED_US
        return made < self._since and account.created <= made + _LEEWAY_US and shown.not_after > self._clock()
