"""The identity connector at `domain://idm.{D}`: tokens looked into, profiles told.

`execute` with `validateAssertion {assertion}` or `validateToken {token}` says whose it is; `read` of
`/identity/{account}` (or of nothing: oneself) tells a profile, another's to whoever may read accounts. With an OpenID
provider configured, tokens this runtime did not give are that provider's. The method names are reTHINK's, the rest is
our own design.
"""

from collections.abc import Callable, Sequence

from bindings.messaging_node.connectors import Body
from bindings.messaging_node.credentials import STAMP
from bindings.messaging_node.openid import OpenIDProvider, is_jwt
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Sink
from things.envelopes import Envelope, Unknown
from things.errors import Forbidden, Invalid, Unauthenticated, UnknownThing
from things.identity import AccountType, Principal
from things.messages import JSONValue, Origin
from things.service_ids import ACCOUNTS
from things.times import rfc3339

MAX_TOKEN_CHARS = 16_384


class Identities:
    """Validates identity tokens and serves profiles. Raises ConfigInvalid for an issuer that cannot be trusted."""

    def __init__(self, settings: NodeSettings, sink: Callable[[], Sink]) -> None:
        self._settings = settings
        self._sink = sink
        self._provider: OpenIDProvider | None = None
        if settings.openid_issuer is not None:
            audience = settings.openid_audience or settings.domain
            self._provider = OpenIDProvider(settings.openid_issuer, audience, lambda: self._sink().clock())
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
                return {"code": 200, "value": await self._read(envelope.body.get("resource"), caller)}
            case _:
                raise Unknown(f"identities take execute and read, not {envelope.type!r}")

    async def stamped(self, token: JSONValue, sender: Principal) -> dict[str, JSONValue]:
        """The identity that a message's `idToken` proves, as its receivers read it. Raises Unauthenticated, also for
        another account's token: what somebody else was given proves nothing of the sender."""
        if not isinstance(token, str) or not is_jwt(token):
            raise Unauthenticated("`idToken` is a signed token")
        found = await self._validated(token)
        if found["idp"] == self._settings.domain and found["userProfile"] != self._user(sender):
            raise Unauthenticated("this token is another account's")
        found.pop("claims", None)
        return {**found, STAMP: self.addresses[0]}

    async def _read(self, resource: JSONValue, caller: NodeSession) -> JSONValue:
        own = caller.principal
        if resource is not None and not isinstance(resource, str):
            raise Invalid("`resource` is /identity/ACCOUNT")
        name = own.account if resource is None else resource.rpartition("/")[2]
        if name == own.account:
            return self._profile(own)
        origin = Origin(binding="node", session_id=caller.session_id, source=caller.source)
        try:
            found = await self._sink().call(own, ACCOUNTS, "getClient", {"clientID": name}, origin)
        except (Forbidden, UnknownThing) as error:
            raise Forbidden("profiles of others are for who may read accounts") from error
        assert isinstance(found, dict)
        known = Principal(account=name, type=AccountType(str(found["type"])), role=str(found["role"]))
        return {**self._profile(known), "displayName": found.get("displayName")}

    async def _validated(self, token: JSONValue) -> dict[str, JSONValue]:
        if not isinstance(token, str) or not 0 < len(token) <= MAX_TOKEN_CHARS:
            raise Invalid("name the token")
        try:
            return self._profile(self._sink().authenticator.verify(token))
        except Unauthenticated:
            if self._provider is None:
                raise
        return await self._provider.identity(token)

    def _user(self, principal: Principal) -> dict[str, JSONValue]:
        domain = self._settings.domain
        return {
            "username": principal.account,
            "userURL": f"user://{domain}/{principal.account}",
            "guid": f"user-guid://{domain}/{principal.account}",
            "type": principal.type.value,
            "role": str(principal.role),
        }

    def _profile(self, principal: Principal) -> dict[str, JSONValue]:
        domain = self._settings.domain
        return {
            "userProfile": self._user(principal),
            "idp": domain,
            "expires": None if principal.expires is None else rfc3339(principal.expires),
            # Where a runtime of this domain is reached: what lets a caller find the stub.
            "stub": f"hyperty-catalogue://catalogue.{domain}/.well-known/protocolstub/default",
        }
