"""Signed tokens: one Ed25519 key per installation, three kinds of token, and a reader that takes nothing on trust.

A token names an account, a login (or, when long-lived, itself) and an audience; what the account may do is looked up,
never carried. The reader accepts one algorithm, keys it holds, the kind that is asked for, and only the canonical
spelling of a token, so that no second text passes for the same one.
"""

import base64
import binascii
import errno
import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeGuard

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from authn.keyfiles import make_private_folder, read_private
from things.errors import ConfigInvalid, StorageFailed, StorageFull, TokenExpired, TokenInvalid
from things.whole_files import write_whole

MAX_TOKEN_CHARS = 2_048
ALGORITHM = "EdDSA"

_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_US = 1_000_000


class TokenKind(StrEnum):
    """What a token is for; the JOSE header's `typ`."""

    ACCESS = "at+jwt"
    REFRESH = "rt+jwt"
    LONG = "lt+jwt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a genuine token says; times are µs UTC."""

    kind: TokenKind
    key_id: str
    account: str
    token_id: str
    login_id: str
    issued: int
    expires: int | None


class Keyring:
    """The signing key in `{folder}`, and retired keys that still vouch for long-lived tokens.

    `token-{kid}.pem` is the private key, 0600; `retired-{kid}.pem` are public ones.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        make_private_folder(folder)
        self.retired: dict[str, Ed25519PublicKey] = {}
        found = sorted(folder.glob("token-*.pem"), key=lambda path: path.stat().st_mtime_ns)
        for path in folder.glob("retired-*.pem"):
            public = serialization.load_pem_public_key(read_private(path))
            if isinstance(public, Ed25519PublicKey):
                self.retired[_key_id(public)] = public
        if found:
            self.key = _load_key(found[-1])
            for older in found[:-1]:  # a rotation that a crash interrupted
                self._retire(_load_key(older))
        else:
            self.key = self._made()
        self.key_id = _key_id(self.key.public_key())

    def rotate(self) -> None:
        """Sign with a fresh key from now on; the old one stays known for long-lived tokens only. Raises StorageFull,
        StorageFailed; what was begun then is finished by the next start."""
        old = self.key
        try:
            self.key = self._made()
            self.key_id = _key_id(self.key.public_key())
            self._retire(old)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFull("no space left for keys") from error
            raise StorageFailed(f"the keys cannot be written: {error.strerror}") from error

    def public(self, key_id: str, kind: TokenKind) -> Ed25519PublicKey | None:
        """The key that may have signed a token of this kind."""
        if key_id == self.key_id:
            return self.key.public_key()
        return self.retired.get(key_id) if kind is TokenKind.LONG else None

    def _made(self) -> Ed25519PrivateKey:
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_whole(self._folder / f"token-{_key_id(key.public_key())}.pem", pem)
        return key

    def _retire(self, key: Ed25519PrivateKey) -> None:
        public = key.public_key()
        self.retired[_key_id(public)] = public
        pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        write_whole(self._folder / f"retired-{_key_id(public)}.pem", pem)
        (self._folder / f"token-{_key_id(public)}.pem").unlink(missing_ok=True)


class Tokens:
    """Makes and reads tokens of one installation."""

    def __init__(self, keys: Keyring, audience: str) -> None:
        self.keys = keys
        self._audience = audience

    def issue(
        self, kind: TokenKind, account: str, *, now: int, validity_s: float | None, login_id: str | None = None
    ) -> tuple[str, Claims]:
        """A signed token and what it says; a long-lived token is its own login."""
        token_id = secrets.token_urlsafe(16)
        issued = now // _US
        payload: dict[str, Any] = {
            "sub": account,
            "aud": self._audience,
            "jti": token_id,
            "sid": login_id or token_id,
            "iat": issued,
        }
        expires = None if validity_s is None else issued + int(validity_s)
        if expires is not None:
            payload["exp"] = expires
        text = jwt.encode(payload, self.keys.key, ALGORITHM, headers={"kid": self.keys.key_id, "typ": str(kind)})
        claims = Claims(
            kind=kind,
            key_id=self.keys.key_id,
            account=account,
            token_id=token_id,
            login_id=login_id or token_id,
            issued=issued * _US,
            expires=None if expires is None else expires * _US,
        )
        return text, claims

    def read(self, token: str, kinds: frozenset[TokenKind], *, now: int) -> Claims:
        """What `token` says, if it is genuine and of one of `kinds`; raises TokenInvalid, TokenExpired.

        Whether its login still lives is for the caller to check.
        """
        if len(token) > MAX_TOKEN_CHARS or not _TOKEN.fullmatch(token) or not _is_canonical(token):
            raise TokenInvalid
        try:
            header = jwt.get_unverified_header(token)
            kind = TokenKind(header.get("typ", ""))
            # Exactly these members: a key that a token brings along or points to (jwk, jku, x5u) is no key of ours.
            if set(header) != {"alg", "kid", "typ"} or header["alg"] != ALGORITHM or kind not in kinds:
                raise TokenInvalid
            key = self.keys.public(str(header["kid"]), kind)
            if key is None:
                raise TokenInvalid
            payload = jwt.decode(
                token,
                key,
                algorithms=[ALGORITHM],
                audience=self._audience,
                # Times are judged below, by the clock that was passed in.
                options={"verify_exp": False, "verify_nbf": False, "verify_iat": False, "require": ["sub", "jti"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, KeyError) as error:
            raise TokenInvalid from error
        issued, expires, not_before = payload.get("iat"), payload.get("exp"), payload.get("nbf", 0)
        account, token_id, login_id = payload["sub"], payload["jti"], payload.get("sid")
        if not (isinstance(account, str) and isinstance(token_id, str) and isinstance(login_id, str)):
            raise TokenInvalid
        if not (_is_time(issued) and _is_time(not_before)):
            raise TokenInvalid
        if not (_is_time(expires) or (expires is None and kind is TokenKind.LONG)):
            raise TokenInvalid
        if not_before * _US > now:
            raise TokenInvalid("this token is not valid yet")
        if expires is not None and expires * _US <= now:
            raise TokenExpired
        return Claims(
            kind=kind,
            key_id=str(header["kid"]),
            account=account,
            token_id=token_id,
            login_id=login_id,
            issued=issued * _US,
            expires=None if expires is None else expires * _US,
        )


def token_hash(token: str) -> str:
    """What is kept of a token: enough to recognise it, nothing to log in with."""
    return hashlib.sha256(token.encode()).hexdigest()


def _is_time(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40


def _is_canonical(token: str) -> bool:
    """Whether each part is spelled as an encoder spells it; spare bits of the last character must be zero."""
    for part in token.split("."):
        try:
            decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        except (binascii.Error, ValueError):
            return False
        if base64.urlsafe_b64encode(decoded).rstrip(b"=").decode() != part:
            return False
    return True


def _key_id(public: Ed25519PublicKey) -> str:
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _load_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(read_private(path), None)
    except ValueError as error:
        raise ConfigInvalid(f"{path} does not hold a private key") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigInvalid(f"{path} does not hold an Ed25519 key")
    return key
