"""A request as an agent's handler sees it, and what becomes of it as the report the runtime gets."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from things.delivery import Reason, State
from things.errors import SkepError
from things.messages import JSONValue, Operation


class Refused(Exception):
    """Raised by a handler when the *device* says no: the request is completed, with this text as its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent says of a request."""

    request_id: str
    state: State
    output: JSONValue = None
    error: str | None = None
    reason: Reason | None = None
    progress: float | None = None
    thing: str = ""
    name: str = ""
    """Of which request it speaks, for the log; the runtime knows."""

    def document(self) -> dict[str, JSONValue]:
        """As it goes over the wire; members without a value are left out."""
        found: dict[str, JSONValue] = {"state": self.state.value}
        if self.output is not None:
            found["output"] = self.output
        if self.error is not None:
            found["error"] = self.error
        if self.reason is not None:
            found["reason"] = self.reason.value
        if self.progress is not None:
            found["progress"] = self.progress
        return found

    @staticmethod
    def of(request_id: str, document: JSONValue) -> "Report":
        """From `document()`."""
        given: dict[str, Any] = document if isinstance(document, dict) else {}
        reason = given.get("reason")
        return Report(
            request_id=request_id,
            state=State(given["state"]),
            output=given.get("output"),
            error=given.get("error"),
            reason=None if reason is None else Reason(reason),
            progress=given.get("progress"),
        )


class AgentRequest:
    """One action, property write or RPC on its way through a handler.

    A handler may say how it goes: `progress`, `waiting` (the device sleeps), `applied` (written, not confirmed). Its
    return value is the output; what it raises ends the request: `Refused` as the device's no, anything else as failed.
    """

    def __init__(
        self,
        *,
        request_id: str,
        operation: Operation,
        thing: str,
        name: str,
        has_input: bool,
        report: Callable[[Report], Awaitable[None]],
    ) -> None:
        self.id = request_id
        self.operation = operation
        self.thing = thing
        self.name = name
        self.has_input = has_input
        """False for no input at all; null is an input."""
        self._report = report

    async def progress(self, percent: float) -> None:
        """The device works on it; `percent` is 0 to 100."""
        await self._report(self.reported(State.RUNNING, progress=percent))

    async def waiting(self) -> None:
        """The agent holds it, the device sleeps or is away."""
        await self._report(self.reported(State.WAITING))

    async def applied(self) -> None:
        """Written to the device, not confirmed by it."""
        await self._report(self.reported(State.APPLIED))

    def reported(
        self,
        state: State,
        *,
        output: JSONValue = None,
        error: str | None = None,
        reason: Reason | None = None,
        progress: float | None = None,
    ) -> Report:
        """What is said of this request when it has come so far."""
        return Report(
            request_id=self.id,
            state=state,
            output=output,
            error=error,
            reason=reason,
            progress=progress,
            thing=self.thing,
            name=self.name,
        )

    def __repr__(self) -> str:
        return f"<AgentRequest {self.operation.value} {self.thing}/{self.name} {self.id}>"


# The input has passed its data schema when it comes here, so a handler may name the type that schema gives it.
ActionHandler = Callable[[Any, AgentRequest], Awaitable[JsonValue]]
"""`async (input, request) -> output`; the output goes to the caller."""


async def carried_out(handler: ActionHandler | None, data: JSONValue, request: AgentRequest) -> Report:
    """Run the handler and turn whatever becomes of it into the final report; cancellation goes on upwards."""
    if handler is None:
        return failed(request, Reason.REJECTED, f"this agent does not handle {request.thing}/{request.name}")
    try:
        output = await handler(data, request)
    except Refused as refusal:
        return request.reported(State.COMPLETED, error=str(refusal) or "refused")
    except SkepError as error:
        reason = Reason(error.code) if error.code in _AGENT_REASONS else Reason.AGENT_ERROR
        return failed(request, reason, error.detail)
    except Exception as error:
        return failed(request, Reason.AGENT_ERROR, f"{type(error).__name__}: {error}")
    return request.reported(State.COMPLETED, output=output)


_AGENT_REASONS = frozenset({"invalid", "rejected", "agent-error", "forbidden"})


def failed(request: AgentRequest, reason: Reason, error: str) -> Report:
    """It could not be carried out."""
    return request.reported(State.FAILED, reason=reason, error=error)
