"""The certificate and key that the listeners show: read from two files, judged, and only then taken.

A pair is handed to a context as one: the files may be replaced, one after the other, while they are looked at, and a
context that was given a certificate without its key would refuse every client from then on.
"""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from authn.keyfiles import read_private
from things.errors import ConfigInvalid

_Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFiles:
    """Where the certificate, with its chain, and the key that are served lie."""

    certificate: Path
    key: Path

    def signature(self) -> _Signature:
        """Differs when one of them was replaced or changed."""
        return tuple(_stamp(path) for path in (self.certificate, self.key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate that belongs to its key."""

    certificate: x509.Certificate
    pem: bytes
    """The certificate with its chain, and the key."""

    def load_into(self, context: ssl.SSLContext) -> None:
        """Show it to new connections. Raises ConfigInvalid for what OpenSSL does not take."""
        # From memory: OpenSSL reads files only, and these must not be replaced meanwhile.
        file = os.memfd_create("pair", os.MFD_CLOEXEC)
        try:
            with os.fdopen(file, "wb", closefd=False) as writing:
                writing.write(self.pem)
            context.load_cert_chain(f"/proc/self/fd/{file}")
        except ssl.SSLError as error:
            raise ConfigInvalid(f"the certificate is not one to serve: {error.reason or error}") from error
        finally:
            os.close(file)

    def names(self) -> Sequence[str]:
        """The hosts and addresses it is for (RFC 6125: the common name is none)."""
        try:
            carried = self.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            return []
        return [
            *carried.get_values_for_type(x509.DNSName),
            *(str(address) for address in carried.get_values_for_type(x509.IPAddress)),
        ]

    def is_for(self, host: str) -> bool:
        """Whether a client that calls the server so believes the certificate (RFC 6125, section 6.4.3)."""
        beyond = host.partition(".")[2]
        return any(name.lower() == host or (beyond and name.lower() == f"*.{beyond}") for name in self.names())


def read_pair(files: ServerFiles, *, now: datetime, instead_of: Pair | None = None) -> Pair:
    """The pair in two files. One that has ended is taken `instead_of` none, or of one that has ended too. Raises
    ConfigInvalid."""
    try:
        chain, secret = files.certificate.read_bytes(), read_private(files.key)
    except OSError as error:
        raise ConfigInvalid(f"{error.filename} cannot be read: {error.strerror}") from error
    certificate = _certificate(files.certificate, chain)
    if certificate.public_key() != _public_key(files.key, secret):
        raise ConfigInvalid(f"{files.certificate} and {files.key} do not belong together")
    if not _may_serve(certificate):
        raise ConfigInvalid(f"{files.certificate} is not for servers (its extended key usage)")
    end = certificate.not_valid_after_utc
    if end <= now and instead_of is not None and instead_of.certificate.not_valid_after_utc > now:
        raise ConfigInvalid(f"{files.certificate} ended on {end:%Y-%m-%d}")
    pair = Pair(certificate=certificate, pem=chain.rstrip() + b"\n" + secret)
    pair.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    return pair


def _certificate(path: Path, chain: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(chain)[0]
    except ValueError as error:
        raise ConfigInvalid(f"{path} does not hold a certificate in PEM") from error


def _public_key(path: Path, secret: bytes) -> object:
    try:
        return serialization.load_pem_private_key(secret, None).public_key()
    except TypeError as error:
        raise ConfigInvalid(f"{path} is encrypted; a key without passphrase is needed") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigInvalid(f"{path} does not hold a private key in PEM") from error


def _may_serve(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return ExtendedKeyUsageOID.SERVER_AUTH in usage or ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE in usage


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
