"""The agent's side of the protocol: a client that exposes Things and answers for them.

The draft speaks of consumers and Things; an agent is the Thing's end of it. What it says of itself are notifications
(property values, events), what it is asked are requests, its answers are responses. `exposething` and `destroything`
are our additions, for what other protocols do with a Thing's own address.
"""

from collections.abc import Mapping

from bindings.websocket.client import Client
from bindings.websocket.messages import MessageType, WebThingMessage, spell
from runtime.ports import Request
from things.addresses import own_twin
from things.delivery import Reason, State
from things.errors import Forbidden, Invalid
from things.identity import AccountType
from things.jsontext import encode
from things.messages import JSONValue, Operation
from things.times import parse_time, rfc3339

EXPOSE, DESTROY = "exposething", "destroything"
_PUBLISHES = {
    "observeproperty": (Operation.PUBLISH_PROPERTY, "value"),
    "subscribeevent": (Operation.PUBLISH_EVENT, "data"),
}
_ASKED = {
    Operation.INVOKE_ACTION: "invokeaction",
    Operation.WRITE_PROPERTY: "writeproperty",
    Operation.CALL_RPC: "callrpc",
    Operation.CANCEL: "cancelaction",
}
_STATES: Mapping[str, State] = {
    "pending": State.WAITING,
    "waiting": State.WAITING,
    "running": State.RUNNING,
    "applied": State.APPLIED,
    "completed": State.COMPLETED,
    "failed": State.FAILED,
    "cancelled": State.CANCELLED,
}
_FAULTS = frozenset({500, 503})
"""Statuses of errors by which an agent says that it could not try; any other says that the device refused."""


class Exposing:
    """One client as the agent of its account's Things."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._exposed: set[str] = set()

    def knows(self, message: WebThingMessage) -> bool:
        """Whether a request is one of the agent's."""
        return message.operation in (EXPOSE, DESTROY)

    async def handle(self, message: WebThingMessage) -> None:
        """Take one message of the agent; raises SkepError."""
        match message.type:
            case MessageType.REQUEST if message.operation == EXPOSE:
                await self._expose(message)
            case MessageType.REQUEST:
                await self._destroy(message)
            case MessageType.NOTIFICATION:
                await self._publish(message)
            case MessageType.RESPONSE:
                await self._report(message)

    def spell(self, request: Request) -> bytes:
        """What the agent is asked; its correlationID is the id of the request."""
        members: dict[str, JSONValue] = {}
        if request.operation is Operation.CANCEL:
            members["actionID"] = request.request_id
        else:
            members["name"] = request.name
        if request.payload:
            members["value" if request.operation is Operation.WRITE_PROPERTY else "input"] = request.input
        if request.expires is not None:
            members["expires"] = rfc3339(request.expires)
        sink = self._client.sink
        return spell(
            MessageType.REQUEST,
            _ASKED[request.operation],
            request.thing,
            message_id=sink.new_id(),
            correlation_id=request.request_id,
            timestamp=sink.clock(),
            **members,
        )

    async def _expose(self, message: WebThingMessage) -> None:
        """Publish the Thing's description, if one is given, and take requests from now on."""
        client, thing = self._client, self._own(message)
        if "td" in message.members:
            td = encode(message.members["td"]).decode()
            await client.sink.handle(client.message(Operation.PUBLISH_TD, thing, "", td, of=message))
        if client.principal.type is AccountType.CONSUMER:
            raise Forbidden("only agents and services are asked to do something")
        self._exposed.add(thing)
        client.answer(message)
        # Requests flow after the answer, so that the agent knows that it is ready for them.
        client.sink.sessions.take_requests(client)

    async def _destroy(self, message: WebThingMessage) -> None:
        """Remove the Thing; without Things the client is asked nothing any more."""
        client, thing = self._client, self._own(message)
        await client.sink.handle(client.message(Operation.REMOVE_TD, thing, "", has_data=False, of=message))
        self._exposed.discard(thing)
        if not self._exposed:
            client.sink.sessions.stop_requests(client)
        client.answer(message)

    async def _publish(self, message: WebThingMessage) -> None:
        """Take a value or event; answered once it is committed, if the notification has a correlationID."""
        found = _PUBLISHES.get(message.operation)
        if found is None:
            raise Invalid("an agent notifies of observeproperty and subscribeevent")
        operation, member = found
        created = message.members.get("timestamp")
        if created is not None and not isinstance(created, str):
            raise Invalid("timestamp is a time as text")
        client = self._client
        await client.sink.handle(
            client.message(
                operation,
                self._own(message),
                message.name,
                message.members.get(member),
                has_data=member in message.members,
                message_id=message.message_id,
                created=None if created is None else parse_time(created),
                of=message,
            )
        )
        if message.correlation_id is not None:
            client.answer(message)

    async def _report(self, message: WebThingMessage) -> None:
        """Take the answer to a request."""
        if message.correlation_id is None:
            raise Invalid("a response needs the correlationID of its request")
        client = self._client
        await client.sink.handle(
            client.message(Operation.REPORT_STATUS, "", message.correlation_id, _reported(message))
        )

    def _own(self, message: WebThingMessage) -> str:
        """The twin id of the agent's Thing, which it names by its own id or by the twin's."""
        return own_twin(self._client.principal.account, message.thing_id)


def _reported(message: WebThingMessage) -> dict[str, JSONValue]:
    """What a response says of its request, as agents report it on every binding."""
    members = message.members
    error = members.get("error")
    if error is not None:
        return _failed(error)
    status = members.get("status")
    if status is None:
        return {"state": State.COMPLETED.value, "output": members.get("output")}
    if not isinstance(status, dict):
        raise Invalid('a status is an object such as {"state": "completed"}')
    if status.get("error") is not None:
        return _failed(status["error"])
    state = status.get("state")
    # A state that the protocol does not have is refused where all are that cannot be reported.
    known = _STATES.get(state) if isinstance(state, str) else None
    found: dict[str, JSONValue] = {"state": state if known is None else known.value}
    if found["state"] == State.FAILED.value:
        found["reason"] = Reason.AGENT_ERROR.value
    found |= {name: status[name] for name in ("output", "progress") if status.get(name) is not None}
    return found


def _failed(error: JSONValue) -> dict[str, JSONValue]:
    if not isinstance(error, dict):
        raise Invalid("error is an object of problem details")
    text = str(error.get("detail") or error.get("title") or "refused")
    if error.get("status", 500) in _FAULTS:
        return {"state": State.FAILED.value, "reason": Reason.AGENT_ERROR.value, "error": text}
    return {"state": State.COMPLETED.value, "error": text}
