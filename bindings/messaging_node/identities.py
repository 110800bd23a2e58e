"""The identity connector at `domain://idm.{D}`: tokens looked into, profiles told.

`execute` with `validateAssertion {assertion}` or `validateToken {token}` says whose it is; `read` of
`/identity/{account}` (or of nothing: oneself) tells a profile. With an OpenID provider configured, a token this runtime
did not give is shown to that provider. The method names are reTHINK's, the rest is our own design.
"""

from collections.abc import Callable, Sequence

from bindings.messaging_node.connectors import Body
from bindings.messaging_node.outward import exchange
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Sink
from things.envelopes import Envelope, Unknown
from things.errors import Forbidden, Invalid, NotFound, Unauthenticated, Unavailable
from things.identity import Principal, Role
from things.messages import JSONValue
from things.times import rfc3339

MAX_TOKEN_CHARS = 16_384


class Identities:
    """Validates identity tokens and serves profiles."""

    def __init__(self, settings: NodeSettings, sink: Callable[[], Sink]) -> None:
        self._settings = settings
        self._sink = sink
        self.addresses: Sequence[str] = (f"domain://idm.{settings.domain}",)

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        match envelope.type:
            case "execute":
                params = envelope.body.get("params")
                given = params if isinstance(params, dict) else {}
                match envelope.body.get("method"):
                    case "validateAssertion":
                        return {"code": 200, "value": await self._validated(given.get("assertion"))}
                    case "validateToken":
                        return {"code": 200, "value": await self._validated(given.get("token"))}
                    case method:
                        raise Unknown(f"identities take validateAssertion and validateToken, not {str(method)[:64]!r}")
            case "read":
                return {"code": 200, "value": self._read(envelope.body.get("resource"), caller)}
            case _:
                raise Unknown(f"identities take execute and read, not {envelope.type!r}")

    def _read(self, resource: JSONValue, caller: NodeSession) -> JSONValue:
        own = caller.principal
        name = own.account if resource is None else str(resource).rpartition("/")[2]
        if name == own.account:
            return self._profile(own)
        if own.role not in (Role.ADMIN, Role.MANAGER, Role.SERVICE):
            raise Forbidden("profiles of others are for managers, admins and services")
        raise NotFound("only profiles proved by a token are told; validate one")

    async def _validated(self, token: JSONValue) -> JSONValue:
        if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN_CHARS:
            raise Invalid("name the token")
        try:
            return self._profile(self._sink().authenticator.verify(token))
        except Unauthenticated:
            if self._settings.openid_issuer is None:
                raise
        return await self._relayed(self._settings.openid_issuer, token)

    async def _relayed(self, issuer: str, token: str) -> JSONValue:
        status, found = await exchange("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        endpoint = found.get("userinfo_endpoint") if isinstance(found, dict) else None
        if status != 200 or not isinstance(endpoint, str) or not endpoint.startswith(("https://", "http://127.0.0.1")):
            raise Unavailable("the OpenID provider does not say where identities are told")
        status, claims = await exchange("GET", endpoint, bearer=token)
        if status != 200 or not isinstance(claims, dict) or not isinstance(claims.get("sub"), str):
            raise Unauthenticated("the OpenID provider does not know this token")
        return {
            "userProfile": {
                "userURL": f"user://{issuer.partition('://')[2].partition('/')[0]}/{claims['sub']}",
                "username": claims.get("email") or claims["sub"],
                "guid": None,
            },
            "idp": issuer,
            "claims": claims,
        }

    def _profile(self, principal: Principal) -> JSONValue:
        domain = self._settings.domain
        return {
            "userProfile": {
                "username": principal.account,
                "userURL": f"user://{domain}/{principal.account}",
                "guid": f"user-guid://{domain}/{principal.account}",
                "type": principal.type.value,
                "role": str(principal.role),
            },
            "idp": domain,
            "expires": None if principal.expires is None else rfc3339(principal.expires),
            # Where a runtime of this domain is reached: what lets a caller find the stub.
            "stub": f"hyperty-catalogue://catalogue.{domain}/.well-known/protocolstub/default",
        }
