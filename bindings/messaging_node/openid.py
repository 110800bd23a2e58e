"""An external OpenID provider: its metadata, its keys, and the tokens it signed.

An ID token (a JWT) is checked here, against the keys the provider publishes: signature, issuer, audience and time; it
is never shown to anybody. An opaque access token is shown to the provider's userinfo endpoint, which alone knows it.
"""

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import jwt

from bindings.messaging_node.http_client import exchange
from things.bounded import Bounded
from things.errors import ConfigInvalid, Unauthenticated, Unavailable
from things.messages import JSONValue
from things.network import is_loopback

METADATA_S = 3_600.0
REFRESH_S = 30.0
"""Unknown key ids make us ask for keys again no more often than this, whatever strangers send."""
REMEMBERED_S = 300.0
MAX_REMEMBERED = 1_000
LEEWAY_S = 60
MAX_KEYS = 100

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a public key; anything else could be made by whoever read the keys."""


class OpenIDProvider:
    """One issuer. `clock` is µs UTC. Raises ConfigInvalid for an issuer that is neither https nor on this machine."""

    def __init__(self, issuer: str, audience: str, clock: Callable[[], int]) -> None:
        if not _is_safe(issuer):
            raise ConfigInvalid("messaging_node.openid_issuer is an https address, or http on this machine")
        self.issuer = issuer
        self._audience = audience
        self._clock = clock
        self._metadata: dict[str, JSONValue] = {}
        self._metadata_at = 0
        self._keys: list[jwt.PyJWK] = []
        self._keys_at = 0
        self._remembered = Bounded[str, tuple[dict[str, JSONValue], int]](MAX_REMEMBERED)

    async def identity(self, token: str) -> dict[str, JSONValue]:
        """The identity a token proves. Raises Unauthenticated, Unavailable."""
        claims = await (self._of_id_token(token) if is_jwt(token) else self._of_userinfo(token))
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise Unauthenticated("the OpenID provider names nobody")
        return {
            "userProfile": {
                "userURL": f"user://{urlsplit(self.issuer).netloc}/{subject}",
                "username": claims.get("email") or claims.get("preferred_username") or subject,
                "guid": None,
            },
            "idp": self.issuer,
            "claims": claims,
        }

    # ------------------------------------------------------------ signed tokens

    async def _of_id_token(self, token: str) -> dict[str, JSONValue]:
        hashed = hashlib.sha256(token.encode()).hexdigest()
        now = self._clock()
        claims, until = self._remembered.get(hashed, ({}, 0))
        if until > now:
            return claims
        claims = await self._verified(token)
        expires = claims["exp"]
        assert isinstance(expires, int | float)
        self._remembered[hashed] = (claims, min(int(expires * 1_000_000), now + int(REMEMBERED_S * 1_000_000)))
        return claims

    async def _verified(self, token: str) -> dict[str, JSONValue]:
        try:
            key = await self._key(jwt.get_unverified_header(token))
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self.issuer,
                # Time is ours to judge: by the runtime's clock.
                options={
                    "require": ["exp", "iat", "iss", "aud", "sub"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"this is no identity of {self.issuer}: {type(error).__name__}") from error
        now_s = self._clock() / 1_000_000
        begins = max(_number(claims["iat"]), _number(claims.get("nbf", 0)))
        if _number(claims["exp"]) <= now_s - LEEWAY_S or begins > now_s + LEEWAY_S:
            raise Unauthenticated("this identity token is not in time")
        return claims

    async def _key(self, header: dict[str, Any]) -> jwt.PyJWK:
        if header.get("alg") not in _ALGORITHMS:
            raise Unauthenticated("identity tokens are signed with a public key")
        found = self._known(header)
        if found is None and self._keys_at + int(REFRESH_S * 1_000_000) <= self._clock():
            self._keys_at = self._clock()
            self._keys = _keys_in(await self._get("jwks_uri"))
            found = self._known(header)
        if found is None:
            raise Unauthenticated("the OpenID provider has no such key")
        return found

    def _known(self, header: dict[str, Any]) -> jwt.PyJWK | None:
        fitting = [key for key in self._keys if key.algorithm_name == header["alg"]]
        if "kid" in header:
            fitting = [key for key in fitting if key.key_id == header["kid"]]
        return fitting[0] if len(fitting) == 1 else None

    # ------------------------------------------------------------ asking the provider

    async def _of_userinfo(self, token: str) -> dict[str, JSONValue]:
        claims = await self._get("userinfo_endpoint", bearer=token)
        if not isinstance(claims, dict):
            raise Unauthenticated("the OpenID provider names nobody")
        return claims

    async def _get(self, endpoint: str, bearer: str | None = None) -> JSONValue:
        url = (await self._described()).get(endpoint)
        if not isinstance(url, str) or not _is_safe(url):
            raise Unavailable(f"the OpenID provider has no {endpoint}")
        status, found = await exchange("GET", url, bearer=bearer)
        if status in (401, 403):
            raise Unauthenticated("the OpenID provider does not know this token")
        if status != 200:
            raise Unavailable(f"the OpenID provider answers {status}")
        return found

    async def _described(self) -> dict[str, JSONValue]:
        if not self._metadata or self._metadata_at + int(METADATA_S * 1_000_000) <= self._clock():
            status, found = await exchange("GET", f"{self.issuer.rstrip('/')}/.well-known/openid-configuration")
            if status != 200 or not isinstance(found, dict) or found.get("issuer") != self.issuer:
                raise Unavailable("the OpenID provider does not describe itself as this issuer")
            self._metadata, self._metadata_at = found, self._clock()
        return self._metadata


def is_jwt(token: str) -> bool:
    """Whether a token has the form of a signed JWT."""
    return token.count(".") == 2


def _keys_in(document: JSONValue) -> list[jwt.PyJWK]:
    """The keys of a set that can check a signature; others are none of ours."""
    listed = document.get("keys") if isinstance(document, dict) else None
    found: list[jwt.PyJWK] = []
    for one in (listed if isinstance(listed, list) else [])[:MAX_KEYS]:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig" or one.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(one)
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if key.algorithm_name in _ALGORITHMS:
            found.append(key)
    return found


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated("the times of this identity token are none")
    return float(value)


def _is_safe(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))
