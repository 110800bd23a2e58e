"""Address allocation: single addresses, blocks by key, named ones, children, and lending from the pool.

Releases are idempotent and take effect at once. Named addresses (`value.allocated`, our own extension) are kept for
their account until it releases them, over sessions and restarts; all others end with their session.
"""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from bindings.messaging_node.connectors import OK, Body
from bindings.messaging_node.named import Owner
from bindings.messaging_node.routes import Routes, are_one
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from bindings.messaging_node.store import NodeStore
from things.envelopes import Envelope, Unknown, domain_of, scheme_of, texts
from things.errors import Invalid, QueueFull
from things.messages import JSONValue

MAX_KEY_CHARS = 256


class Allocation:
    """Answers at `address-allocation` and its two older names."""

    def __init__(self, settings: NodeSettings, routes: Routes, store: NodeStore) -> None:
        self._settings = settings
        self._routes = routes
        self._store = store
        self.addresses: Sequence[str] = tuple(
            f"{settings.node}/{name}"
            for name in ("address-allocation", "hyperty-address-allocation", "object-address-allocation")
        )

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        match envelope.type:
            case "create":
                return await self._allocate(envelope, caller)
            case "delete":
                return await self._release(envelope, caller)
            case _:
                raise Unknown(f"addresses are allocated by create and released by delete, not by {envelope.type!r}")

    async def _allocate(self, envelope: Envelope, caller: NodeSession) -> Body:
        body = envelope.body
        value = body.get("value", {})
        if isinstance(value, str):
            value = {"allocated": [value]}
        if not isinstance(value, dict):
            raise Invalid("`value` is an object with number and allocationKey")
        children = texts(value.get("childrenResources", body.get("childrenResources")), limit=100)
        key = value.get("allocationKey")
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= MAX_KEY_CHARS):
            raise Invalid(f"`allocationKey` is text of at most {MAX_KEY_CHARS} characters")
        if "allocated" in value:
            found = texts(value["allocated"], limit=self._settings.max_addresses_per_request)
        else:
            found = self._made(_scheme(envelope), self._number(value), caller)
        self._check_room(len(found) * (1 + len(children)), caller)
        if "allocated" in value:
            await self._name(found, caller)
        for address in found:
            self._routes.hold(address, caller, key)
            for child in children:
                self._routes.hold(f"{address}/children/{child}", caller)
        return {"code": 200, "value": {"allocated": list(found)}}

    def _number(self, value: Mapping[str, JSONValue]) -> int:
        number = value.get("number", 1)
        most = self._settings.max_addresses_per_request
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= most:
            raise Invalid(f"`number` is 1 to {most}")
        return number

    def _check_room(self, number: int, caller: NodeSession) -> None:
        """Before anything is allocated: a message over the quota must not leave half of it behind."""
        if len(caller.held) + number > self._settings.max_addresses:
            raise QueueFull("this session", self._settings.max_addresses, "addresses")

    def _made(self, scheme: str, number: int, caller: NodeSession) -> list[str]:
        pool = [address for address in self._settings.pool if scheme_of(address) == scheme]
        if not pool:
            return [f"{scheme}://{self._settings.domain}/{uuid4()}" for _ in range(number)]
        free = [address for address in pool if address not in self._routes.holders]
        if len(free) < number:
            raise QueueFull("the pool", len(pool), f"{scheme} addresses, and too few are free")
        return free[:number]

    async def _name(self, addresses: Sequence[str], caller: NodeSession) -> None:
        for address in addresses:
            if domain_of(address) != self._settings.domain:
                raise Invalid(f"{address[:80]!r} is not of the domain {self._settings.domain}")
            self._routes.check(address, caller)
        principal, names = caller.principal, self._routes.names
        if principal.is_guest:
            return  # a guest is another one next time
        owner = Owner(principal.account, principal.account_id)
        # Taken before they are stored: nobody else may be given them meanwhile.
        fresh = names.take(addresses, owner, limit=self._settings.max_addresses)
        try:
            await self._store.put_named(fresh, owner)
        except BaseException:
            names.give_back(fresh)
            raise

    async def _release(self, envelope: Envelope, caller: NodeSession) -> Body:
        body, limit = envelope.body, self._settings.max_addresses_per_request
        value = body.get("value")
        inner = value if isinstance(value, dict) else {}
        found = texts(body.get("childrenResources"), limit=limit) + texts(inner.get("childrenResources"), limit=limit)
        keys = texts(body.get("resource"), limit=limit) + texts(inner.get("allocationKey"), limit=limit)
        for key in keys:
            # `resource` names an allocation key, or in one dialect an address.
            found += [*self._of_key(key, caller), key]
        for address in found:
            self._routes.check_release(address, caller)
        for address in found:
            self._routes.release(address)
        names = self._routes.names
        named = [address for address in found if names.owner(address) is not None]
        if named:
            await self._store.drop_named(named)
            names.give_back(named)
        return OK

    def _of_key(self, key: str, caller: NodeSession) -> list[str]:
        """Addresses allocated by a key, by any session of the account: a client may release what it allocated on an
        earlier connection."""
        found: list[str] = []
        for session in self._routes.keyed.at(key):
            if self._settings.compatible or are_one(session, caller):
                found += session.keys.get(key, ())
        return found


def _scheme(envelope: Envelope) -> str:
    scheme = envelope.body.get("scheme", "hyperty")
    if envelope.to.rstrip("/").endswith("/hyperty-address-allocation"):
        scheme = "hyperty"
    if not isinstance(scheme, str) or not 0 < len(scheme) <= 64 or not scheme.replace("-", "").isalnum():
        raise Invalid("`scheme` is a word such as hyperty, comm or connection")
    return scheme
