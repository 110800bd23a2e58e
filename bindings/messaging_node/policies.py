"""Policies by message: `execute` at `domain://msg-node.{D}/policies` (our own design; there is no public one).

The methods are those of the runtime's rights service, which decides who may call them; `create`, `read` and `delete` of
`/policies/{id}` are short for three of them.
"""

from collections.abc import Callable, Sequence

from bindings.messaging_node.connectors import Body
from bindings.messaging_node.sessions import NodeSession
from bindings.messaging_node.settings import NodeSettings
from runtime.ports import Sink
from things.envelopes import Envelope, Unknown
from things.errors import Invalid
from things.messages import JSONValue, Origin
from things.service_ids import RIGHTS

METHODS = {
    "addPolicy": "putPolicySet",
    "removePolicy": "removePolicySet",
    "policies": "listPolicySets",
    "policy": "getPolicySet",
    "tryPolicies": "tryPolicies",
    "evaluate": "explain",
    "reload": "reload",
}
"""What a method is called there."""


class Policies:
    """Hands policy messages to the rights service, as their sender."""

    def __init__(self, settings: NodeSettings, sink: Callable[[], Sink]) -> None:
        self._sink = sink
        self.addresses: Sequence[str] = (f"{settings.node}/policies",)

    async def answer(self, envelope: Envelope, caller: NodeSession) -> Body | None:
        method, given = _asked(envelope)
        origin = Origin(binding="node", session_id=caller.session_id, source=caller.source)
        return {"code": 200, "value": await self._sink().call(caller.principal, RIGHTS, method, given, origin)}


def _asked(envelope: Envelope) -> tuple[str, JSONValue]:
    body = envelope.body
    match envelope.type:
        case "execute":
            name = body.get("method")
            method = METHODS.get(name) if isinstance(name, str) else None
            if method is None:
                raise Unknown(f"methods here are {', '.join(METHODS)}")
            return method, body.get("params", {})
        case "create":
            return "putPolicySet", {"policySet": body.get("value")}
        case "read" | "delete":
            resource = body.get("resource")
            if resource is None and envelope.type == "read":
                return "listPolicySets", {}
            if not isinstance(resource, str):
                raise Invalid("`resource` is /policies/ID")
            name = resource.removeprefix("/policies/")
            return ("getPolicySet" if envelope.type == "read" else "removePolicySet"), {"id": name}
        case _:
            raise Unknown(f"policies take execute, create, read and delete, not {envelope.type!r}")
