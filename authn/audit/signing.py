"""The gateway's own signature: one Ed25519 key, `keys/audit.pem`, for the lines of its audit log and their anchors."""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from authn.keyfiles import make_private_folder, read_private
from things.errors import ConfigInvalid, Invalid
from things.whole_files import write_whole

FILE = "audit.pem"
LINE = b"skep audit line\n"
ANCHOR = b"skep audit anchor\n"
"""What comes before a text that is signed, so that a signature of one kind is none of another."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The private key, and its public half as text."""

    key: Ed25519PrivateKey
    public: str

    @staticmethod
    def of(folder: Path) -> "Signer":
        """The key in `folder`, made where there is none. Raises ConfigInvalid if others may read it, or it is none."""
        make_private_folder(folder)
        path = folder / FILE
        try:
            key = serialization.load_pem_private_key(read_private(path), None)
        except FileNotFoundError:
            key = Ed25519PrivateKey.generate()
            pem = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            write_whole(path, pem)
        except ValueError as error:
            raise ConfigInvalid(f"{path} does not hold a private key") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigInvalid(f"{path} does not hold an Ed25519 key")
        raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return Signer(key, _text(raw))

    def signature(self, purpose: bytes, text: bytes) -> str:
        """86 characters, base64url."""
        return _text(self.key.sign(purpose + text))


def public_key(text: str) -> Ed25519PublicKey:
    """A public key as `skep audit verify` prints it, 43 characters. Raises Invalid."""
    try:
        return Ed25519PublicKey.from_public_bytes(_bytes(text))
    except (ValueError, binascii.Error) as error:
        raise Invalid("a public key of an audit log is 43 characters of base64url") from error


def is_signed(key: Ed25519PublicKey, purpose: bytes, text: bytes, signature: str) -> bool:
    """Whether the owner of `key` signed `text`."""
    try:
        key.verify(_bytes(signature), purpose + text)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def fingerprint(public: str) -> str:
    """16 hexadecimal digits, for people to compare."""
    return hashlib.sha256(_bytes(public)).hexdigest()[:16]


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
