"""The node as a Thing of the runtime: `dtw:skep:node` tells managers what it routes."""

from collections.abc import Callable
from typing import Any

from things.addresses import Address, Kind
from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Method, Methods, Nothing

NODE = "dtw:skep:node"


class NodeService:
    """One method: the routes."""

    thing_id = NODE

    def __init__(self, overview: Callable[[], dict[str, JSONValue]]) -> None:
        self._overview = overview
        self._methods = Methods(
            NODE, [Method(name="routes", title="Connectors and sessions", input=Nothing, run=self._routes, safe=True)]
        )
        self.td: dict[str, Any] = self._methods.td(
            type_="skep:MessagingNode", title="Messaging node", description="What the messaging node routes."
        )

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        return Operation.MANAGE, Address(NODE, Kind.ACTION, self._methods.get(name).name)

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        return await self._methods.call(name, data, principal)

    async def _routes(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return self._overview()
