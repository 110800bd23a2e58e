"""Messages of the web thing protocol: what came is checked here, what goes is spelled here.

Every message is a JSON object with thingID, messageID, messageType and operation; a correlationID joins the messages
of one operation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from bindings.wire.envelopes import decode_whole
from things.errors import Invalid, Malformed
from things.jsontext import MAX_DEPTH, decode_unique, encode
from things.messages import JSONValue
from things.names import checked_name
from things.records import MAX_COUNTER
from things.times import rfc3339

SUBPROTOCOL = "webthingprotocol"
MAX_ID_CHARS = 128
_LEVELS = 1
"""Around a value: the message."""


class MessageType(StrEnum):
    """Which way a message goes and what it expects."""

    REQUEST = "request"
    RESPONSE = "response"
    NOTIFICATION = "notification"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebThingMessage:
    """One message as it came; its own members are read through the methods, which raise Invalid."""

    thing_id: str
    message_id: str
    type: MessageType
    operation: str
    correlation_id: str | None
    size: int
    """Bytes it came in as."""
    members: Mapping[str, JSONValue] = field(repr=False)

    @property
    def reference(self) -> str:
        """The caller's reference: a repeated operation is recognised by its correlationID, or its messageID."""
        return self.correlation_id or self.message_id

    def text(self, name: str) -> str:
        """A member that must be a text, not empty."""
        found = self.members.get(name)
        if not isinstance(found, str) or not found:
            raise Invalid(f"{self.operation} needs the member {name!r}, a text")
        return found

    @property
    def name(self) -> str:
        """The affordance it is about; raises BadAddress for what cannot name one."""
        found = self.members.get("name")
        if not isinstance(found, str):
            raise Invalid(f"{self.operation} needs the member 'name', a text")
        return checked_name(found)

    def value(self, name: str) -> JSONValue:
        """A member that must be there, whatever it holds: null is a value."""
        if name not in self.members:
            raise Invalid(f"{self.operation} needs the member {name!r}")
        return self.members[name]

    def object(self, name: str) -> dict[str, Any]:
        """A member that must be an object with members."""
        found = self.members.get(name)
        if not isinstance(found, dict) or not found:
            raise Invalid(f"{self.operation} needs the member {name!r}, an object that is not empty")
        return found

    def texts(self, name: str) -> list[str]:
        """A member that must be an array of texts."""
        found = self.members.get(name)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise Invalid(f"{self.operation} needs the member {name!r}, an array of texts")
        return [str(item) for item in found]

    @property
    def confirmation(self) -> str | None:
        """The token of the refusal that this message repeats."""
        found = self.members.get("confirmation")
        return found if isinstance(found, str) else None

    def counter(self, name: str) -> int | None:
        """A member that may be a whole number from 0."""
        found = self.members.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_COUNTER:
            raise Invalid(f"{name!r} is a whole number that is not negative")
        return found

    def seconds(self, name: str) -> float | None:
        """A member that may be a number of seconds."""
        found = self.members.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
            raise Invalid(f"{name!r} is a number of seconds that is not negative")
        return float(found)


def read(text: str | bytes, *, max_bytes: int) -> WebThingMessage:
    """One message; raises Invalid (with its subclasses), TooLarge."""
    found = decode_whole(text, _LEVELS, max_bytes=max_bytes)
    if not isinstance(found, dict):
        raise Invalid("a message is a JSON object")
    if "td" in found:
        # Of a description no member may stand twice, and what is decoded does not tell.
        try:
            decode_unique(text, max_bytes=max_bytes, max_depth=MAX_DEPTH + _LEVELS)
        except Malformed as error:
            # Where in the description, as on every other binding.
            within = [replace(problem, pointer=problem.pointer.removeprefix("/td")) for problem in error.problems]
            raise Malformed(error.detail, within) from error
    type_ = found.get("messageType")
    if type_ not in tuple(MessageType):
        raise Invalid("messageType is request, response or notification")
    correlation_id = found.get("correlationID")
    if correlation_id is not None:
        correlation_id = _id(found, "correlationID")
    operation = found.get("operation")
    if not isinstance(operation, str) or not operation or len(operation) > MAX_ID_CHARS:
        raise Invalid("a message needs the member 'operation', a text")
    thing_id = found.get("thingID", "")
    if not isinstance(thing_id, str) or len(thing_id) > 1_024:
        raise Invalid("thingID is a text of at most 1024 characters")
    return WebThingMessage(
        thing_id=thing_id,
        message_id=_id(found, "messageID"),
        type=MessageType(str(type_)),
        operation=operation,
        correlation_id=correlation_id,
        size=len(text) if isinstance(text, bytes) else len(text.encode()),
        members=found,
    )


def spell(
    type_: MessageType,
    operation: str,
    thing_id: str,
    *,
    message_id: str,
    correlation_id: str | None,
    timestamp: int,
    **members: JSONValue,
) -> bytes:
    """A message of ours; `timestamp` is µs UTC."""
    found: dict[str, JSONValue] = {
        "thingID": thing_id,
        "messageID": message_id,
        "messageType": type_.value,
        "operation": operation,
        **members,
        "timestamp": rfc3339(timestamp),
    }
    if correlation_id is not None:
        found["correlationID"] = correlation_id
    return encode(found)


def _id(found: Mapping[str, JSONValue], name: str) -> str:
    text = found.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= MAX_ID_CHARS or not text.isascii() or not text.isprintable():
        raise Invalid(f"a message needs the member {name!r}, 1 to {MAX_ID_CHARS} printable ASCII characters")
    return text
