"""What a message passes through, and the built-in services at its end."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from things.addresses import Address
from things.delivery import DeliveryStatus
from things.identity import Principal
from things.messages import JSONValue, Message, Operation

Handler = Callable[[Message], Awaitable[DeliveryStatus]]
"""Returns the *first* status, once the message is committed, handed over or refused; never waits for a device.
Refusals are raised as SkepError; what was refused changed nothing."""

Test = Callable[[Message], None]
"""Raises what a message is refused with."""


class Check(Protocol):
    """One of the checks that every message passes before it is handled."""

    def __call__(self, message: Message) -> None:
        """Return to let the message pass; raise SkepError to refuse it."""
        ...

    def remaining(self, message: Message) -> Sequence[Test] | None:
        """What is left to test for messages like `message`, which has passed: of the same sender, operation, Thing
        and name, while neither rights nor the Thing's TD change. None: each of them needs the whole check."""
        ...


class Service(Protocol):
    """A built-in service: a Thing whose actions are methods, one implementation behind every binding."""

    @property
    def thing_id(self) -> str: ...
    @property
    def td(self) -> dict[str, Any]: ...

    def requirement(self, name: str, data: JSONValue) -> tuple[Operation, Address]:
        """What calling the method with this input amounts to, for the decision. Raises UnknownName, Invalid."""
        ...

    async def call(self, name: str, data: JSONValue, principal: Principal) -> JSONValue:
        """Carry it out; what is listed is trimmed to what the principal may see. Raises SkepError."""
        ...


Clock = Callable[[], int]
"""Now, µs UTC; passed in, so that tests own time."""
