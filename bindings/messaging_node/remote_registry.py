"""A domain registry somewhere else, reached over HTTP; takes the place of the node's own.

| message | exchange |
| --- | --- |
| create, update | PUT `/hyperty/url/{url}` or `/dataobject/url/{url}` |
| delete | DELETE of the same |
| read | GET `/hyperty/{user,guid,url}/{value}` or `/hyperty/dataobject/{url,name}/{value}` |
"""

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote

from bindings.messaging_node.connectors import OK, Body
from bindings.messaging_node.entries import REGISTERED_BY, terms_of
from bindings.messaging_node.http_client import exchange
from bindings.messaging_node.ownership import Ownership
from bindings.messaging_node.registry import Registered
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from things.envelopes import Envelope, Unknown, refusal, scheme_of
from things.errors import Invalid, NotFound, Unavailable
from things.messages import JSONValue

_HYPERTIES = frozenset({"user", "user-guid", "hyperty", "hyperty-runtime"})


class RemoteRegistry:
    """Relays registry messages; unreachable is 504."""

    def __init__(
        self,
        settings: NodeSettings,
        url: str,
        *,
        objects: Registered,
        ownership: Ownership,
        sees: Callable[[NodeSession, str], bool],
    ) -> None:
        self._ownership = ownership
        self._sees = sees
        self._url = url.rstrip("/")
        self._objects = objects
        self.addresses: Sequence[str] = (f"domain://registry.{settings.domain}",)

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        body = envelope.body
        value = body.get("value")
        match envelope.type:
            case "create" if isinstance(value, dict) and isinstance(value.get("url"), str):
                await self._put(str(value["url"]), value, caller)
                await self._objects.registered(value, caller)
                return OK
            case "create":
                raise Invalid("`value.url` names what is registered")
            case "update":
                attribute = body.get("attribute")
                changes = {attribute: value} if isinstance(attribute, str) else value if isinstance(value, dict) else {}
                await self._put(_resource(body), changes, caller)
                return OK
            case "delete":
                url = value.get("url") if isinstance(value, dict) else body.get("resource")
                if not isinstance(url, str):
                    raise Invalid("name what goes in `value.url` or `resource`")
                self._ownership.check(url, (), caller)
                status, _ = await exchange("DELETE", self._url + _path(url))
                if status not in (200, 204, 404):
                    raise Unavailable(f"the registry answers {status}")
                await self._objects.unregistered(url, caller)
                return OK
            case "read":
                return await self._read(_resource(body), caller)
            case _:
                raise Unknown(f"the registry takes create, read, update and delete, not {envelope.type!r}")

    async def _put(self, url: str, value: Mapping[str, JSONValue], caller: NodeSession) -> None:
        self._ownership.check(url, terms_of({**value, "url": url}), caller)
        stamped = {**value, REGISTERED_BY: caller.principal.account}
        status, _ = await exchange("PUT", self._url + _path(url), body=stamped)
        if status == 404:
            raise NotFound("Not Found")
        if not 200 <= status < 300:
            raise Unavailable(f"the registry answers {status}")

    async def _read(self, resource: str, caller: NodeSession) -> Body:
        status, found = await exchange("GET", self._url + _looked_up(resource))
        if status == 404:
            raise NotFound("Not Found")
        if isinstance(found, dict):
            if "url" in found and not self._sees(caller, str(found["url"])):
                raise NotFound("Not Found")
            found = {name: one for name, one in found.items() if self._sees(caller, name)}
        if status == 408:
            return {**refusal(408, "Temporarily Unavailable"), "value": found}
        if status != 200:
            raise Unavailable(f"the registry answers {status}")
        return {"code": 200, "value": found}


def _resource(body: Mapping[str, JSONValue]) -> str:
    resource = body.get("resource")
    if not isinstance(resource, str) or not resource:
        raise Invalid("`resource` says what is looked for")
    return resource


def _path(url: str) -> str:
    kind = "hyperty" if scheme_of(url) in _HYPERTIES else "dataobject"
    return f"/{kind}/url/{quote(url, safe='')}"


def _looked_up(resource: str) -> str:
    match scheme_of(resource):
        case "user":
            return f"/hyperty/user/{quote(resource, safe='')}"
        case "user-guid":
            return f"/hyperty/guid/{quote(resource, safe='')}"
        case "hyperty" | "hyperty-runtime":
            return f"/hyperty/url/{quote(resource, safe='')}"
        case "":
            return f"/hyperty/dataobject/name/{quote(resource, safe='')}"
        case _:
            return f"/hyperty/dataobject/url/{quote(resource, safe='')}"
