"""The way of every message: the checks one after the other, then the handler of its operation."""

from collections.abc import Mapping, Sequence

from runtime.admission.trace import Trace
from runtime.ports import Check, Handler, Test
from things.delivery import DeliveryStatus
from things.errors import SkepError
from things.messages import Message, Operation


class Router:
    """Itself a handler: give it any message."""

    def __init__(self, handlers: Mapping[Operation, Handler], checks: Sequence[Check], trace: Trace) -> None:
        self._handlers = dict(handlers)
        self._checks = tuple(checks)
        self._trace = trace

    async def __call__(self, message: Message) -> DeliveryStatus:
        try:
            for check in self._checks:
                check(message)
            status = await self._handler(message.operation)(message)
        except SkepError as error:
            self._trace.refused(message, error)
            raise
        self._trace.handled(message)
        return status

    def check(self, message: Message, tests: Sequence[Test] | None = None) -> None:
        """Pass a message through the checks and no further, or through what is left of them; raises what refuses it."""
        try:
            for test in self._checks if tests is None else tests:
                test(message)
        except SkepError as error:
            self._trace.refused(message, error)
            raise
        self._trace.handled(message)

    def remaining(self, message: Message) -> Sequence[Test] | None:
        """What is left of all checks for messages like one that passed them (`Check.remaining`)."""
        tests: list[Test] = []
        for check in self._checks:
            left = check.remaining(message)
            if left is None:
                return None
            tests += left
        return tuple(tests)

    def add_handler(self, operation: Operation, handler: Handler) -> None:
        """Handle one more operation, behind the same checks; done before bindings start."""
        self._handlers[operation] = handler

    def _handler(self, operation: Operation) -> Handler:
        handler = self._handlers.get(operation)
        if handler is None:
            raise SkepError(f"nothing handles {operation}")
        return handler
