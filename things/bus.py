"""Buses that deliver a message by exact match of its `to`: the same small class in a sandbox, a runtime and a node.

A bus knows its adjacent listeners only. `*` is the default route, taken where no listener has the exact address.
Nothing here waits: listeners are plain calls, and a caller that needs a deadline sets it around `Responses`.
"""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from things.envelopes import Document, Envelope, read
from things.messages import JSONValue

ANY = "*"

T = TypeVar("T")

Listener = Callable[[Envelope], None]
Stage = Callable[[Envelope], Envelope | None]
"""One step of a pipeline: the message to go on with, None to stop here silently; raises SkepError to refuse it."""


class Bus(Generic[T]):
    """Who listens to which address, in the order they came; a listener is known once per address."""

    __slots__ = ("_by_address",)

    def __init__(self) -> None:
        self._by_address: dict[str, dict[T, None]] = {}

    def add(self, address: str, listener: T) -> bool:
        """Listen; False if this listener already did."""
        standing = self._by_address.setdefault(address, {})
        if listener in standing:
            return False
        standing[listener] = None
        return True

    def remove(self, address: str, listener: T) -> bool:
        """Stop listening; False if it did not listen."""
        standing = self._by_address.get(address)
        if standing is None or listener not in standing:
            return False
        del standing[listener]
        if not standing:
            del self._by_address[address]
        return True

    def at(self, address: str) -> tuple[T, ...]:
        """The listeners of exactly this address."""
        return tuple(self._by_address.get(address, ()))

    def found(self, address: str) -> tuple[T, ...]:
        """The listeners a message to this address reaches: the exact ones, else those of `*`."""
        return self.at(address) or self.at(ANY)

    def __contains__(self, address: str) -> bool:
        return address in self._by_address

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_address)

    def __len__(self) -> int:
        return len(self._by_address)


class Responses:
    """Who waits for which response, by the asker's address and the message's id."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int | str], Listener] = {}

    def wait(self, sender: str, identity: int | str, answered: Listener) -> Callable[[], None]:
        """Call `answered` with each provisional response (code 100) and the final one; the returned call gives up."""
        key = (sender, identity)
        self._waiting[key] = answered
        return lambda: self._give_up(key, answered)

    def take(self, envelope: Envelope) -> bool:
        """Hand a response to who waits for it; False if no one does."""
        key = (envelope.to, envelope.id)
        answered = self._waiting.get(key)
        if answered is None:
            return False
        if envelope.body.get("code") != 100:
            del self._waiting[key]
        answered(envelope)
        return True

    def _give_up(self, key: tuple[str, int | str], answered: Listener) -> None:
        if self._waiting.get(key) is answered:
            del self._waiting[key]


class MiniBus:
    """The bus of one sandbox: what is posted always goes outward, what comes in goes to who waits or listens."""

    def __init__(self, outward: Listener) -> None:
        self.listeners: Bus[Listener] = Bus()
        self.responses = Responses()
        self._outward = outward
        self._last = 0

    def listen(self, address: str, listener: Listener) -> Callable[[], None]:
        """Hear what is sent to an address; the returned call ends it."""
        self.listeners.add(address, listener)

        def end() -> None:
            self.listeners.remove(address, listener)

        return end

    def post(self, document: Document, answered: Listener | None = None) -> Envelope:
        """Send; a message without an id gets the next number. `answered` hears its responses."""
        if document.get("id") in (None, 0, ""):
            self._last += 1
            document = {**document, "id": self._last}
        envelope = read(document)
        if answered is None:
            self._outward(envelope)
            return envelope
        give_up = self.responses.wait(envelope.sender, envelope.id, answered)
        try:
            self._outward(envelope)
        except BaseException:
            give_up()
            raise
        return envelope

    def receive(self, envelope: Envelope) -> bool:
        """Take what came from outside; False if no listener here wanted it."""
        if envelope.is_response and self.responses.take(envelope):
            return True
        found = self.listeners.found(envelope.to)
        for listener in found:
            listener(envelope)
        return bool(found)


class MessageBus:
    """The bus of one runtime: between its sandboxes and, by stubs, the world.

    `resolve` names the address of the stub that leads to an address that is not local; None, or NoStub raised, if there
    is none.
    """

    def __init__(self, resolve: Callable[[str], str | None]) -> None:
        self.listeners: Bus[Listener] = Bus()
        self.inward: list[Stage] = []
        self.outward: list[Stage] = []
        self._resolve = resolve
        self._published: dict[str, int] = {}

    def post(self, envelope: Envelope) -> bool:
        """Deliver to who listens here, else through the stub that leads there; False if no listener takes it."""
        local = self.listeners.at(envelope.to)
        passed = _passed(self.inward if local else self.outward, envelope)
        if passed is None:
            return True
        for listener in local:
            listener(passed)
        if local and envelope.to not in self._published:
            return True
        # Never `*` here: two buses that default to each other would pass a message back and forth for ever.
        stub = self._resolve(envelope.to)
        outside = () if stub is None else self.listeners.at(stub)
        for listener in outside:
            listener(passed)
        return bool(local or outside)

    def publish(self, address: str) -> Callable[[], None]:
        """Carry messages to a local address outward as well; counted, and the returned call takes one back."""
        self._published[address] = self._published.get(address, 0) + 1

        def end() -> None:
            left = self._published.get(address, 0) - 1
            if left > 0:
                self._published[address] = left
            else:
                self._published.pop(address, None)

        return end


def changed(envelope: Envelope, **members: JSONValue) -> Envelope:
    """The same message with other members, for pipelines."""
    return read({**envelope.document, **members})


def _passed(stages: list[Stage], envelope: Envelope) -> Envelope | None:
    for stage in stages:
        passed = stage(envelope)
        if passed is None:
            return None
        envelope = passed
    return envelope
