"""Requests under way at an agent: each is handed to its handler once, and its outcome is reported however it ends.

A bounded number of handlers runs at a time; a further request waits unacknowledged, so that the runtime holds back the
rest, while cancels still come through. A request that is delivered again is answered with its outcome, or left alone
while it is being carried out. One that a former run of the program had begun and not ended is begun again only if that
does no harm: a property write, or an action whose description says `idempotent`.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from skep.handlers import ActionHandler, AgentRequest, Report, carried_out, failed
from skep.memory import RequestMemory
from things.delivery import Reason, State
from things.errors import Invalid, SkepError
from things.jsontext import decode
from things.messages import Operation

log = logging.getLogger(__name__)

MAX_RUNNING_REQUESTS = 100

_INTERRUPTED = "the agent was restarted while it carried this out; the device may have acted"


class Work:
    """The handlers of an agent and what they are doing. `say` reports, `repeatable` knows the descriptions."""

    def __init__(
        self, memory: RequestMemory, say: Callable[[Report], None], repeatable: Callable[[Operation, str, str], bool]
    ) -> None:
        self._memory = memory
        self._say = say
        self._repeatable = repeatable
        self._handlers: dict[tuple[Operation, str, str], ActionHandler] = {}
        self._running: dict[str, anyio.CancelScope] = {}
        self._room = anyio.CapacityLimiter(MAX_RUNNING_REQUESTS)

    def declare(self, operation: Operation, thing: str, name: str, handler: ActionHandler) -> None:
        """From now on this handler carries out what is asked under this name."""
        self._handlers[operation, thing, name] = handler

    def take(
        self,
        tasks: TaskGroup,
        operation: Operation,
        thing: str,
        name: str,
        request_id: str,
        payload: bytes,
        taken: Callable[[], None],
    ) -> None:
        """Begin a request, or answer one that is known; `taken` is called when the agent has it for good. Raises
        Invalid for a payload that is not JSON."""
        is_new = self._memory.begin(request_id)
        if not is_new and request_id in self._running:
            taken()
            return
        outcome = self._memory.outcome(request_id)
        if outcome is not None:
            self._say(replace(outcome, thing=thing, name=name))
            taken()
            return
        request = AgentRequest(
            request_id=request_id,
            operation=operation,
            thing=thing,
            name=name,
            has_input=bool(payload),
            report=self._report,
        )
        self._running[request_id] = anyio.CancelScope()
        may_begin = is_new or self._repeatable(operation, thing, name)
        tasks.start_soon(self._carry_out, request, payload, may_begin, taken)

    def cancel(self, request_id: str) -> None:
        """Stop a handler; what is not running is no error."""
        scope = self._running.get(request_id)
        if scope is not None:
            scope.cancel()

    async def _carry_out(
        self, request: AgentRequest, payload: bytes, may_begin: bool, taken: Callable[[], None]
    ) -> None:
        report = request.reported(State.CANCELLED)
        try:
            async with self._room:
                taken()
                with self._running[request.id]:
                    await anyio.lowlevel.checkpoint_if_cancelled()  # while it waited for room
                    report = await self._outcome(request, payload, may_begin)
                # Whatever cancels the agent now: an effect without its outcome would look interrupted.
                with anyio.CancelScope(shield=True):
                    await self._ended(report)
        finally:
            del self._running[request.id]
        if report.reason is Reason.AGENT_ERROR:
            log.warning("handler failed: %s", report.error, extra={"request": request.id})
        self._say(report)

    async def _outcome(self, request: AgentRequest, payload: bytes, may_begin: bool) -> Report:
        if not may_begin:
            return failed(request, Reason.AGENT_ERROR, _INTERRUPTED)
        try:
            data = decode(payload) if payload else None
            # A call is never delivered again, so nothing is gained by writing it down.
            if request.operation is not Operation.CALL_RPC:
                await self._memory.written_begun(request.id)
        except Invalid as error:
            return failed(request, Reason.INVALID, error.detail)
        except SkepError as error:
            return failed(request, Reason.AGENT_ERROR, f"not begun, since it could not be remembered: {error.detail}")
        handler = self._handlers.get((request.operation, request.thing, request.name))
        return await carried_out(handler, data, request)

    async def _ended(self, report: Report) -> None:
        self._memory.end(report)
        try:
            await self._memory.written_ended(report)
        except SkepError as error:
            log.error("outcome not written down: %s", error.detail, extra={"request": report.request_id})

    async def _report(self, report: Report) -> None:
        self._say(report)
