"""Operation → handler, with the middleware folded around each handler once."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial

from runtime.ports import Check, Handler, Middleware
from things.delivery import DeliveryStatus
from things.errors import SkepError
from things.messages import Message, Operation


class Router:
    """Itself a handler: give it any message."""

    def __init__(self, handlers: Mapping[Operation, Handler], middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
        self.judge: Callable[[Message], object] = self._folded(_judged)
        """Passes a message through the middleware and no further; raises what it refuses with."""
        self._handlers = {operation: self._folded(handler) for operation, handler in handlers.items()}

    def __call__(self, message: Message) -> Awaitable[DeliveryStatus]:
        handler = self._handlers.get(message.operation)
        if handler is None:
            raise SkepError(f"nothing handles {message.operation}")
        return handler(message)

    def rest(self, message: Message) -> Check | None:
        """What is left of `judge` for messages like one that it let through (`Middleware.rest`)."""
        check: Check = _nothing
        for layer in reversed(self._middleware):
            rest = layer.rest(message, check)
            if rest is None:
                return None
            check = rest
        return check

    def carry(self, operation: Operation, handler: Handler) -> None:
        """Take on one more operation, behind the same middleware; done before bindings start."""
        self._handlers[operation] = self._folded(handler)

    def _folded(self, handler: Handler) -> Handler:
        for layer in reversed(self._middleware):
            # Not async: a coroutine that only awaits another one would be paid for by every message.
            handler = partial(_passed, layer, handler)
        return handler


class _Judged:
    """The end of a message that was only judged: no status will come."""

    def __await__(self) -> Generator[None, None, DeliveryStatus]:
        raise SkepError("only judged")
        yield


JUDGED = _Judged()


def _judged(message: Message) -> Awaitable[DeliveryStatus]:
    return JUDGED


def _passed(layer: Middleware, next_: Handler, message: Message) -> Awaitable[DeliveryStatus]:
    return layer(message, next_)


def _nothing(message: Message) -> None:
    """The innermost check."""
