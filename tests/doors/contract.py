"""What the door contract is about: something that is sent, and how a door answers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from tests.support import Account


class Operation(StrEnum):
    """What can be sent through a door."""

    PROPERTY = "publish a property"
    EVENT = "publish an event"
    VALUES = "publish several values"
    TD = "publish a description"
    REMOVE = "remove a Thing"
    INVOKE = "invoke an action"
    WRITE = "write a property"
    CALL = "call a method"
    CANCEL = "cancel a request"
    REPORT = "report a status"
    READ = "read a property"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One thing to send, as every door is given it; `data` is JSON text, or what claims to be."""

    operation: Operation
    thing: str = "pump-1"
    """The agent's own name of its Thing where it is published for, else the id of the twin."""
    name: str = "flow"
    """Of the affordance, or the id of the request that is cancelled or reported."""
    data: bytes | None = None
    created: str | None = None
    message_id: str | None = None
    reference: str | None = None
    expires_s: float | None = None
    by: str = "pumps"
    """The account that sends it."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The door took it; `output` of what was read."""

    output: Any = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The door said no; `said` are the members of the problem document that it told."""

    said: Mapping[str, Any]

    @property
    def code(self) -> str:
        return str(self.said["code"])


Answer = Accepted | Refused


class NotExpressible(Exception):
    """The door has no way to say this; the argument is the reason."""


class Door(Protocol):
    """One way into the runtime. `send` raises NotExpressible for what cannot be said there."""

    name: str

    async def send(self, sent: Sent) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Where doors are found, and who may come in."""

    http: str
    https: str = ""
    mqtt: tuple[str, int]
    mqtt_url: str
    control_socket: str
    accounts: Mapping[str, Account] = field(repr=False)
    steps: Callable[[str], Awaitable[int]] = field(repr=False)
    """How many steps a request has taken, for doors that do not acknowledge a report."""
