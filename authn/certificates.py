"""The local certificate authority and the server's certificate, and TLS contexts made from them.

Made at first start in `{home}/certs`: `ca.pem` (give it to clients) and `ca.key`, `server.pem` and `server.key`; keys
are 0600 and refused if others may read them. The server certificate is renewed at two thirds of its life, or at once
when a name is missing in it that the authority may certify (`authn.name_constraints`). Contexts that were handed out
take a renewed certificate for new connections; open ones are not disturbed. Own certificates may be configured
instead; then they are watched, not renewed, and a pair that cannot be served is not taken.
"""

import ipaddress
import logging
import os
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from authn.keyfiles import make_private_folder, read_private
from authn.name_constraints import CLIENT, constraints, may_certify
from authn.served import ServerFiles, read_pair
from things.errors import ConfigInvalid, Invalid, StorageDamaged
from things.hosts import LOOPBACK
from things.names import checked_account
from things.whole_files import write_whole

CA_DAYS = 3_650
SERVER_DAYS = 365
CLIENT_DAYS = 365
WARN_DAYS = 30

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2; forward secrecy and authenticated encryption only. TLS 1.3 suites are all of that kind."""

log = logging.getLogger(__name__)


class Certificates:
    """Certificates of one installation; `clock` gives µs UTC, `names` are those of the server certificate."""

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], int],
        *,
        names: Sequence[str] = LOOPBACK,
        own: ServerFiles | None = None,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._names = tuple(names)
        self._own = own
        self._making = threading.Lock()
        self._contexts: list[ssl.SSLContext] = []
        make_private_folder(folder)
        if not self.ca_file.exists():
            self._make_ca()
        self._ca = _certificate(self.ca_file)
        self._ca_key = _key(folder / "ca.key")
        if own is None and (not self.files.certificate.exists() or self._is_due()):
            self._make_server()
        self._looked = self._read = self.files.signature()
        self._served = read_pair(self.files, now=self._now())
        self.problem: str | None = None
        """Why what lies in the own files now is not served."""

    @property
    def ca_file(self) -> Path:
        """The authority's certificate, for clients to trust."""
        return self._folder / "ca.pem"

    @property
    def is_own(self) -> bool:
        """Whether the server shows a certificate of its owner instead of one that the authority signed."""
        return self._own is not None

    @property
    def files(self) -> ServerFiles:
        return self._own or ServerFiles(certificate=self._folder / "server.pem", key=self._folder / "server.key")

    @property
    def ca_pem(self) -> str:
        """The same as text."""
        return self._ca.public_bytes(serialization.Encoding.PEM).decode()

    def fingerprint(self) -> str:
        """SHA-256 of the authority's certificate, to compare when it is installed on a client."""
        return self._ca.fingerprint(hashes.SHA256()).hex(":")

    def server_context(self) -> ssl.SSLContext:
        """A context for one listener: TLS 1.2 or later; client certificates are asked for and must be ours if given."""
        context = self._made_context()
        self._contexts.append(context)
        return context

    def _made_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=self.ca_pem)
        self._served.load_into(context)
        return context

    def client_context(self) -> ssl.SSLContext:
        """A context for clients on this machine (CLI, tests): trusts the local authority."""
        return ssl.create_default_context(cafile=str(self.ca_file))

    def prepare(self, names: Sequence[str] | None = None) -> bool:
        """Make a server certificate unless the one there has these names (those of before, if none are given) and is
        in the first two thirds of its life; for a thread, since it syncs files. True: `serve` is to follow, in the
        loop. A name that is gone stays until the next one is made. Raises SkepError, OSError."""
        if names is not None:
            self._names = tuple(names)
        if self._own is not None or not self._is_due():
            return False
        self._make_server()
        self.read()
        return True

    def has_changed(self) -> bool:
        """Whether the files are others than were read last, and are no longer being replaced: this and the last call
        found the same. For a thread."""
        found = self.files.signature()
        is_settled, self._looked = found == self._looked, found
        return is_settled and found != self._read

    def read(self) -> None:
        """Read the files again, for a thread; `serve` is to follow, in the loop. Raises ConfigInvalid for what cannot
        be served: the former pair stays."""
        self._read = self.files.signature()
        try:
            with self._making:
                self._served = read_pair(self.files, now=self._now(), instead_of=self._served)
        except ConfigInvalid as error:
            self.problem = error.detail
            raise
        self.problem = None

    def serve(self) -> None:
        """Show to new connections what was read last."""
        served = self._made_context()

        def show(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _first: ssl.SSLContext) -> None:
            connection.context = served

        # A context keeps a pair for each kind of key: an RSA certificate would stand beside the ECDSA one before it.
        for context in self._contexts:
            context.sni_callback = show

    def expires(self) -> datetime:
        """When what is served ends."""
        return self._served.certificate.not_valid_after_utc

    def ends(self) -> Mapping[str, datetime]:
        """When the server's certificate and that of the local authority end."""
        return {"server": self.expires(), "authority": self._ca.not_valid_after_utc}

    def warnings(self) -> list[str]:
        """Sentences for the readiness page and the log about certificates that end soon, or have ended."""
        found = []
        now = self._now()
        for what, end in self.ends().items():
            days = (end - now) / timedelta(days=1)
            if days <= 0:
                found.append(f"the {what} certificate expired on {end:%Y-%m-%d}")
            elif days <= WARN_DAYS:
                found.append(f"the {what} certificate expires on {end:%Y-%m-%d}")
        if self._served.certificate.not_valid_before_utc > now + timedelta(days=1):
            found.append("the server certificate is not valid yet; is the clock right?")
        if self.problem is not None:
            found.append(f"{self.problem}; the former certificate is served until that is mended")
        if self._own is not None and not any(self._served.is_for(name) for name in self._names):
            said = ", ".join(self._served.names()) or "nobody"
            found.append(
                f"the server certificate is for {said}, which is none of this gateway's names: set gateway.names, or "
                "clients refuse it"
            )
        if outside := [name for name in self._names if self._own is None and not may_certify(self._ca, name)]:
            found.append(
                f"the local authority may not certify {', '.join(outside)}, which it was not made for: use own "
                f"certificates, or remove {self.ca_file} and give clients the one that the next start makes"
            )
        return found

    def issue_client(self, account: str, public_key_pem: str | None = None) -> tuple[str, str | None]:
        """A client certificate whose common name is `account`: (certificate, private key) as PEM; no key is made when
        the client's public one is given."""
        checked_account(account)
        private: ec.EllipticCurvePrivateKey | None = None
        if public_key_pem is None:
            private = ec.generate_private_key(ec.SECP256R1())
            public: object = private.public_key()
        else:
            public = _client_key(public_key_pem)
        certificate = (
            self._builder(account, public, CLIENT_DAYS)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(CLIENT)]), critical=False)
            .sign(self._ca_key, hashes.SHA256())
        )
        key = None if private is None else _pem(private).decode()
        return certificate.public_bytes(serialization.Encoding.PEM).decode(), key

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"skep local CA {os.urandom(4).hex()}")])
        now = self._now()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=CA_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .add_extension(constraints(self._names), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        # The key first: a certificate without its key would be taken for a finished authority.
        write_whole(self._folder / "ca.key", _pem(key))
        write_whole(self.ca_file, certificate.public_bytes(serialization.Encoding.PEM))
        self.ca_file.chmod(0o644)

    def _make_server(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [name for name in self._names if may_certify(self._ca, name)]
        certificate = (
            self._builder(names[0], key.public_key(), SERVER_DAYS)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
            .sign(self._ca_key, hashes.SHA256())
        )
        chain = certificate.public_bytes(serialization.Encoding.PEM) + self.ca_file.read_bytes()
        with self._making:
            write_whole(self.files.key, _pem(key))
            write_whole(self.files.certificate, chain)

    def _builder(self, common_name: str, public: object, days: int) -> x509.CertificateBuilder:
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ConfigInvalid("certificates are made for ECDSA keys")
        now = self._now()
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])]))
            .issuer_name(self._ca.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key.public_key()), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )

    def _is_due(self) -> bool:
        if self.files.key.exists():
            read_private(self.files.key)
        try:
            certificate, key = _certificate(self.files.certificate), _key(self.files.key)
        except (StorageDamaged, ConfigInvalid) as error:
            # The authority makes another one; nobody has to be given anything.
            log.warning("the server certificate is made anew", extra={"reason": error.detail})
            return True
        if certificate.public_key() != key.public_key():
            return True
        if certificate.issuer != self._ca.subject:
            return True  # there is a new authority
        start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if self._now() >= start + (end - start) * 2 / 3:
            return True
        carried = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return any(_alternative(name) not in carried for name in self._names if may_certify(self._ca, name))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock() / 1_000_000, UTC).replace(microsecond=0)


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError as error:
        raise StorageDamaged(f"the certificate {path} is missing") from error
    except ValueError as error:
        raise ConfigInvalid(f"{path} does not hold a certificate") from error


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(read_private(path), None)
    except FileNotFoundError as error:
        raise StorageDamaged(
            f"the key {path} is missing: restore it, or move {path.parent} away, and a new authority is made that "
            "clients have to be given"
        ) from error
    except ValueError as error:
        raise ConfigInvalid(f"{path} does not hold a private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigInvalid(f"{path} does not hold an ECDSA key")
    return key


def _client_key(pem: str) -> object:
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Invalid("the public key is not one in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey):
        raise Invalid("the public key is of a kind that TLS does not use")
    return key
