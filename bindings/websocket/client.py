"""One client of the web thing protocol, as far as those who carry out its operations know it."""

from typing import Any, Protocol, Unpack

from bindings.websocket.config import WebThingLimits
from bindings.websocket.messages import WebThingMessage
from runtime.ports import Session, Sink
from things.delivery import DeliveryStatus
from things.messages import Given, JSONValue, Message, Operation


class Client(Session, Protocol):
    """The session of one socket, with what its operations need: messages in its name, and answers to it."""

    sink: Sink
    limits: WebThingLimits

    def answer(self, to: WebThingMessage, *, at: int | None = None, **members: JSONValue) -> None:
        """Answer a message, as of `at` if not of now; a client that does not read its answers is let go."""
        ...

    def notify(self, about: WebThingMessage, **members: JSONValue) -> bool:
        """Tell more of an operation that has been answered; False if the client does not keep up."""
        ...

    def message(
        self,
        operation: Operation,
        thing_id: str,
        name: str,
        data: JSONValue = None,
        *,
        of: WebThingMessage | None = None,
        **given: Unpack[Given],
    ) -> Message:
        """A message of this client, received now, made `of` what it sent."""
        ...

    async def call(self, service: str, method: str, **data: JSONValue) -> Any:
        """Call a method of a built-in service with this client's rights."""
        ...

    async def td(self, thing_id: str) -> dict[str, Any]:
        """The TD as this client may see it; raises UnknownThing."""
        ...

    async def final(self, status: DeliveryStatus, wait_s: float) -> DeliveryStatus:
        """The final status of a request if it comes within the wait, else the one it has."""
        ...

    def wait_of(self, message: WebThingMessage, default_s: float) -> float:
        """How long the client wants to wait."""
        ...
