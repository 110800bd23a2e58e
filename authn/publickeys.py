"""Public keys of devices: Ed25519 or ECDSA P-256, kept as PEM, and the signatures made with them."""

import base64
import binascii
import hashlib

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from things.errors import Invalid

MAX_CHARS = 1_024


def checked_public_key(text: object) -> str:
    """The key in `text` (PEM, or base64 of 32 raw Ed25519 bytes or of DER) as PEM; raises Invalid."""
    key = _loaded(text)
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def fingerprint(pem: str) -> str:
    """SHA-256 of the key itself, in hex: what two people compare."""
    der = _loaded(pem).public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def is_signed(pem: str, signature: object, text: str) -> bool:
    """Whether `signature` (base64) was made over `text` with the private half of `pem`."""
    if not isinstance(signature, str) or len(signature) > MAX_CHARS:
        return False
    key = _loaded(pem)
    try:
        raw = _base64(signature)
        if isinstance(key, Ed25519PublicKey):
            key.verify(raw, text.encode())
        else:
            key.verify(raw, text.encode(), ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, UnicodeEncodeError):
        return False
    return True


def _loaded(text: object) -> Ed25519PublicKey | EllipticCurvePublicKey:
    if not isinstance(text, str) or not text or len(text) > MAX_CHARS:
        raise Invalid("the public key is missing or too long")
    try:
        if text.lstrip().startswith("-----BEGIN"):
            key = serialization.load_pem_public_key(text.encode())
        else:
            raw = _base64(text)
            key = Ed25519PublicKey.from_public_bytes(raw) if len(raw) == 32 else serialization.load_der_public_key(raw)
    except (ValueError, UnsupportedAlgorithm, UnicodeEncodeError) as error:
        raise Invalid("the public key cannot be read; give PEM, or base64 of an Ed25519 key") from error
    if isinstance(key, Ed25519PublicKey):
        return key
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return key
    raise Invalid("the public key must be Ed25519 or ECDSA P-256")


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(
            text.strip().replace("-", "+").replace("_", "/") + "=" * (-len(text.strip()) % 4), validate=True
        )
    except binascii.Error as error:
        raise ValueError("not base64") from error
