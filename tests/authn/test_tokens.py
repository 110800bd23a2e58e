"""Forged, foreign, stale and misspelt tokens: none passes, whoever made them."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from authn.tokens import Keyring, TokenKind, Tokens
from things.errors import ConfigInvalid, TokenExpired, TokenInvalid

NOW = 1_800_000_000_000_000
ACCESS = frozenset({TokenKind.ACCESS, TokenKind.LONG})


@pytest.fixture
def keys(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "keys")


@pytest.fixture
def tokens(keys: Keyring) -> Tokens:
    return Tokens(keys, "skep")


def good_payload() -> dict[str, Any]:
    return {"sub": "alice", "aud": "skep", "jti": "t1", "sid": "l1", "iat": NOW // 10**6, "exp": NOW // 10**6 + 900}


def good_header(keys: Keyring) -> dict[str, Any]:
    return {"alg": "EdDSA", "kid": keys.key_id, "typ": "at+jwt"}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def signed(key: Ed25519PrivateKey, header: dict[str, Any], payload: Any) -> str:
    """A token as somebody with this key can make it, whatever it says."""
    text = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(payload).encode())}"
    return f"{text}.{b64(key.sign(text.encode()))}"


def public_pem(keys: Keyring) -> bytes:
    return keys.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def test_a_genuine_token_is_read(tokens: Tokens, keys: Keyring) -> None:
    text, issued = tokens.issue(TokenKind.ACCESS, "alice", now=NOW, validity_s=900, login_id="l1")

    assert tokens.read(text, ACCESS, now=NOW) == issued
    by_hand = signed(keys.key, good_header(keys), good_payload())
    assert tokens.read(by_hand, ACCESS, now=NOW).account == "alice"


def _hs256(keys: Keyring, secret: bytes) -> str:
    header = {"alg": "HS256", "kid": keys.key_id, "typ": "at+jwt"}
    text = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(good_payload()).encode())}"
    return f"{text}.{b64(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def _raw_public(keys: Keyring) -> bytes:
    return keys.key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _with(**changes: Any) -> Callable[[Keyring], str]:
    """Signed with our key, but saying something else; None takes a member away."""

    def make(keys: Keyring) -> str:
        payload = {name: value for name, value in (good_payload() | changes).items() if value is not None}
        return signed(keys.key, good_header(keys), payload)

    return make


def _headed(**changes: Any) -> Callable[[Keyring], str]:
    def make(keys: Keyring) -> str:
        header = {name: value for name, value in (good_header(keys) | changes).items() if value is not None}
        return signed(keys.key, header, good_payload())

    return make


def _foreign(keys: Keyring) -> str:
    return signed(Ed25519PrivateKey.generate(), good_header(keys), good_payload())


def _es256(keys: Keyring) -> str:
    headers = {"kid": keys.key_id, "typ": "at+jwt"}
    return jwt.encode(good_payload(), generate_private_key(SECP256R1()), "ES256", headers=headers)


def _unsigned(keys: Keyring) -> str:
    return (
        f"{b64(json.dumps(good_header(keys) | {'alg': 'none'}).encode())}.{b64(json.dumps(good_payload()).encode())}."
    )


def _good(keys: Keyring) -> str:
    return signed(keys.key, good_header(keys), good_payload())


def _embedded_key(keys: Keyring) -> str:
    own = Ed25519PrivateKey.generate()
    raw = own.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}
    return signed(own, good_header(keys) | {"jwk": jwk}, good_payload())


def _last_bits(keys: Keyring) -> str:
    """The same signature bytes in another spelling: spare bits of the last character set."""
    token = _good(keys)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + alphabet[alphabet.index(token[-1]) ^ 1]


def _flipped(place: int) -> Callable[[Keyring], str]:
    def make(keys: Keyring) -> str:
        token = _good(keys)
        index = len(token) * place // 10
        while token[index] == ".":
            index += 1
        return token[:index] + ("A" if token[index] != "A" else "B") + token[index + 1 :]

    return make


FORGERIES: dict[str, Callable[[Keyring], str]] = {
    "nothing": lambda _: "",
    "dots": lambda _: "..",
    "words": lambda _: "not a token",
    "alg none": _unsigned,
    "alg None with a signature": _headed(alg="none"),
    "alg nOnE": _headed(alg="nOnE"),
    "HS256 with the public key as PEM": lambda keys: _hs256(keys, public_pem(keys)),
    "HS256 with the raw public key": lambda keys: _hs256(keys, _raw_public(keys)),
    "ES256": _es256,
    "another key": _foreign,
    "a key it brings along": _embedded_key,
    "a key it points to": _headed(jku="https://evil.example/keys"),
    "a certificate it points to": _headed(x5u="https://evil.example/cert"),
    "critical extensions": _headed(crit=["b64"], b64=False),
    "kid of another": _headed(kid="0" * 16),
    "kid that is a path": _headed(kid="../../../../dev/null"),
    "kid missing": _headed(kid=None),
    "kid that is a list": _headed(kid=["a"]),
    "typ JWT": _headed(typ="JWT"),
    "typ missing": _headed(typ=None),
    "refresh used as access": _headed(typ="rt+jwt"),
    "not valid yet": _with(nbf=NOW // 10**6 + 60),
    "wrong audience": _with(aud="other"),
    "audience missing": _with(aud=None),
    "subject missing": _with(sub=None),
    "subject a number": _with(sub=7),
    "id missing": _with(jti=None),
    "login missing": _with(sid=None),
    "expiry missing": _with(exp=None),
    "expiry as text": _with(exp="4102444800"),
    "expiry true": _with(exp=True),
    "expiry without end": _with(exp=10**30),
    "issued missing": _with(iat=None),
    "payload a list": lambda keys: signed(keys.key, good_header(keys), [good_payload()]),
    "truncated": lambda keys: _good(keys)[:-10],
    "signature removed": lambda keys: _good(keys).rpartition(".")[0] + ".",
    "signature of another token": lambda keys: (
        _good(keys).rpartition(".")[0] + "." + _with(sub="bob")(keys).rpartition(".")[2]
    ),
    "other payload, same signature": lambda keys: ".".join(
        [_good(keys).split(".")[0], _with(sub="root")(keys).split(".")[1], _good(keys).split(".")[2]]
    ),
    "spare bits set": _last_bits,
    "padding added": lambda keys: _good(keys) + "==",
    "newline added": lambda keys: _good(keys) + "\n",
    "space before": lambda keys: " " + _good(keys),
    "64 KiB": lambda keys: _good(keys) + "A" * 65_536,
    "four parts": lambda keys: _good(keys) + ".e30",
    **{f"character {place} of 10 changed": _flipped(place) for place in range(10)},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_token_is_refused(tokens: Tokens, keys: Keyring, forgery: str) -> None:
    with pytest.raises(TokenInvalid) as refusal:
        tokens.read(FORGERIES[forgery](keys), ACCESS, now=NOW)

    assert refusal.value.code == "token-invalid"


def test_an_expired_token_says_so(tokens: Tokens) -> None:
    text, _ = tokens.issue(TokenKind.ACCESS, "alice", now=NOW, validity_s=900)
    assert tokens.read(text, ACCESS, now=NOW + 899_000_000)

    with pytest.raises(TokenExpired):
        tokens.read(text, ACCESS, now=NOW + 900_000_000)


def test_kinds_do_not_stand_in_for_each_other(tokens: Tokens) -> None:
    for made in TokenKind:
        text, _ = tokens.issue(made, "alice", now=NOW, validity_s=900)
        for asked in TokenKind:
            if asked is made:
                assert tokens.read(text, frozenset({asked}), now=NOW)
            else:
                with pytest.raises(TokenInvalid):
                    tokens.read(text, frozenset({asked}), now=NOW)


def test_another_installations_token_is_refused(tokens: Tokens, tmp_path: Path) -> None:
    other = Tokens(Keyring(tmp_path / "other"), "skep")
    text, _ = other.issue(TokenKind.ACCESS, "alice", now=NOW, validity_s=900)

    with pytest.raises(TokenInvalid):
        tokens.read(text, ACCESS, now=NOW)


def test_a_retired_key_vouches_for_long_lived_tokens_only(tokens: Tokens, keys: Keyring, tmp_path: Path) -> None:
    access, _ = tokens.issue(TokenKind.ACCESS, "alice", now=NOW, validity_s=900)
    long, _ = tokens.issue(TokenKind.LONG, "pump", now=NOW, validity_s=None)

    keys.rotate()

    for reader in (tokens, Tokens(Keyring(tmp_path / "keys"), "skep")):
        assert reader.read(long, ACCESS, now=NOW).account == "pump"
        with pytest.raises(TokenInvalid):
            reader.read(access, ACCESS, now=NOW)


def test_the_key_is_made_once_and_differs_between_installations(keys: Keyring, tmp_path: Path) -> None:
    assert Keyring(tmp_path / "keys").key_id == keys.key_id
    assert Keyring(tmp_path / "other").key_id != keys.key_id


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_stops_the_start(keys: Keyring, tmp_path: Path, mode: int) -> None:
    next((tmp_path / "keys").glob("token-*.pem")).chmod(mode)

    with pytest.raises(ConfigInvalid, match="chmod 600"):
        Keyring(tmp_path / "keys")


def test_a_key_folder_open_to_others_stops_the_start(keys: Keyring, tmp_path: Path) -> None:
    (tmp_path / "keys").chmod(0o755)

    with pytest.raises(ConfigInvalid, match="chmod 700"):
        Keyring(tmp_path / "keys")


def test_a_damaged_key_is_refused_and_not_replaced(keys: Keyring, tmp_path: Path) -> None:
    path = next((tmp_path / "keys").glob("token-*.pem"))
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\nnonsense\n")

    with pytest.raises(ConfigInvalid):
        Keyring(tmp_path / "keys")
    assert path.read_bytes().endswith(b"nonsense\n")
