"""The message that every protocol binding makes and the router handles, and the operations it can ask for."""

from dataclasses import field
from enum import StrEnum
from typing import TypedDict

from pydantic import JsonValue

from things.addresses import is_twin, parsed_twin
from things.frozen import record
from things.identity import Principal
from things.names import checked_name, checked_request
from things.places import Place

JSONValue = JsonValue


class Operation(StrEnum):
    """What a message wants done; authorization decides on the same names."""

    PUBLISH_EVENT = "publish_event"
    PUBLISH_PROPERTY = "publish_property"
    PUBLISH_TD = "publish_td"
    REMOVE_TD = "remove_td"
    REPORT_STATUS = "report_status"
    INVOKE_ACTION = "invoke_action"
    WRITE_PROPERTY = "write_property"
    CALL_RPC = "call_rpc"
    CANCEL = "cancel"
    SEND = "send"
    """A message between addresses of the messaging node."""

    # Decided on, but carried by subscriptions and by calls of the built-in services, not by messages of their own.
    READ = "read"
    OBSERVE = "observe"
    SUBSCRIBE = "subscribe"
    HISTORY = "history"
    MANAGE = "manage"


_EVENT, _PROPERTY = Operation.PUBLISH_EVENT, Operation.PUBLISH_PROPERTY


@record
class Origin:
    """Where a message entered: binding name, session id and source address (`host` or None on local sockets), and at
    which place its sender sees this runtime, where that is known."""

    binding: str
    session_id: str = ""
    source: str | None = None
    place: Place | None = None


class Given(TypedDict, total=False):
    """What a sender may add to a message, beside what it is about and what it says; as in `Message`."""

    has_data: bool
    message_id: str | None
    created: int | None
    expires_in_s: float | None
    correlation: str | None
    durable: bool
    paced: bool


@record
class Message:
    """One message on its way through the router.

    Made by a protocol binding from the authenticated principal; nothing in it about the sender is read from the wire.
    Times are µs UTC. Raises BadAddress for a twin, an affordance or a request that cannot have that name
    (`things.names`), whatever door it comes by. What `name` and `data` hold depends on the operation:

    | operation | thing_id | name | data |
    | --- | --- | --- | --- |
    | publish_event, publish_property | twin | affordance | value |
    | publish_td, remove_td | twin | "" | TD as JSON text (str) / None |
    | report_status | "" | request id | `{"state","output","error","reason","progress"}` |
    | invoke_action, write_property, call_rpc | twin | affordance | input / value / input |
    | cancel | "" | request id, or "" with `correlation` = caller's reference | None |
    | send | address of the recipient | type, lower case | the whole envelope |
    """

    operation: Operation
    principal: Principal
    thing_id: str
    name: str
    data: JSONValue = None
    has_data: bool = True
    """False for an empty payload, which is no input; null is data."""

    message_id: str | None = None
    """The sender's own id, by which a repeated publication is recognised."""
    created: int | None = None
    """When it happened, by the sender's clock; None if it did not say."""
    received: int
    expires_in_s: float | None = None
    """How long a request may wait for its agent, as the caller asks; None leaves it to the TD or configuration."""
    correlation: str | None = None
    """The caller's own reference of a request (callerRef)."""
    confirmation: str | None = None
    """The token by which the caller confirms what a rule wants confirmed."""
    size: int = 0
    """Bytes of the payload as it came, which its sender's budget pays for."""
    paced: bool = False
    """Its binding reads a sender over its budget more slowly, so that the message is taken all the same."""
    durable: bool = True
    """False: the sender asks for no guarantee and is answered before the commit."""
    origin: Origin = field(default_factory=lambda: Origin(binding="embedded"))
    trace_id: str | None = None

    def __post_init__(self) -> None:
        operation = self.operation
        if operation is _EVENT or operation is _PROPERTY:
            # By far the most; and the look-up of an enum's member takes longer than the rest.
            parsed_twin(self.thing_id)
            checked_name(self.name)
            return
        match operation:
            case Operation.INVOKE_ACTION | Operation.WRITE_PROPERTY | Operation.CALL_RPC:
                # Another directory entry is no twin; that it takes no requests is said by who looks it up.
                if is_twin(self.thing_id):
                    parsed_twin(self.thing_id)
                checked_name(self.name)
            case Operation.PUBLISH_TD | Operation.REMOVE_TD:
                parsed_twin(self.thing_id)
            case Operation.REPORT_STATUS | Operation.CANCEL if self.name or operation is Operation.REPORT_STATUS:
                checked_request(self.name)
            case _:
                # The messaging node reads the addresses of its own messages.
                pass

    @property
    def sender_id(self) -> str:
        return self.principal.account
