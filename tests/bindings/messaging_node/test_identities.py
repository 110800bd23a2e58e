"""Identities: tokens of this runtime and of an OpenID provider on this machine, profiles, and what a message proves."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from bindings.messaging_node.openid import OpenIDProvider
from tests.bindings.messaging_node.support import Wire, client
from tests.support import skep
from things.errors import ConfigInvalid

pytestmark = pytest.mark.anyio

IDM = "domain://idm.localhost"
CATALOGUE = "hyperty-catalogue://catalogue.localhost/.well-known/protocolstub/default"


@dataclass
class Provider:
    """A small OpenID provider: metadata, keys, userinfo; it signs with an RSA or an EC key."""

    url: str = ""
    rsa_key: RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    ec_key: EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    published: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    is_down: bool = False

    def publish(self) -> None:
        """Publish both keys as they are now."""
        rsa_key = RSAAlgorithm.to_jwk(self.rsa_key.public_key(), as_dict=True)
        ec_key = ECAlgorithm.to_jwk(self.ec_key.public_key(), as_dict=True)
        self.published = [
            {**rsa_key, "kid": "one", "alg": "RS256", "use": "sig"},
            {**ec_key, "kid": "two", "use": "sig"},
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
            {"kty": "unheard-of", "kid": "other"},
        ]

    def token(self, key: Any = None, algorithm: str = "RS256", kid: str = "one", **claims: Any) -> str:
        now = int(time.time())
        given = {"iss": self.url, "sub": "42", "aud": "localhost", "iat": now, "exp": now + 60, "email": "ann@x.org"}
        members = {name: value for name, value in {**given, **claims}.items() if value is not None}
        return jwt.encode(members, key or self.rsa_key, algorithm=algorithm, headers={"kid": kid})

    def answer(self, path: str, bearer: str) -> tuple[int, Any]:
        match path:
            case _ if self.is_down:
                return 503, {}
            case "/.well-known/openid-configuration":
                return 200, {
                    "issuer": self.url,
                    "jwks_uri": f"{self.url}/keys",
                    "userinfo_endpoint": f"{self.url}/userinfo",
                }
            case "/keys":
                return 200, {"keys": self.published}
            case "/userinfo" if bearer == "Bearer opaque":
                return 200, {"sub": "43", "preferred_username": "bob"}
            case "/userinfo":
                return 401, {}
            case _:
                return 404, {}


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    found = Provider()
    found.publish()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        found.asked.append(path)
        status, body = found.answer(path, headers.get("authorization", ""))
        text = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (status, len(text), text))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


def validate(token: Any) -> Wire:
    return {"method": "validateAssertion", "params": {"assertion": token}}


async def test_identity_tokens_of_a_provider_are_checked_against_its_keys(tmp_path: Path) -> None:
    stranger = rsa.generate_private_key(65537, 2048)
    now = int(time.time())
    bad: list[Callable[[Provider], str]] = [
        lambda one: one.token(stranger),
        lambda one: one.token(one.rsa_key.public_key().public_numbers().n.to_bytes(256, "big"), "HS256"),
        lambda one: one.token("secret" * 10, "HS256", "shared"),
        lambda one: jwt.encode({"iss": one.url, "sub": "42", "aud": "localhost"}, "", algorithm="none"),
        lambda one: one.token(kid="unknown"),
        lambda one: one.token(one.ec_key, "ES256", "one"),
        lambda one: one.token(aud="another"),
        lambda one: one.token(aud=None),
        lambda one: one.token(iss="https://evil.example"),
        lambda one: one.token(exp=now - 120),
        lambda one: one.token(exp=None),
        lambda one: one.token(exp="soon"),
        lambda one: one.token(nbf=now + 600),
        lambda one: one.token(sub=None),
        lambda one: one.token(sub=""),
        lambda one: f"{one.token()[:-4]}AAAA",
        lambda one: "a.b.c",
        lambda one: "nobody-knows",
    ]
    async with provider() as one, skep(tmp_path, messaging_node={"openid_issuer": one.url}) as house:
        ann = await house.add("ann")
        async with client(house, token=ann.token) as asking:
            for token in (one.token(), one.token(one.ec_key, "ES256", "two")):
                value = (await asking.ask("execute", IDM, validate(token)))["body"]["value"]
                assert (value["idp"], value["userProfile"]["username"]) == (one.url, "ann@x.org")
                assert value["userProfile"]["userURL"] == f"user://{one.url.partition('://')[2]}/42"
            assert (await asking.ask("execute", IDM, validate("opaque")))["body"]["value"]["claims"]["sub"] == "43"

            codes = [await asking.code("execute", IDM, validate(make(one))) for make in bad]
            assert codes == [401] * len(bad)
            assert await asking.code("execute", IDM, validate(7)) == 400

            # The keys were asked for once: strangers' key ids do not make us ask again and again.
            assert one.asked.count("/keys") == 1
            one.is_down = True
            assert await asking.code("execute", IDM, validate(one.token(sub="43"))) == 200
            assert await asking.code("execute", IDM, validate("opaque")) == 504


async def test_provider_that_names_another_issuer_is_not_believed(tmp_path: Path) -> None:
    async with provider() as one, skep(tmp_path, messaging_node={"openid_issuer": f"{one.url}/"}) as house:
        ann = await house.add("ann")
        async with client(house, token=ann.token) as asking:
            assert await asking.code("execute", IDM, validate(one.token(iss=f"{one.url}/"))) == 504


@pytest.mark.parametrize("issuer", ["http://idp.example", "http://127.0.0.1.evil.example", "ftp://x", "", "https://["])
def test_issuers_are_reached_over_tls_or_on_this_machine(issuer: str) -> None:
    with pytest.raises(ConfigInvalid):
        OpenIDProvider(issuer, "x", lambda: 0)


async def test_message_with_an_identity_token_arrives_with_the_identity_it_proves(tmp_path: Path) -> None:
    async with provider() as one, skep(tmp_path, messaging_node={"openid_issuer": one.url}) as house:
        ann, bob = await house.add("ann"), await house.add("bob")
        async with client(house, "a", ann.token) as a, client(house, "b", bob.token) as b:
            (address,) = await b.allocate()
            await a.send("ping", address, {"idToken": one.token(), "identity": {"userProfile": "forged"}, "note": 1})
            body = (await b.next())["body"]
            assert (sorted(body), body["note"]) == (["identity", "note"], 1)
            assert (body["identity"]["validatedBy"], body["identity"]["userProfile"]["username"]) == (IDM, "ann@x.org")

            await a.send("ping", address, {"idToken": ann.token})
            assert (await b.next())["body"]["identity"]["userProfile"]["username"] == "ann"
            for token in (one.token(exp=1), bob.token, "opaque", "x.y.z", 7, None):
                assert await a.code("ping", address, {"idToken": token}) == 401
            assert await a.code("ping", address, {"identity": {"validatedBy": IDM}}) == 403
            unproved = {"identity": {"userProfile": {"username": "x"}, "assertion": "for the receiver to judge"}}
            await a.send("ping", address, unproved)
            assert (await b.next())["body"] == unproved


async def test_profiles_are_for_oneself_and_for_who_may_read_accounts(tmp_path: Path) -> None:
    async with skep(tmp_path) as house:
        root, ann = await house.add("root", role="admin"), await house.add("ann")
        asked = {"resource": "/identity/ann"}
        async with client(house, "a", ann.token) as a, client(house, "r", root.token) as admin:
            for body in ({}, asked):
                profile = (await a.ask("read", IDM, body))["body"]["value"]
                assert (profile["userProfile"]["username"], profile["userProfile"]["role"]) == ("ann", "operator")
            assert (await admin.ask("read", IDM, asked))["body"]["value"]["userProfile"] == profile["userProfile"]
            for resource in ("/identity/root", "/identity/nobody"):
                assert await a.code("read", IDM, {"resource": resource}) == 403
            assert await admin.code("read", IDM, {"resource": "/identity/nobody"}) == 404
            assert await a.code("read", IDM, {"resource": 7}) == 400
            assert await a.code("execute", IDM, {"method": "forge"}) == 501
            assert await a.code("create", IDM) == 501

            described = (await a.ask("read", profile["stub"]))["body"]
            assert (profile["stub"], described["code"]) == (CATALOGUE, 200)
            assert (described["value"]["domain"], described["value"]["path"]) == ("localhost", "/ws")
