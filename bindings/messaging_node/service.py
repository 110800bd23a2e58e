"""The node as a Thing of the runtime: `dtw:skep:node` tells managers what it routes."""

from collections.abc import Callable

from things.identity import Principal
from things.messages import JSONValue, Operation
from things.methods import Method, MethodService, Nothing
from things.service_ids import NODE
from things.vocabulary import ServiceType


class NodeService(MethodService):
    """One method: the routes."""

    def __init__(self, overview: Callable[[], dict[str, JSONValue]]) -> None:
        self._overview = overview
        super().__init__(
            NODE,
            Operation.MANAGE,
            [Method(name="routes", title="Connectors and sessions", input=Nothing, run=self._routes, safe=True)],
            type_=ServiceType.MESSAGING_NODE,
            title="Messaging node",
            description="What the messaging node routes.",
        )

    async def _routes(self, _given: Nothing, _principal: Principal) -> JSONValue:
        return self._overview()
