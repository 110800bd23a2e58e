"""Operation → handler, with the middleware folded around each handler once."""

from collections.abc import Awaitable, Mapping, Sequence

from runtime.ports import Handler, Middleware
from things.delivery import DeliveryStatus
from things.errors import SkepError
from things.messages import Message, Operation


class Router:
    """Itself a handler: give it any message."""

    def __init__(self, handlers: Mapping[Operation, Handler], middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
        self._handlers = {operation: self._folded(handler) for operation, handler in handlers.items()}

    def __call__(self, message: Message) -> Awaitable[DeliveryStatus]:
        handler = self._handlers.get(message.operation)
        if handler is None:
            raise SkepError(f"nothing handles {message.operation}")
        return handler(message)

    def carry(self, operation: Operation, handler: Handler) -> None:
        """Take on one more operation, behind the same middleware; done before bindings start."""
        self._handlers[operation] = self._folded(handler)

    async def judge(self, message: Message, accepted: Handler) -> DeliveryStatus:
        """Pass a message through the middleware to another end: for batches, which are stored together."""
        return await self._folded(accepted)(message)

    def _folded(self, handler: Handler) -> Handler:
        for layer in reversed(self._middleware):
            handler = _wrapped(layer, handler)
        return handler


def _wrapped(layer: Middleware, next_: Handler) -> Handler:
    # Not async: a coroutine that only awaits another one would be paid for by every message.
    return lambda message: layer(message, next_)
